//! Other programs that change the file under a running proxy, through `SQLite` itself: a backup
//! that is restored into it, and what does no harm.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::lost::{self, attributes, refused_for_lost_commits};
use super::{
    HEARTBEATS, UNFIT_LINE, beside, delete_the_log, gives_up, refuses, says_why, tokens,
    until_a_heartbeat, until_it_refuses, with_5,
};
use crate::support::store::tool;
use crate::support::{Config, Proxy, Store, or_return, put, return_unless};

/// `SQLite`'s backup API: copies the database in one file into another one, as `.backup` and
/// `.restore` of the shell do. Returns false, and says so, without Python.
fn copied(from: &Path, to: &Path) -> bool {
    let Some(python) = tool("python3") else {
        return false;
    };
    let copy =
        "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))";
    let mut python = Command::new(python);
    let output = python.args(["-c", copy]).args([from, to]).output();
    let output = output.expect("Python runs");
    assert!(output.status.success(), "{output:?}");
    true
}

async fn accepts(proxy: &Proxy, token: u64) {
    proxy.forward(put("/orders/7").token(token)).await;
}

/// Restores a backup of the store at 41 once it is at 42, and asks the running proxy.
async fn restored_at_42(store: &Store) -> Option<(Config, Proxy)> {
    let (upstream, config, proxy) = with_5(store, "{}").await;
    accepts(&proxy, 41).await;
    let backup = beside(&store.path(), ".backup");
    if !copied(&store.path(), &backup) {
        return None;
    }
    accepts(&proxy, 42).await;
    until_a_heartbeat(store).await;
    copied(&backup, &store.path());
    // The next token that the store has to decide, of this resource and of any other one.
    gives_up(&proxy, 42, &["marks.db was overwritten"]).await;
    for path in ["/orders/7", "/orders/8"] {
        let request = put(path).token(44);
        proxy.refuse(request, 503, "store-unavailable").await;
    }
    let line = proxy.log_of("message", UNFIT_LINE).await;
    assert_eq!(line["level"], "ERROR");
    let error = line["error"].as_str().expect("a text");
    assert!(error.contains("a backup"), "{error}");
    assert_eq!(tokens(&upstream), [5, 41, 42]);
    Some((config, proxy))
}

async fn ended(mut proxy: Proxy, stopped: bool) {
    if stopped {
        proxy.stop().await;
    } else {
        proxy.kill9();
    }
}

/// Nor by the next start: the marks are gone from the file, so its attribute has to say so.
#[tokio::test]
async fn a_backup_that_is_restored_into_the_live_file_is_not_believed() {
    for stopped in [true, false] {
        let store = Store::sqlite();
        let (config, proxy) = or_return!(restored_at_42(&store).await);
        assert_eq!(proxy.ask("/livez").await.status(), 200);
        ended(proxy, stopped).await;
        return_unless!(attributes(&store));
        for command in ["serve", "migrate"] {
            refused_for_lost_commits(&config, &[command]).await;
        }
        lost::accepts(&config, &[]).await;
        let proxy = Proxy::start(&config).await;
        proxy.stale(put("/orders/7").token(40)).await;
    }
}

/// Found by the heartbeat, where no request asks the store.
#[tokio::test]
async fn a_restored_backup_ends_an_idle_proxys_lease() {
    let store = Store::sqlite();
    let (_upstream, _, proxy) = with_5(&store, "{}").await;
    let backup = beside(&store.path(), ".backup");
    return_unless!(copied(&store.path(), &backup));
    accepts(&proxy, 6).await;
    until_a_heartbeat(&store).await;
    copied(&backup, &store.path());
    proxy.until_none("fencepost_lease_remaining_seconds").await;
    refuses(&proxy, 6).await;
}

