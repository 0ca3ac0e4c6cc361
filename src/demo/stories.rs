//! The stories (a) to (d). Each starts from a fresh state, waits for conditions and never for a fixed
//! time, and is judged by the API's state at its end.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::child::Fencepost;
use super::http_client::client;
use super::legacy::OPENING_BALANCE;
use super::naive;
use super::screen::{Lane, Timeline, Tone};
use super::worker::{ApiAnswer, Worker};
use super::world::World;

/// Short, so that it can be watched.
const LEASE: Duration = Duration::from_millis(1200);
/// The amount that a job charges.
const PRICE: i64 = 30;
/// How often a condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Stories (a) and (b): a holder stalls, loses its lease, wakes, and goes on. Without fencepost
/// the account is charged twice and the newer state is lost; with it, neither.
pub async fn zombie(world: &World, fenced: bool) -> anyhow::Result<bool> {
    world.begin(if fenced {
        "(b) The same zombie, with fencepost in front of the API"
    } else {
        "(a) A zombie, without fencepost"
    });
    world
        .screen
        .line("A and B have one job: take 30 from account 7, then write order 7.");
    let timeline = Timeline::start(&world.screen, if fenced { "fencepost" } else { "" });
    let target = if fenced {
        world.front()
    } else {
        world.api.url()
    };
    let lock = format!("{}/locks/order-7", world.locks.url());

    let mut a = Worker::new(Lane::A, &timeline, &target, fenced);
    a.acquire(&lock, LEASE).await?;
    a.read("/orders/7").await?;
    timeline.set_stalled(true);
    timeline.note(
        Lane::A,
        Tone::Plain,
        "A stalls: a long GC pause, a frozen VM …",
    );
    let (wake, woken) = oneshot::channel::<()>();
    let zombie = tokio::spawn(async move {
        woken.await.context("the story broke off")?;
        job(&a, "paid", "A").await
    });

    let mut b = Worker::new(Lane::B, &timeline, &target, fenced);
    b.acquire(&lock, LEASE).await?;
    b.read("/orders/7").await?;
    let of_b = job(&b, "shipped", "B").await?;
    timeline.set_stalled(false);
    timeline.note(
        Lane::A,
        Tone::Plain,
        "A wakes up and still believes it holds the lock",
    );
    wake.send(()).ok().context("A is gone")?;
    let of_a = zombie.await.context("A died")??;

    let account = world.get("/accounts/7").await?;
    let order = world.get("/orders/7").await?;
    let charges = account["ledger"].as_array().map_or(0, Vec::len);
    let passed_b = of_b.iter().all(|answer| answer.status.is_success());
    let [charge, write] = of_a.each_ref().map(|answer| answer.status.as_u16());
    let found = format!(
        "{charge} and {write}, balance {} after {}, \"{}\" by {}",
        account["balance"],
        if charges == 1 {
            "1 charge".to_owned()
        } else {
            format!("{charges} charges")
        },
        word(&order, "status"),
        word(&order, "by"),
    );
    let (wanted, expected) = if fenced {
        (
            charge == 412 && write == 412 && charges == 1 && order["by"] == "B",
            "412 to both of A's writes, 1 charge, B's order untouched",
        )
    } else {
        (
            charge == 201 && write == 200 && charges == 2 && order["by"] == "A",
            "the damage (both of A's writes accepted, 2 charges, B's order lost)",
        )
    };
    let balance = OPENING_BALANCE - PRICE * i64::try_from(charges)?;
    let good = wanted && passed_b && account["balance"] == balance;
    world.screen.verdict(good, expected, &found);
    Ok(good)
}

/// The jobs of A and B.
async fn job(worker: &Worker, status: &str, by: &str) -> anyhow::Result<[ApiAnswer; 2]> {
    let charge = json!({ "amount": PRICE, "by": by });
    let charged = worker
        .write(Method::POST, "/accounts/7/charge", charge)
        .await?;
    let order = json!({ "status": status, "by": by });
    let written = worker.write(Method::PUT, "/orders/7", order).await?;
    Ok([charged, written])
}

/// Story (c): 41 has passed the check and stalls on its way. A proxy that only checks lets 42 pass,
/// and 41 lands last. With fencepost 42 waits at the barrier until 41 has landed.
pub async fn race(world: &World, fenced: bool) -> anyhow::Result<bool> {
    world.begin(if fenced {
        "(c) The same race, with fencepost"
    } else {
        "(c) The overtaking race, with a proxy that only checks, then forwards"
    });
    let timeline = Timeline::start(&world.screen, if fenced { "fencepost" } else { "check" });
    let naive = naive::start(world.api.url()).await?;
    let target = if fenced { world.front() } else { naive.url() };

    let mut hold = world.api.hold(&Method::PUT, "/orders/8");
    let first = put_order_8(&timeline, Lane::A, &target, 41);
    hold.arrived().await?;
    let text = "41 has passed the check, and stalls on its way";
    timeline.note(Lane::Api, Tone::Plain, text);
    let second = put_order_8(&timeline, Lane::B, &target, 42);
    let (first, second) = if fenced {
        wait_for_waiting(world, "order:8", &[&first, &second]).await?;
        let text = "42 is the mark now, and waits: 41 is in flight";
        timeline.note(Lane::Middle, Tone::Good, text);
        timeline.note(Lane::Api, Tone::Plain, "41 goes on, and lands");
        hold.release();
        (first.await, second.await)
    } else {
        let second = second.await;
        timeline.note(Lane::Api, Tone::Bad, "41 goes on, and lands on top of 42");
        hold.release();
        (first.await, second)
    };
    let (first, second) = (first.context("A died")??, second.context("B died")??);

    let order = world.get("/orders/8").await?;
    let journal = world.journal("/orders/8").await?;
    let (last, arrivals, expected) = if fenced {
        let expected = "42 to reach the API only after 41 has landed, and to be the last";
        ("B", WHOLE, expected)
    } else {
        ("A", BROKEN, "the damage (41 lands last, over 42)")
    };
    let accepted = first.status.is_success() && second.status.is_success();
    let good = accepted && order["by"] == last && journal == arrivals;
    let (status, by) = (word(&order, "status"), word(&order, "by"));
    let found = format!("\"{status}\" by {by}, after {}", journal.join(", "));
    world.screen.verdict(good, expected, &found);
    Ok(good)
}

