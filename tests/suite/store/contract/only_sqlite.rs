//! The promises that only a file can break: who may have it, and what is no database.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencepost::config::Create;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{Administration, Instances, Lane, MarkStore, StoreError, Terms};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    Home, Must, TIMEOUT, advance, ask, batch, epochs_of, instance, mark_of, opening, token,
};
use crate::support::or_return;
use crate::support::sql::{open_file, sqlite};
use crate::support::store::tool;

async fn refusal(path: impl AsRef<std::path::Path>) -> String {
    match SqliteStore::open(path, TIMEOUT, true, "test", Create::IfMissing).await {
        Err(StoreError::Unfit(why)) => why,
        Err(error) => panic!("not Unfit: {error}"),
        Ok(_) => panic!("it opened"),
    }
}

#[tokio::test]
async fn a_file_has_one_store_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.db");
    let store = opened(&path, true).await;
    assert!(refusal(&path).await.contains("in use by another fencepost"));
    // By another name, too.
    let alias = dir.path().join("alias.db");
    std::os::unix::fs::symlink(&path, &alias).expect("a link");
    assert!(refusal(&alias).await.contains("in use"));
    let hard = dir.path().join("hard.db");
    std::fs::hard_link(&path, &hard).expect("a link");
    assert!(refusal(&hard).await.contains("in use"));
    // The first one did not notice, and still has the lock against other processes.
    advance(&store, ask("a", 5)).await;
    assert_locked_for_others(&path);
    store.close().await;
    assert!(matches!(
        store.prepare().await,
        Err(StoreError::Connection(_))
    ));
    assert_eq!(mark_of(&reopened(&path).await, "a").await, Some(5));
}

/// A process that gets the lock takes this one for ended, and its connections for closed.
#[tokio::test]
async fn a_file_that_was_disconnected_stays_locked_until_the_process_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.db");
    let store = opened(&path, true).await;
    store.disconnect().await;
    drop(store);
    let log = dir.path().join("marks.db-wal");
    assert!(!log.exists(), "the file has everything");
    assert_locked_for_others(&path);
}

/// Asserts that another process cannot lock the file.
fn assert_locked_for_others(path: &std::path::Path) {
    let mut flock = Command::new("flock");
    let taken = flock.arg("-n").arg(path).arg("true").status();
    assert!(!taken.expect("flock runs").success());
}

async fn reopened(path: &std::path::Path) -> SqliteStore {
    opened(path, false).await
}

