//! `fencepost demo`: the harm that a zombie does to an upstream that knows no tokens, and how
//! fencepost prevents it. Only the stalls are staged. A legacy API, a check-then-forward proxy and a
//! `fencepost serve` with a real `SQLite` file run for real and talk HTTP over loopback; the lock is
//! a lease with a number. The result of each story is read from the API's own books.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::SignalKind;

mod child;
mod screen;
mod servers;
mod stories;
mod worker;
mod world;

use child::Fencepost;
use screen::{heading, verdict};
use servers::Servers;
use world::World;

use crate::signals::Signals;

/// How long any one story may take.
const STORY: Duration = Duration::from_secs(40);

/// Plays every story. `true`: each ended as it should. `false` too if a signal ends the demo early.
///
/// # Errors
/// Something could not be started; each says what.
pub async fn run() -> anyhow::Result<bool> {
    // Ctrl-C, `kill`, and a closed terminal.
    let ends = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let mut ends = Signals::catch(ends.map(|kind| (kind, ())))?;
    let name = format!("fencepost-demo-{:016x}", rand::random::<u64>());
    let dir = std::env::temp_dir().join(name);
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    made.with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let ended = tokio::select! {
        played = play(&dir) => played,
        // The child is killed as the future is dropped.
        () = ends.next() => Ok(false),
    };
    // Files that cannot be removed stay in the system's temporary directory.
    let _ = std::fs::remove_dir_all(&dir);
    ended
}

async fn play(dir: &Path) -> anyhow::Result<bool> {
    let servers = Servers::start().await?;
    let config = write_config(dir, &servers.api)?;
    let mut world = World {
        fencepost: Fencepost::start(&config).await?,
        servers,
        config,
    };
    world.introduce();

    let mut good = end_of(stories::zombie(&world, false)).await;
    good &= end_of(stories::zombie(&world, true)).await;
    good &= end_of(stories::race(&world, false)).await;
    good &= end_of(stories::race(&world, true)).await;
    good &= end_of(stories::kill_nine(&mut world)).await;
    good &= end_of(stories::redo(&world)).await;
    heading(if good {
        "Every story ended as it should."
    } else {
        "Not every story ended as it should: see the lines with ✗."
    });
    let killed = world.fencepost.process.kill().await;
    killed.context("cannot kill fencepost")?;
    Ok(good)
}

/// Plays a story. One that fails counts as not ended as it should; the others are still played.
async fn end_of(story: impl Future<Output = anyhow::Result<bool>>) -> bool {
    let why = match tokio::time::timeout(STORY, story).await {
        Ok(Ok(good)) => return good,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("no end within {STORY:?}"),
    };
    verdict(false, "the story to come to its end", &why)
}

/// The configuration of the demo's fencepost, as a readable file.
fn write_config(dir: &Path, upstream: &str) -> anyhow::Result<PathBuf> {
    let store = format!("sqlite:{}", dir.join("fencepost.db").display());
    // A JSON string is a YAML string, whatever the directory is called.
    let store = serde_json::to_string(&store).context("cannot quote the store's URL")?;
    let text = format!(
        r#"# The demo's fencepost: two routes, and times short enough to watch.
listen: 127.0.0.1:0
upstream:
  url: {upstream}
  timeout: 3s
store:
  url: {store}
  # The directory may be in memory, and is removed at the end.
  volatile: true
barrier:
  wait: 10s
  settle: 3s
admin:
  listen: 127.0.0.1:0
log:
  format: json
  level: info
routes:
  - path: /accounts/{{id}}/{{*rest}}
    resource: "account:{{id}}"
    # A charge that is repeated, by any holder, gets the answer of the first one.
    outcome:
      body: 1KiB
  - path: /orders/{{id}}
    resource: "order:{{id}}"
"#
    );
    let path = dir.join("fencepost.yaml");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