/// The arrivals at the API when the race goes wrong, and when it goes right.
const BROKEN: [&str; 4] = [
    "A: arrived",
    "B: arrived",
    "B: took effect",
    "A: took effect",
];
const WHOLE: [&str; 4] = [
    "A: arrived",
    "A: took effect",
    "B: arrived",
    "B: took effect",
];

/// A request on its way.
type SentRequest = tokio::task::JoinHandle<anyhow::Result<ApiAnswer>>;

/// Sends a write in a task of its own, as a worker in another process would.
fn put_order_8(timeline: &Timeline, lane: Lane, target: &str, token: u64) -> SentRequest {
    let worker = Worker::new(lane, timeline, target, true).with_token(token);
    let (status, by) = if lane == Lane::A {
        ("paid", "A")
    } else {
        ("shipped", "B")
    };
    let body = json!({ "status": status, "by": by });
    tokio::spawn(async move { worker.write(Method::PUT, "/orders/8", body).await })
}

/// Polls fencepost's admin API until a request of this resource waits at the barrier.
async fn wait_for_waiting(
    world: &World,
    resource: &str,
    sent: &[&SentRequest],
) -> anyhow::Result<()> {
    let url = format!("{}/v1/marks/{resource}", world.admin());
    let http = client();
    loop {
        let answer = http
            .get(&url)
            .send()
            .await
            .context("fencepost's admin API is silent")?;
        if answer.status().is_success() {
            let body: Value = answer.json().await?;
            if body["waiting"].as_u64().is_some_and(|waiting| waiting > 0) {
                return Ok(());
            }
        }
        ensure!(
            !sent.iter().any(|task| task.is_finished()),
            "nothing waited at the barrier"
        );
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Story (d): the proxy dies of SIGKILL, and the mark does not.
pub async fn kill_nine(world: &mut World) -> anyhow::Result<bool> {
    world.begin("(d) kill -9 of fencepost, and a start over the same file");
    let timeline = Timeline::start(&world.screen, "fencepost");
    let front = world.front();
    let b = Worker::new(Lane::B, &timeline, &front, true).with_token(42);
    let before = put_order_9(&b, "B", "paid").await?;
    ensure!(
        before.status.is_success(),
        "42 was refused: {}",
        before.body
    );

    let pid = world
        .fencepost
        .pid()
        .context("fencepost has ended by itself")?;
    timeline.note(Lane::Middle, Tone::Bad, &format!("kill -9 {pid}"));
    world.fencepost.kill().await?;
    world.fencepost = Fencepost::start(&world.config).await?;
    let front = world.front();
    timeline.note(
        Lane::Middle,
        Tone::Plain,
        &format!("started over the same file, {front}"),
    );

    let a = Worker::new(Lane::A, &timeline, &front, true).with_token(41);
    let zombie = put_order_9(&a, "A", "new").await?;
    let b = Worker::new(Lane::B, &timeline, &front, true).with_token(43);
    timeline.note(
        Lane::Middle,
        Tone::Plain,
        "a newer token waits until 42's fate has settled",
    );
    let after = put_order_9(&b, "B", "shipped").await?;

    let order = world.get("/orders/9").await?;
    let mark = word(&zombie.body, "mark").to_owned();
    let refused = zombie.status == StatusCode::PRECONDITION_FAILED && mark == "42";
    let good =
        refused && after.status.is_success() && order == json!({ "status": "shipped", "by": "B" });
    let found = format!(
        "{} (mark {mark}), {}, \"{}\" by {}",
        zombie.status.as_u16(),
        after.status.as_u16(),
        word(&order, "status"),
        word(&order, "by"),
    );
    let expected = "412 to 41 from the mark in the file, 200 to 43, \"shipped\" by B";
    world.screen.verdict(good, expected, &found);
    Ok(good)
}

async fn put_order_9(worker: &Worker, by: &str, status: &str) -> anyhow::Result<ApiAnswer> {
    worker
        .write(
            Method::PUT,
            "/orders/9",
            json!({ "status": status, "by": by }),
        )
        .await
}

fn word<'a>(body: &'a Value, name: &str) -> &'a str {
    body[name].as_str().unwrap_or("?")
}

impl World {
    /// Fresh books, fresh locks, and the story's name.
    pub(super) fn begin(&self, title: &str) {
        self.api.reset();
        self.locks.reset();
        self.screen.heading(title);
    }

    /// Asks the API itself, past everything that stands in front of it.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = client()
            .get(format!("{}{path}", self.api.url()))
            .send()
            .await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// The API's journal of the writes to one path, in order, as `A: arrived`.
    pub(super) async fn journal(&self, path: &str) -> anyhow::Result<Vec<String>> {
        let lines = self.get("/journal").await?;
        let lines = lines.as_array().context("the journal is a list")?.clone();
        let prefix = format!("PUT {path} by ");
        let seen = lines
            .iter()
            .filter_map(|line| line.as_str()?.strip_prefix(&prefix));
        Ok(seen.map(str::to_owned).collect())
    }
}