/// A child that another test starts holds a copy of the lock until it executes its program.
async fn opened(path: &std::path::Path, migrate: bool) -> SqliteStore {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        match SqliteStore::open(path, TIMEOUT, migrate, "test", Create::IfMissing).await {
            Ok(store) => return store,
            Err(error) => assert!(
                error.to_string().contains("in use") && tokio::time::Instant::now() < deadline,
                "{error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Another process that has the file: it locks as a fencepost does.
fn holder(path: &std::path::Path) -> Child {
    let mut child = Command::new("flock")
        .args(["--no-fork", "-w", "10"])
        .arg(path)
        .args(["sh", "-c", "echo held; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock runs");
    let mut said = [0; 4];
    let mut out = child.stdout.take().expect("it is piped");
    out.read_exact(&mut said).expect("it speaks");
    child
}

#[tokio::test]
async fn a_frozen_process_keeps_the_file_and_a_dead_one_has_lost_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.db");
    let store = SqliteStore::open(&path, TIMEOUT, true, "test", Create::IfMissing);
    store.must().await.close().await;
    let mut other = holder(&path);
    assert!(refusal(&path).await.contains("in use"));
    let pid = i32::try_from(other.id()).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a pid is positive");
    kill_process(pid, Signal::STOP).expect("it is ours");
    assert!(refusal(&path).await.contains("in use"));
    other.kill().expect("it is ours");
    other.wait().expect("it is ours");
    advance(&reopened(&path).await, ask("a", 5)).await;
}

#[tokio::test]
async fn what_cannot_hold_marks_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = dir.path().join("text");
    std::fs::write(
        &text,
        "this is no database, but long enough to be looked at",
    )
    .expect("a file");
    for (path, says) in [
        (dir.path().to_owned(), "is a directory"),
        (dir.path().join("none/marks.db"), "create it"),
        (text.clone(), "cannot be opened as a SQLite database"),
        (text.join("marks.db"), "Not a directory"),
    ] {
        let why = refusal(&path).await;
        assert!(why.contains(says), "{}: {why}", path.display());
    }
    // Nothing was made of the text, and the file is free again.
    let kept = std::fs::read_to_string(&text).expect("it is there");
    assert!(kept.starts_with("this is no database"));
}

#[tokio::test]
async fn a_path_is_a_path_whatever_it_looks_like() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file:marks.db?mode=memory&x=%41#y");
    let store = opened(&path, true).await;
    advance(&store, ask("a", 5)).await;
    store.close().await;
    assert!(path.metadata().expect("the file is there").len() > 0);
}

/// A shell that writes keeps the store out; when it is gone, the store goes on by itself.
#[tokio::test]
async fn a_shell_that_holds_the_write_lock_costs_errors_and_nothing_else() {
    let home = Home::sqlite();
    let Home::Sqlite(dir) = &home else { return };
    let store = home.open().await;
    advance(&*store, ask("a", 5)).await;
    let mut shell = open_file(&dir.path().join("marks.db")).await;
    sqlite(&mut shell, "BEGIN IMMEDIATE").await;
    let refused = store
        .advance(Lane::Main(0), batch(&[ask("a", 6)]))
        .await
        .expect_err("the file is locked");
    assert!(matches!(refused, StoreError::Statement(_)), "{refused}");
    sqlite(&mut shell, "ROLLBACK").await;
    assert_eq!(advance(&*store, ask("a", 7)).await.before, Some(token(5)));
}

/// A caller hears of a timeout in time, and the work that runs on is whole.
#[tokio::test]
async fn a_timeout_leaves_no_half_work() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.db");
    let store = SqliteStore::open(
        &path,
        Duration::from_nanos(1),
        true,
        "test",
        Create::IfMissing,
    )
    .must()
    .await;
    let asks: Vec<_> = (0..500).map(|n| opening(&format!("k{n}"), n, n)).collect();
    let late = store.advance(Lane::Main(0), batch(&asks)).await;
    if let Err(error) = late {
        assert!(matches!(error, StoreError::Timeout(_)), "{error}");
    }
    // Waits for the work at hand.
    store.close().await;
    let store = reopened(&path).await;
    let marks = store.list("", None, 1000).must().await.len();
    for ask in &asks[..marks.min(3)] {
        assert_eq!(epochs_of(&store, ask.resource.as_str()).await.len(), 1);
    }
    assert!(marks == 0 || marks == asks.len(), "{marks}");
}

/// Holds the file open, and the lock by which only one program copies the log at a time
/// (`WAL_CKPT_LOCK`, <https://sqlite.org/walformat.html>, section 2.3).
const COPIES: &str = "
import fcntl, sqlite3, sys
shell = sqlite3.connect(sys.argv[1])
shell.execute('SELECT count(*) FROM marks').fetchone()
index = open(sys.argv[1] + '-shm', 'r+b')
fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)
print('locked', flush=True)
sys.stdin.read()
";

/// Where another program is copying the log, nothing is known of what the file has without it.
#[tokio::test]
async fn a_log_that_another_program_copies_is_not_taken_for_copied() {
    let python = or_return!(tool("python3"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.db");
    let terms = Terms::default();
    let store = opened(&path, true).await;
    store.join(instance(1), &terms).must().await;
    let mut shell = Command::new(python)
        .args(["-c", COPIES])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python runs");
    let mut said = [0; 7];
    let mut output = shell.stdout.take().expect("it is piped");
    output.read_exact(&mut said).expect("it is locked");
    store.close().await;
    let store = reopened(&path).await;
    store.join(instance(2), &terms).must().await;
    store.close().await;
    // Without a chance to copy the log as it closes.
    shell.kill().expect("it runs");
    shell.wait().expect("it has ended");
    let store = reopened(&path).await;
    assert_eq!(store.instances().must().await.len(), 2);
}
