//! Story (e): a program that knows nothing of tokens, under `fencepost attach`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Method;
use serde_json::json;
use tokio::process::{Child, Command};

use super::http_client::client;
use super::screen::{Lane, Timeline, Tone};
use super::stories::word;
use super::worker::Worker;
use super::world::World;

/// Short, so that it can be watched.
const LEASE: Duration = Duration::from_millis(800);
/// The pause between two writes of the program.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the first write may take.
const BEGINS: Duration = Duration::from_secs(10);
const ORDER: &str = "/orders/10";

/// The program: it writes again and again, looks at no answer, and ends only if it is ended.
pub async fn nightly() -> anyhow::Result<()> {
    let url = std::env::var("FENCEPOST_URL").context("FENCEPOST_URL: who runs this?")?;
    loop {
        let order = json!({ "status": "nightly", "by": "A" });
        let write = client().put(format!("{url}{ORDER}")).json(&order);
        let _ = write.send().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// A's program goes on after its lease has ended. B writes, and A's program is ended.
pub async fn ended(world: &World) -> anyhow::Result<bool> {
    world.begin(
        "(e) fencepost attach: a program that cannot be changed, and does not stop by itself",
    );
    let timeline = Timeline::start(&world.screen, "fencepost");
    let front = world.front();
    let lock = format!("{}/locks/order-10", world.locks.url());

    let mut a = Worker::new(Lane::A, &timeline, &front, true);
    let of_a = a.acquire(&lock, LEASE).await?;
    let text = format!("fencepost attach --token {of_a} -- program: PUT {ORDER}, again and again");
    timeline.note(Lane::A, Tone::Plain, &text);
    let mut program = attach(&front, of_a)?;
    tokio::time::timeout(BEGINS, async {
        while world.journal(ORDER).await?.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
        anyhow::Ok(())
    })
    .await
    .context("the program writes nothing")??;

    timeline.note(
        Lane::A,
        Tone::Plain,
        "nobody renews A's lease, and the program goes on",
    );
    let mut b = Worker::new(Lane::B, &timeline, &front, true);
    b.acquire(&lock, LEASE).await?;
    let order = json!({ "status": "shipped", "by": "B" });
    let written = b.write(Method::PUT, ORDER, order.clone()).await?;
    ensure!(
        written.status.is_success(),
        "B was refused: {}",
        written.body
    );

    let status = program
        .wait()
        .await
        .context("the program's end is unknown")?;
    let code = status.code().unwrap_or(-1);
    let text = format!("its next write was refused: it is ended, exit code {code}");
    timeline.note(Lane::A, Tone::Bad, &text);
    let last = world.get(ORDER).await?;
    let found = format!(
        "exit code {code}, \"{}\" by {}",
        word(&last, "status"),
        word(&last, "by")
    );
    let good = code == i32::from(crate::attach::EXIT_STALE) && last == order;
    let expected = "exit code 75 for A's program, \"shipped\" by B";
    world.screen.verdict(good, expected, &found);
    Ok(good)
}

fn attach(front: &str, token: u64) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("cannot find this program's own file")?;
    let token = token.to_string();
    Command::new(&this)
        .args(["attach", "--to", front, "--token", &token, "--"])
        .arg(&this)
        .args(["demo", "--nightly"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start fencepost attach")
}
