//! The stories (a) to (e). Each starts from a fresh state, waits for conditions and never for a fixed
//! time, and is judged by the API's state at its end.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::child::Fencepost;
use super::screen::{Lane, Timeline, print, verdict};
use super::servers::{OPENING_BALANCE, client, start_naive};
use super::worker::{Answer, Worker, order};
use super::world::World;

/// The amount that a job charges.
const PRICE: i64 = 30;
/// How often a condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Stories (a) and (b): a holder stalls, loses its lease, wakes, and goes on. Without fencepost
/// the account is charged twice and the newer state is lost; with it, neither.
pub(super) async fn zombie(world: &World, fenced: bool) -> anyhow::Result<bool> {
    let (title, proxy, target) = if fenced {
        let title = "(b) The same zombie, with fencepost in front of the API";
        (title, "fencepost", &world.fencepost.url)
    } else {
        ("(a) A zombie, without fencepost", "", &world.servers.api)
    };
    world.begin(title);
    print("A and B have one job: take 30 from account 7, then write order 7.");
    let timeline = Timeline::start(proxy);

    let a = Worker::acquire(Lane::A, &timeline, target, &world.servers).await;
    timeline.note(Lane::A, "A stalls: a long GC pause, a frozen VM …");
    let (wake, woken) = oneshot::channel::<()>();
    let zombie = tokio::spawn(async move {
        woken.await.context("the story broke off")?;
        job(&a, "paid").await
    });

    let b = Worker::acquire(Lane::B, &timeline, target, &world.servers).await;
    let of_b = job(&b, "shipped").await?;
    let text = "A wakes up and still believes it holds the lock";
    timeline.note(Lane::A, text);
    wake.send(()).ok().context("A is gone")?;
    let of_a = zombie.await.context("A died")??;

    let (charges, balance, account) = world.servers.account("/accounts/7");
    let order_7 = world.servers.order("/orders/7");
    let [charge, write] = of_a.map(|answer| answer.status.as_u16());
    let (wanted, expected) = if fenced {
        let expected = "412 to both of A's writes, 1 charge, B's order untouched";
        ((412, 412, 1, "B"), expected)
    } else {
        let expected = "the damage (both of A's writes accepted, 2 charges, B's order lost)";
        ((201, 200, 2, "A"), expected)
    };
    let by = order_7["by"].as_str().unwrap_or_default();
    let good = (charge, write, charges, by) == wanted
        && of_b.iter().all(|answer| answer.status.is_success())
        && balance == OPENING_BALANCE - PRICE * i64::try_from(charges)?;
    let found = format!("{charge} and {write}, {account}, {}", order(&order_7));
    Ok(verdict(good, expected, &found))
}

/// The jobs of A and B.
async fn job(worker: &Worker, status: &str) -> anyhow::Result<[Answer; 2]> {
    let charged = worker.charge("/accounts/7/charge", PRICE).await?;
    let written = worker.put_order("/orders/7", status).await?;
    Ok([charged, written])
}

/// Story (c): 41 has passed the check and stalls on its way. A proxy that only checks lets 42 pass,
/// and 41 lands last. With fencepost 42 waits at the barrier until 41 has landed.
pub(super) async fn race(world: &World, fenced: bool) -> anyhow::Result<bool> {
    let (title, proxy, target) = if fenced {
        let url = world.fencepost.url.clone();
        ("(c) The same race, with fencepost", "fencepost", url)
    } else {
        let title = "(c) The overtaking race, with a proxy that only checks, then forwards";
        (
            title,
            "check",
            start_naive(world.servers.api.clone()).await?,
        )
    };
    world.begin(title);
    let timeline = Timeline::start(proxy);

    // Sends a write in a task of its own, as a worker in another process would.
    let send = |lane, token, status| {
        let worker = Worker::new(lane, &timeline, &target, token);
        tokio::spawn(async move { worker.put_order("/orders/8", status).await })
    };
    let hold = world.servers.hold();
    let first = send(Lane::A, 41, "paid");
    hold.arrived.notified().await;
    let text = "41 has passed the check, and stalls on its way";
    timeline.note(Lane::Api, text);
    let second = send(Lane::B, 42, "shipped");
    if fenced {
        until_it_waits(world, "order:8", &second).await?;
        let text = "42 is the mark now, and waits: 41 is in flight";
        timeline.note(Lane::Middle, text);
        timeline.note(Lane::Api, "41 goes on, and lands");
    } else {
        while !second.is_finished() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        timeline.note(Lane::Api, "41 goes on, and lands on top of 42");
    }
    hold.released.notify_one();
    let answers = [first.await??, second.await??];

    let order_8 = world.servers.order("/orders/8");
    let events = world.servers.journal();
    let (last, wanted, expected) = if fenced {
        let wanted = "A: arrived, A: took effect, B: arrived, B: took effect";
        let expected = "42 to reach the API only after 41 has landed, and to be the last";
        ("B", wanted, expected)
    } else {
        let wanted = "A: arrived, B: arrived, B: took effect, A: took effect";
        ("A", wanted, "the damage (41 lands last, over 42)")
    };
    let good = answers.iter().all(|answer| answer.status.is_success())
        && order_8["by"] == last
        && events == wanted;
    let found = format!("{}, after {events}", order(&order_8));
    Ok(verdict(good, expected, &found))
}