fn copies(options: &[&str], from: &Path, to: &Path) {
    let copied = Command::new("cp").args(options).args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

/// The attribute that a start judges the file by.
fn note(store: &Store) -> Vec<u8> {
    let mut text = vec![0; 40];
    let length = rustix::fs::getxattr(store.path(), "user.fencepost.heartbeats", &mut text[..]);
    text.truncate(length.expect("an attribute"));
    text
}

/// Copied over the file byte by byte, past `SQLite`: after its log was deleted or not, with the
/// attributes of the copy or without, which `cp` sets at its end.
#[tokio::test]
async fn a_copy_that_is_written_over_the_live_file_is_not_believed() {
    const ATTRIBUTES: &[&str] = &["--attributes-only", "--preserve=xattr"];
    for (stopped, log_stays, with_attributes) in [
        (true, true, false),
        (false, true, false),
        (true, false, false),
        (true, true, true),
        (false, true, true),
        (true, false, true),
    ] {
        let store = Store::sqlite();
        return_unless!(attributes(&store));
        let (_upstream, config, mut proxy) = with_5(&store, "{}").await;
        proxy.stop().await;
        let backup = beside(&store.path(), ".backup");
        copies(&["-a"], &store.path(), &backup);
        for token in [6, 7] {
            proxy = Proxy::start(&config).await;
            accepts(&proxy, token).await;
            until_a_heartbeat(&store).await;
            if token == 6 {
                proxy.stop().await;
            }
        }
        if !log_stays {
            for companion in ["-wal", "-shm"] {
                std::fs::remove_file(beside(&store.path(), companion)).expect("it is there");
            }
        }
        if with_attributes {
            copies(ATTRIBUTES, &backup, &store.path());
        }
        std::fs::copy(&backup, store.path()).expect("a copy");
        until_it_refuses(&proxy, 7).await;
        if log_stays {
            says_why(&proxy, &["marks.db was overwritten"]).await;
        }
        if with_attributes {
            // Of a copy that ends only now.
            let raised = note(&store);
            copies(ATTRIBUTES, &backup, &store.path());
            let mut looks = 0..100;
            while note(&store) != raised && looks.next().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        ended(proxy, stopped).await;
        if log_stays {
            // Nor is the log put into the copy: that would be neither of the two.
            let why = "is not the file that the log beside it";
            for command in [&["serve"][..], &["migrate", "--accept-lost-marks"]] {
                Proxy::fails_for(&config, command, &[why]).await;
            }
            delete_the_log(&store.path());
        }
        refused_for_lost_commits(&config, &["serve"]).await;
    }
}

/// The file has more without its log than fencepost has put there.
#[tokio::test]
async fn a_copy_from_before_another_programs_checkpoint_is_not_believed() {
    let store = Store::sqlite();
    let (_upstream, _, proxy) = with_5(&store, "{}").await;
    let backup = beside(&store.path(), ".backup");
    std::fs::copy(store.path(), &backup).expect("a copy");
    accepts(&proxy, 6).await;
    until_a_heartbeat(&store).await;
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    for _ in 0..2 {
        // The second one begins after the first was noted.
        until_a_heartbeat(&store).await;
    }
    std::fs::copy(&backup, store.path()).expect("a copy");
    until_it_refuses(&proxy, 6).await;
    says_why(&proxy, &["marks.db was overwritten"]).await;
}

/// Another store, which has more commits and fewer heartbeats.
#[tokio::test]
async fn another_store_that_is_restored_into_the_live_file_is_not_believed() {
    let (store, other) = (Store::sqlite(), Store::sqlite());
    let (_upstream, _, proxy) = with_5(&store, "{}").await;
    let (_others, _, mut busy) = with_5(&other, "{}").await;
    for token in 6..40 {
        accepts(&busy, token).await;
    }
    busy.stop().await;
    while store.number(HEARTBEATS).await <= other.number(HEARTBEATS).await {
        until_a_heartbeat(&store).await;
    }
    if copied(&other.path(), &store.path()) {
        refuses(&proxy, 50).await;
        until_it_refuses(&proxy, 5).await;
    }
}

#[tokio::test]
async fn backups_shells_and_checkpoints_make_no_store_unfit() {
    let store = Store::sqlite();
    let (upstream, config, mut proxy) = with_5(&store, "{}").await;
    let vacuumed = beside(&store.path(), ".vacuumed");
    let into = format!("VACUUM INTO '{}'", vacuumed.display());
    let mut token = 5;
    for statement in [
        "SELECT * FROM marks",
        "PRAGMA integrity_check",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA wal_checkpoint(RESTART)",
        // A copy without any change, and tables of a tool that replicates.
        "VACUUM",
        "CREATE TABLE _theirs (id INTEGER); INSERT INTO _theirs VALUES (1)",
        &into,
    ] {
        store.execute(statement).await;
        token += 1;
        accepts(&proxy, token).await;
    }
    let backup = beside(&store.path(), ".backup");
    if copied(&store.path(), &backup) {
        // Nothing was committed in between but heartbeats; then it is this very database.
        accepts(&proxy, token).await;
    }
    proxy.stop().await;
    let proxy = Proxy::start(&config).await;
    proxy.stale(put("/orders/7").token(token - 1)).await;
    assert_eq!(upstream.tokens("order:7").last(), Some(&token));
}
