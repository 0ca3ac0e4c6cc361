//! The processes that come from the command, wherever they have moved to: they end with the hold.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{WRITE, attach, fenced, run_script, url};
use crate::support::process::Process;
use crate::support::{eventually, put};

/// The ids in the files of a directory.
fn ids(dir: &Path) -> Vec<i32> {
    let files = std::fs::read_dir(dir).expect("the directory").flatten();
    let read = |path| std::fs::read_to_string(path).expect("a file");
    let ids = files.map(|file| read(file.path()).trim().parse().expect("an id"));
    ids.collect()
}

/// A script that does something first, notes its id under a name, and writes for a long time.
fn writer(dir: &Path, name: &str, first: &str) -> String {
    let at = dir.join(name);
    let at = at.display();
    format!(
        "{first} echo $$ >{at}; for n in $(seq 500); do curl -s -o /dev/null -X PUT -d x \
         $FENCEPOST_URL/orders/8; sleep 0.02; done"
    )
}

/// The command itself does not heed SIGTERM either.
#[tokio::test]
async fn a_worker_that_has_left_the_group_ends_with_the_hold() {
    let (upstream, proxy) = fenced().await;
    let dir = TempDir::new().expect("a directory");
    let of = |name: &str, first: &str| writer(dir.path(), name, first);
    let script = format!(
        "setsid sh -c '{}' & timeout 1000 sh -c '{}' &
         setsid sh -c '{}' & (setsid -f sh -c '{}') &
         cd {}; until [ $(ls | wc -l) = 4 ]; do sleep 0.01; done
         echo $$ >itself; trap '' TERM; {WRITE}; sleep 300",
        of("session", ""),
        of("group", ""),
        of("deaf", "trap \"\" TERM;"),
        of("orphan", ""),
        dir.path().display()
    );
    proxy.forward(put("/orders/7").token(42)).await;
    let ran = run_script(&proxy, &["--token", "41", "--grace", "200ms"], &script).await;
    let written = upstream.count();
    ran.assert(75, "");
    let ids = ids(dir.path());
    assert_eq!(ids.len(), 5);
    for id in ids {
        let left = Path::new("/proc").join(id.to_string());
        assert!(!left.exists(), "{id} lives on: {}", ran.said);
    }
    assert_eq!(upstream.count(), written);
}

/// Its requests would reach the next holder's attach, if that has the same port.
#[tokio::test]
async fn what_the_command_leaves_behind_ends_with_it() {
    let (_upstream, proxy) = fenced().await;
    let dir = TempDir::new().expect("a directory");
    let script = format!(
        "setsid sh -c '{}' & until [ -e {} ]; do sleep 0.01; done; exit 3",
        writer(dir.path(), "left", ""),
        dir.path().join("left").display()
    );
    let ran = run_script(&proxy, &["--token", "41"], &script).await;
    ran.assert(3, "");
    let id = ids(dir.path())[0];
    let left = Path::new("/proc").join(id.to_string());
    assert!(!left.exists(), "{id} lives on: {}", ran.said);
}

/// As the first process of a container, it is the one that orphans come to.
#[tokio::test]
async fn an_orphan_of_the_command_is_reaped() {
    let (_upstream, proxy) = fenced().await;
    let dir = TempDir::new().expect("a directory");
    let at = dir.path().join("orphan");
    let script = format!(
        "sh -c 'sleep 300 & echo $! >{0}.new; mv {0}.new {0}'; exec sleep 300",
        at.display()
    );
    let arguments = ["--token", "41", "--", "sh", "-c", &script];
    let mut process = Process::start(&mut attach(&url(&proxy), &arguments));
    eventually("the orphan", || async { at.exists().then_some(()) }).await;
    let id = ids(dir.path())[0];
    let stat = format!("/proc/{id}/stat");
    let parent = || {
        let stat = std::fs::read_to_string(&stat).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.split(' ').nth(1)?.parse::<u32>().ok()
    };
    eventually("the orphan to come to attach", || async {
        (parent() == Some(process.id())).then_some(())
    })
    .await;
    let id = Pid::from_raw(id).expect("an id");
    kill_process(id, Signal::KILL).expect("it runs");
    eventually("the orphan to be reaped", || async {
        parent().is_none().then_some(())
    })
    .await;
    assert!(process.ended().is_none(), "the command goes on");
    process.signal(Signal::TERM);
    assert_eq!(process.exit().await.code(), Some(128 + 15));
}
