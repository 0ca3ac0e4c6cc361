//! Commits that a file has lost: with a log that was deleted, or to an older copy.

use std::path::Path;

use rustix::fs::XattrFlags;

use super::{at, beside, delete_the_log, until_a_heartbeat, with_5};
use crate::support::skip::{is_skipped, lacks};
use crate::support::{Config, Proxy, Store, Upstream, or_return, put, return_unless};

const ACCEPT: [&str; 2] = ["migrate", "--accept-lost-marks"];

/// Terms that are soon over: the way out waits for them.
const SHORT: &str = "{ upstream: { undelivered: 100ms }, store: { lease: 1s, timeout: 500ms }, \
                     barrier: { settle: 100ms } }";

/// Returns whether files here have attributes; says so if not.
pub(super) fn attributes(store: &Store) -> bool {
    let path = store.path();
    let dir = path.parent().expect("a directory");
    let set = || rustix::fs::setxattr(dir, "user.fencepost.test", b"1", XattrFlags::empty());
    let possible = !is_skipped("xattr") && set().is_ok();
    if !possible {
        lacks("xattr");
    }
    possible
}

pub(super) async fn refused_for_lost_commits(config: &Config, arguments: &[&str]) {
    let why = "has lost commits that were on the disk";
    Proxy::fails_for(config, arguments, &[why]).await;
}

/// A store of attributes, and the configuration of a proxy that has let 5 in and has stopped.
async fn stopped_with_5() -> Option<(Upstream, Store, Config)> {
    let store = Store::sqlite();
    if !attributes(&store) {
        return None;
    }
    let (upstream, config, mut proxy) = with_5(&store, "{}").await;
    proxy.stop().await;
    Some((upstream, store, config))
}

/// The file is accepted as it is, soon, and these are said of it.
pub(super) async fn accepts(config: &Config, told: &[&str]) {
    let (status, said) = Proxy::run_with(&config.clone().with(SHORT), &ACCEPT).await;
    let all = told.iter().all(|told| said.contains(told));
    assert!(status.success() && all, "{said}");
}

async fn refuses_4_as_stale(config: &Config) {
    let proxy = Proxy::start(config).await;
    proxy.stale(put("/orders/7").token(4)).await;
}

#[tokio::test]
async fn a_log_that_is_lost_after_a_crash_is_missed() {
    let (_upstream, store, config) = or_return!(stopped_with_5().await);
    let log = beside(&store.path(), "-wal");
    assert!(!log.exists(), "after a stop the file has everything");
    let mut proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/7").token(50)).await;
    proxy.kill9();
    // Under another name of the file there is no log: it goes by the name that was opened.
    let alias = store.path().with_file_name("alias.db");
    std::fs::hard_link(store.path(), &alias).expect("one file system");
    refused_for_lost_commits(&at(config.clone(), &alias), &["serve"]).await;
    std::fs::remove_file(&alias).expect("it is ours");
    delete_the_log(&store.path());
    for command in ["serve", "migrate"] {
        refused_for_lost_commits(&config, &[command]).await;
    }

    // Only an operator can say that nobody is left whom the lost marks would refuse. But with them
    // went epochs: until what they stood for has settled, nothing changes.
    Proxy::interrupted_with(&config, &ACCEPT, "Waiting until what they may have left").await;
    refused_for_lost_commits(&config, &["serve"]).await;
    accepts(&config, &["accepted as they are"]).await;
    refuses_4_as_stale(&config).await;
}

#[tokio::test]
async fn a_file_that_was_emptied_is_taken_as_it_is_by_one_command() {
    let (_upstream, store, config) = or_return!(stopped_with_5().await);
    write(&store.path(), b"");
    refused_for_lost_commits(&config, &["serve"]).await;
    let accepted = "accepted as they are";
    accepts(&config, &["Waiting until", accepted, "created a new store"]).await;
    let proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/7").token(4)).await;
}

#[tokio::test]
async fn an_older_copy_that_is_put_into_the_file_is_noticed() {
    let (_upstream, store, config) = or_return!(stopped_with_5().await);
    let copy = read(&store.path());
    Proxy::start(&config).await.stop().await;
    let latest = read(&store.path());
    write(&store.path(), &copy);
    refused_for_lost_commits(&config, &["serve"]).await;
    write(&store.path(), &latest);
    refuses_4_as_stale(&config).await;
}

fn read(file: &Path) -> Vec<u8> {
    std::fs::read(file).expect("it is there")
}

fn write(file: &Path, content: &[u8]) {
    std::fs::write(file, content).expect("it can be written");
}

/// `SQLite` reads a log with whatever file lies beside it.
#[tokio::test]
async fn an_older_copy_beside_the_log_of_a_crash_is_not_read_with_it() {
    let (_other, other, _) = or_return!(stopped_with_5().await);
    let (_upstream, store, config) = or_return!(stopped_with_5().await);
    let (file, log) = (store.path(), beside(&store.path(), "-wal"));
    let older = read(&file);
    let mut proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/7").token(50)).await;
    proxy.stop().await;
    let mut proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/8").token(1)).await;
    proxy.kill9();
    let (latest, logged) = (read(&file), read(&log));
    for wrong in [&older, &read(&other.path())] {
        write(&file, wrong);
        for arguments in [&["serve"][..], &ACCEPT] {
            let why = "is not the file that the log beside it";
            Proxy::fails_for(&config, arguments, &[why]).await;
        }
        assert_eq!((read(&file), read(&log)), (wrong.clone(), logged.clone()));
    }
    // Without the log it is an older copy.
    std::fs::remove_file(&log).expect("it can be deleted");
    write(&file, &older);
    refused_for_lost_commits(&config, &["serve"]).await;
    write(&file, &latest);
    write(&log, &logged);
    let proxy = Proxy::start(&config).await;
    proxy.stale(put("/orders/7").token(49)).await;
}

#[tokio::test]
async fn another_store_that_is_put_into_the_file_is_not_taken_for_the_one_that_was_there() {
    let (_upstream, store, config) = or_return!(stopped_with_5().await);
    let (_other, other, others) = or_return!(stopped_with_5().await);
    // It has more heartbeats.
    for _ in 0..2 {
        Proxy::start(&others).await.stop().await;
    }
    std::fs::copy(other.path(), store.path()).expect("it can be copied");
    Proxy::fails_for(&config, &["serve"], &["is another store now"]).await;
    accepts(&config, &[]).await;
    refuses_4_as_stale(&config).await;
}

/// A shell that is the last to close the file copies the whole log into it, and deletes the log.
#[tokio::test]
async fn a_log_that_a_shell_has_copied_is_not_missed() {
    let store = Store::sqlite();
    let (_upstream, config, mut proxy) = with_5(&store, "{}").await;
    proxy.kill9();
    store.execute("SELECT * FROM marks").await;
    assert!(!beside(&store.path(), "-wal").exists());
    refuses_4_as_stale(&config).await;
}

/// The database's counts are in the file then, so only a heartbeat after it is missed with the
/// log.
#[tokio::test]
async fn a_log_is_missed_after_another_program_has_copied_what_was_before() {
    let store = Store::sqlite();
    return_unless!(attributes(&store));
    let (_upstream, config, mut proxy) = with_5(&store, "{}").await;
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    proxy.forward(put("/orders/7").token(6)).await;
    until_a_heartbeat(&store).await;
    proxy.kill9();
    delete_the_log(&store.path());
    refused_for_lost_commits(&config, &["serve"]).await;
}