/// Waits until fencepost's admin API shows this request of a resource waiting at the barrier.
async fn until_it_waits(
    world: &World,
    resource: &str,
    request: &JoinHandle<anyhow::Result<Answer>>,
) -> anyhow::Result<()> {
    let url = format!("{}/v1/marks/{resource}", world.fencepost.admin_url);
    loop {
        let answer = client().get(&url).send().await?;
        let mark: Value = answer.json().await?;
        if mark["waiting"].as_u64() > Some(0) {
            return Ok(());
        }
        ensure!(!request.is_finished(), "nothing waited at the barrier");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Story (d): the proxy dies of SIGKILL, and the mark does not.
pub(super) async fn kill_nine(world: &mut World) -> anyhow::Result<bool> {
    world.begin("(d) kill -9 of fencepost, and a start over the same file");
    let timeline = Timeline::start("fencepost");
    let b = Worker::new(Lane::B, &timeline, &world.fencepost.url, 42);
    let before = b.put_order("/orders/9", "paid").await?;
    ensure!(before.status.is_success(), "refused: {}", before.body);

    let pid = world.fencepost.process.id().unwrap_or_default();
    timeline.note(Lane::Middle, &format!("kill -9 {pid}"));
    world.fencepost.process.kill().await?;
    world.fencepost = Fencepost::start(&world.config).await?;
    let url = &world.fencepost.url;
    let text = format!("started over the same file, {url}");
    timeline.note(Lane::Middle, &text);

    let a = Worker::new(Lane::A, &timeline, url, 41);
    let zombie = a.put_order("/orders/9", "new").await?;
    let text = "a newer token waits until 42's fate has settled";
    timeline.note(Lane::Middle, text);
    let b = Worker::new(Lane::B, &timeline, url, 43);
    let after = b.put_order("/orders/9", "shipped").await?;

    let order_9 = world.servers.order("/orders/9");
    let [refusal, success] = [&zombie, &after].map(|answer| answer.status.as_u16());
    let mark = zombie.body["mark"].as_str().unwrap_or("?");
    let good = (refusal, mark, success) == (412, "42", 200)
        && order_9 == json!({ "status": "shipped", "by": "B" });
    let expected = "412 to 41 from the mark in the file, 200 to 43, \"shipped\" by B";
    let found = format!("{refusal} (mark {mark}), {success}, {}", order(&order_9));
    Ok(verdict(good, expected, &found))
}

/// Story (e): 41 charges, and its holder dies before it hears the answer. 42 repeats the operation,
/// and gets the answer that is on record.
pub(super) async fn redo(world: &World) -> anyhow::Result<bool> {
    world.begin("(e) A holder dies before it hears the answer, with fencepost");
    let timeline = Timeline::start("fencepost");
    let charge = |lane, token| {
        let worker = Worker::new(lane, &timeline, &world.fencepost.url, token);
        tokio::spawn(async move { worker.charge("/accounts/8/charge", PRICE).await })
    };
    let hold = world.servers.hold();
    let first = charge(Lane::A, 41);
    hold.arrived.notified().await;
    first.abort();
    timeline.note(Lane::A, "A dies, and never hears what came of it");
    let second = charge(Lane::B, 42);
    until_it_waits(world, "account:8", &second).await?;
    timeline.note(Lane::Api, "41 goes on, and charges the account");
    hold.released.notify_one();
    let answer = second.await??;

    let (charges, balance, account) = world.servers.account("/accounts/8");
    let good = answer.status == StatusCode::CREATED
        && answer.body["balance"] == balance
        && (charges, balance) == (1, OPENING_BALANCE - PRICE);
    let expected = "the answer on record to 42, and 1 charge";
    let (status, body) = (answer.status.as_u16(), answer.body);
    let found = format!("{status} and {body}, {account}");
    Ok(verdict(good, expected, &found))
}
