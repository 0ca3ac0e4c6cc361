//! The promises that only a file can break: who may have it, and what is no database.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fencepost::config::Create;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{Administration, Instances, Lane, MarkStore, StoreError, Terms};
use tempfile::TempDir;

use super::{
    Must, TIMEOUT, advance, ask, assert_unfit, batch, epochs_of, instance, mark_of, opening,
};
use crate::support::store::tool;
use crate::support::{eventually, or_return};

/// A directory, and the path of a store in it.
fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.db");
    (dir, path)
}

async fn open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, TIMEOUT, true, "test", Create::IfMissing).await
}

/// A child that another test starts holds a copy of the lock until it executes its program.
async fn opened(path: &Path) -> SqliteStore {
    eventually("the file is free", || async {
        let opened = open(path).await;
        if let Err(error) = &opened {
            assert!(error.to_string().contains("in use"), "{error}");
        }
        opened.ok()
    })
    .await
}

#[tokio::test]
async fn a_file_has_one_store_at_a_time() {
    let (dir, path) = place();
    let store = opened(&path).await;
    assert_unfit(open(&path).await, &["in use by another fencepost"]);
    // By another name, too.
    let [alias, hard] = ["alias.db", "hard.db"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink(&path, &alias).expect("a link");
    std::fs::hard_link(&path, &hard).expect("a link");
    for other in [alias, hard] {
        assert_unfit(open(&other).await, &["in use"]);
    }
    // The first one did not notice, and still has the lock against other processes.
    advance(&store, ask("a", 5)).await;
    assert_locked_for_others(&path);
    store.close().await;
    let closed = store.prepare().await;
    assert!(matches!(closed, Err(StoreError::Connection(_))));
    assert_eq!(mark_of(&opened(&path).await, "a").await, Some(5));
}

/// A process that gets the lock takes this one for ended, and its connections for closed.
#[tokio::test]
async fn a_file_that_was_disconnected_stays_locked_until_the_process_ends() {
    let (dir, path) = place();
    let store = opened(&path).await;
    store.disconnect().await;
    drop(store);
    let log = dir.path().join("marks.db-wal");
    assert!(!log.exists(), "the file has everything");
    assert_locked_for_others(&path);
}

/// Asserts that another process cannot lock the file.
fn assert_locked_for_others(path: &Path) {
    let mut flock = Command::new("flock");
    let taken = flock.arg("-n").arg(path).arg("true").status();
    assert!(!taken.expect("flock runs").success());
}

#[tokio::test]
async fn what_cannot_hold_marks_is_refused_with_a_reason() {
    let (dir, _) = place();
    let text = dir.path().join("text");
    let content = "this is no database, but long enough to be looked at";
    std::fs::write(&text, content).expect("a file");
    for (path, says) in [
        (dir.path().to_owned(), "is a directory"),
        (dir.path().join("none/marks.db"), "create it"),
        (text.clone(), "cannot be opened as a SQLite database"),
        (text.join("marks.db"), "Not a directory"),
    ] {
        assert_unfit(open(&path).await, &[says]);
    }
    // Nothing was made of the text, and the file is free again.
    assert_eq!(
        std::fs::read_to_string(&text).expect("it is there"),
        content
    );
}

#[tokio::test]
async fn a_path_is_a_path_whatever_it_looks_like() {
    let (dir, _) = place();
    let path = dir.path().join("file:marks.db?mode=memory&x=%41#y");
    let store = opened(&path).await;
    advance(&store, ask("a", 5)).await;
    store.close().await;
    assert!(path.metadata().expect("the file is there").len() > 0);
}

/// A caller hears of a timeout in time, and the work that runs on is whole.
#[tokio::test]
async fn a_timeout_leaves_no_half_work() {
    let (_dir, path) = place();
    let at_once = Duration::from_nanos(1);
    let store = SqliteStore::open(&path, at_once, true, "test", Create::IfMissing);
    let store = store.must().await;
    let asks: Vec<_> = (0..500).map(|n| opening(&format!("k{n}"), n, n)).collect();
    let late = store.advance(Lane::Main(0), batch(&asks)).await;
    if let Err(error) = late {
        assert!(matches!(error, StoreError::Timeout(_)), "{error}");
    }
    // Waits for the work at hand.
    store.close().await;
    let store = opened(&path).await;
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

/// While another program copies the log, nobody knows what the file has without it.
#[tokio::test]
async fn a_log_that_another_program_copies_is_not_taken_for_copied() {
    let python = or_return!(tool("python3"));
    let (_dir, path) = place();
    let terms = Terms::default();
    let store = opened(&path).await;
    store.join(instance(1), &terms).must().await;
    let mut python = Command::new(python);
    let python = python.args(["-c", COPIES]).arg(&path);
    let python = python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = python.spawn().expect("Python runs");
    let mut output = shell.stdout.take().expect("it is piped");
    output.read_exact(&mut [0; 7]).expect("it is locked");
    store.close().await;
    let store = opened(&path).await;
    store.join(instance(2), &terms).must().await;
    store.close().await;
    // Without a chance to copy the log as it closes.
    shell.kill().expect("it runs");
    shell.wait().expect("it has ended");
    assert_eq!(opened(&path).await.instances().must().await.len(), 2);
}
