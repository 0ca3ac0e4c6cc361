//! The file of an embedded store under a running proxy: moved, deleted, replaced, or not there at a
//! start. No matter what happens to it, no two proxies ever accept tokens for one resource.

mod lost;
mod paths;
mod restored;
mod volatile;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sqlx::Connection as _;

use crate::support::sql::{open_file, sqlite};
use crate::support::store::quick_dir;
use crate::support::upstream::Arrival;
use crate::support::{Config, Must, Proxy, Store, Upstream, eventually, over_both_stores, put};

/// The lease of nobody lapses by itself within a test, and nothing settles.
const PATIENT: &str = "{ store: { lease: 200s }, barrier: { wait: 200ms, settle: 300s }, \
    body: { buffer: 1KiB } }";

/// The store is at this path.
fn at(config: Config, path: &Path) -> Config {
    let url = format!("store: {{ url: 'sqlite:{}' }}", path.display());
    config.with(&url)
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Moves the file, and what `SQLite` keeps beside it, if these are there.
fn move_all(from: &Path, to: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let from = beside(from, suffix);
        if from.exists() {
            std::fs::rename(from, beside(to, suffix)).expect("it can be moved");
        }
    }
}

/// Deletes what `SQLite` keeps beside the file.
fn delete_the_log(file: &Path) {
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(beside(file, suffix)).expect("it is left");
    }
}

async fn refuses(proxy: &Proxy, token: u64) {
    let answer = proxy.send(put("/orders/7").token(token)).await;
    answer.assert_problem(503, "store-unavailable");
}

/// Waits until `/readyz` has a reason, which has to say all of this.
async fn says_why(proxy: &Proxy, says: &[&str]) {
    let reason = eventually("a reason in /readyz", || async {
        let said = proxy.ask("/readyz").await.json();
        Some(said["store_error"].as_str()?.to_owned())
    });
    let reason = reason.await;
    assert!(says.iter().all(|word| reason.contains(word)), "{reason}");
}

/// The file is given up: requests that ask the store are refused from the first one on, and soon
/// those of this token, which memory could answer. It says why.
async fn gives_up(proxy: &Proxy, token: u64, says: &[&str]) {
    refuses(proxy, token + 1).await;
    until_it_refuses(proxy, token).await;
    says_why(proxy, says).await;
}

/// Until an equal token, which memory could answer for, is refused. One that is under way when the
/// file is given up is cut, and its answer may be too.
async fn until_it_refuses(proxy: &Proxy, token: u64) {
    eventually("the equal token is refused", || async {
        let answer = put("/orders/7").token(token).attempt(proxy.data()).await;
        (answer.ok()?.status() == 503).then_some(())
    })
    .await;
}

/// The tokens that came to the upstream, equal ones in a row as one: until the move is noticed,
/// memory answers for some.
fn tokens(upstream: &Upstream) -> Vec<u64> {
    let mut tokens = upstream.tokens("order:7");
    tokens.dedup();
    tokens
}

/// A proxy on a file, with 5 accepted and its epoch open.
async fn with_5(store: &Store, more: &str) -> (Upstream, Config, Proxy) {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, store).with(PATIENT).with(more);
    let proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/7").token(5)).await;
    (upstream, config, proxy)
}

const UNFIT: &[(&str, &str)] = &[("kind", "unfit")];
const UNFIT_LINE: &str = "the store is unfit for the rest of this run";

/// Counted in the file: a run notices by it that the file was overwritten, a start that its log is
/// missing.
const HEARTBEATS: &str = "PRAGMA user_version";

/// Leaves nothing open: who closes a file last deletes its log.
async fn until_a_heartbeat(store: &Store) {
    let mut shell = store.file().await;
    let mut before = None;
    loop {
        let heartbeats = sqlx::query_scalar(HEARTBEATS).fetch_one(&mut shell);
        let heartbeats: i64 = heartbeats.must().await;
        if *before.get_or_insert(heartbeats) != heartbeats {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    shell.close().must().await;
}

#[tokio::test]
async fn a_file_that_was_moved_is_given_up_before_another_proxy_serves_its_path() {
    let (store, elsewhere) = (Store::sqlite(), quick_dir());
    let (upstream, config, mut first) =
        with_5(&store, "admin: { ready_follows_store: true }").await;
    let upload = put("/orders/9").token(5).header("Content-Length", "40000");
    let mut under_way = first.begin(&upload, "a".repeat(20_000).as_bytes()).await;
    let half = |all: &[Arrival]| all.get(1).is_some_and(|one| one.body.len() == 20_000);
    upstream.until("half of it", half).await;
    let moved = elsewhere.path().join("moved.db");
    move_all(&store.path(), &moved);

    gives_up(&first, 5, &["marks.db was moved away", "started again"]).await;
    let second = Proxy::start(&config).await;
    for token in [3, 4] {
        second.forward(put("/orders/7").token(token)).await;
        for token in [5, 6, 7] {
            refuses(&first, token).await;
        }
    }
    assert_eq!(tokens(&upstream), [5, 3, 4]);

    // It says so everywhere, and lives.
    let ready = first.ask("/readyz").await;
    assert_eq!(
        (ready.status(), &ready.json()["store"]),
        (503, &"down".into())
    );
    assert_eq!(first.ask("/livez").await.status(), 200);
    first.until_none("fencepost_lease_remaining_seconds").await;
    // What is under way gets not a byte more. The proxy may have cut it already.
    let _ = under_way.wire.send("b".repeat(20_000).as_bytes()).await;
    upstream.until("it is let go", |all| all[1].left).await;
    let seen = &upstream.arrivals()[1];
    assert_eq!((seen.whole, seen.body.len()), (false, 20_000));
    assert!(first.sum("fencepost_store_up", &[]).await == 0.0);
    assert!(first.sum("fencepost_store_errors_total", UNFIT).await > 0.0);
    assert_eq!(first.log_of("message", UNFIT_LINE).await["level"], "ERROR");

    // All that was accepted is in the file, wherever it is now, and the other store is whole.
    delete_the_log(&moved);
    first.stop().await;
    let mut direct = open_file(&moved).await;
    let mark = sqlx::query_scalar("SELECT token FROM marks").fetch_one(&mut direct);
    let mark: i64 = mark.must().await;
    assert_eq!(mark, 5);
    second.forward(put("/orders/7").token(8)).await;
    assert_eq!(second.token("order:7").await, Some(8));
}

#[tokio::test]
async fn a_file_that_comes_back_is_served_after_a_restart() {
    let (store, elsewhere) = (Store::sqlite(), quick_dir());
    let (upstream, config, mut proxy) = with_5(&store, "{}").await;
    let moved = elsewhere.path().join("moved.db");
    // Only the file: its log stays, and tells that there was one.
    std::fs::rename(store.path(), &moved).expect("it can be moved");
    until_it_refuses(&proxy, 5).await;
    Proxy::refused_for(&config, &["but its", "Put the file back"]).await;

    // Another store may have been there meanwhile: only a start may trust what is there now.
    std::fs::rename(&moved, store.path()).expect("it can be moved");
    let again = |errors| errors > 8.0;
    proxy
        .until_metric("fencepost_store_errors_total", UNFIT, again)
        .await;
    for token in [5, 6] {
        refuses(&proxy, token).await;
    }
    proxy.stop().await;
    let proxy = Proxy::start(&config).await;
    proxy.stale(put("/orders/7").token(4)).await;
    proxy.forward(put("/orders/7").token(5)).await;
    assert_eq!(tokens(&upstream), [5]);
}

#[tokio::test]
async fn a_file_that_was_deleted_is_not_made_again_in_silence() {
    let store = Store::sqlite();
    let (upstream, config, mut proxy) = with_5(&store, "{}").await;
    std::fs::remove_file(store.path()).expect("it is there");
    gives_up(&proxy, 5, &["was deleted"]).await;
    proxy.stop().await;

    Proxy::refused_for(&config, &["was moved or deleted"]).await;
    delete_the_log(&store.path());
    let never = config.clone().with("store: { create: never }");
    Proxy::refused_for(&never, &["store.create is `never`", "fencepost migrate"]).await;
    assert!(!store.path().exists(), "a refusal makes nothing");
    let proxy = Proxy::start(&config).await;
    let says = format!("created a new store at {}", store.path().display());
    let created = |line: &serde_json::Value| line["message"].to_string().contains(&says);
    let line = proxy.logged("the start", created).await;
    assert_eq!(line["level"], "WARN");
    assert_eq!(tokens(&upstream), [5]);
}

#[tokio::test]
async fn a_file_that_was_replaced_is_not_taken_for_the_old_one() {
    let (store, other) = (Store::sqlite(), Store::sqlite());
    let (upstream, _, proxy) = with_5(&store, "{}").await;
    let (_, _, mut second) = with_5(&other, "{}").await;
    second.stop().await;
    std::fs::rename(other.path(), store.path()).expect("one file system");
    gives_up(&proxy, 5, &["was replaced"]).await;
    assert_eq!(tokens(&upstream), [5]);
}

/// The latest commits are only in the log: they are saved while the program that has it open lives.
#[tokio::test]
async fn a_log_that_was_deleted_loses_no_mark() {
    let store = Store::sqlite();
    let (upstream, config, mut proxy) = with_5(&store, "{}").await;
    std::fs::remove_file(beside(&store.path(), "-wal")).expect("it is there");
    gives_up(&proxy, 5, &["marks.db-wal was"]).await;
    eventually("the mark in the file itself", || async {
        let file = std::fs::read(store.path()).ok()?;
        file.windows(7).any(|part| part == b"order:7").then_some(())
    })
    .await;
    proxy.kill9();
    let proxy = Proxy::start(&config).await;
    proxy.stale(put("/orders/7").token(4)).await;
    assert_eq!(tokens(&upstream), [5]);
}

#[tokio::test]
async fn equal_tokens_pass_only_while_the_store_takes_writes() {
    let store = Store::sqlite();
    let (upstream, _, proxy) = with_5(&store, "store: { lease: 1s }").await;
    proxy.forward(put("/orders/7").token(5)).await;
    // A shell that has begun a transaction keeps the heartbeat out.
    let mut shell = store.file().await;
    sqlite(&mut shell, "BEGIN IMMEDIATE").await;
    until_it_refuses(&proxy, 5).await;
    let refused_at = upstream.count();
    refuses(&proxy, 5).await;
    assert_eq!(upstream.count(), refused_at);
    sqlite(&mut shell, "ROLLBACK").await;
    proxy.until_forwarded(put("/orders/7").token(5)).await;
    // Not 7: a request that the end of the lease cut off settles there.
    proxy.forward(put("/orders/8").token(6)).await;
}

#[tokio::test]
async fn a_store_is_made_where_that_is_allowed_and_by_migrate() {
    let (store, upstream) = (Store::sqlite(), Upstream::start().await);
    let never = Config::new(&upstream, &store).with("store: { create: never }");
    // No file; an empty one; a database that is none of ours.
    Proxy::refused_for(&never, &["is not there, or empty"]).await;
    assert!(!store.path().exists());
    std::fs::write(store.path(), "").expect("it can be made");
    Proxy::refused_for(&never, &["is not there, or empty"]).await;
    std::fs::remove_file(store.path()).expect("it is there");
    store.execute("CREATE TABLE theirs (a)").await;
    Proxy::refused_for(&never, &["holds no store"]).await;
    std::fs::remove_file(store.path()).expect("it is there");
    // No directory, as where a volume is not mounted.
    let nowhere = store.path().with_file_name("none").join("marks.db");
    let unmounted = at(never.clone(), &nowhere);
    Proxy::refused_for(&unmounted, &["volume of the marks mounted"]).await;

    let (status, said) = Proxy::run_with(&never, &["migrate"]).await;
    assert!(
        status.success() && said.contains("created a new store at"),
        "{said}"
    );
    let mut proxy = Proxy::start(&never).await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.stop().await;
    let (status, said) = Proxy::run_with(&never, &["migrate"]).await;
    assert!(status.success() && !said.contains("created"), "{said}");
    Proxy::start(&never).await;
}

#[tokio::test]
async fn the_files_are_their_owners_alone_whatever_the_umask() {
    let (dir, upstream) = (quick_dir(), Upstream::start().await);
    let mut careless = Command::new("sh");
    careless.args(["-c", r#"umask 0 && exec "$0" "$@""#]);
    let file = dir.path().join("marks.db");
    let config = at(Config::new(&upstream, &Store::sqlite()), &file);
    let proxy = Proxy::start_under(&config, careless).await;
    proxy.forward(put("/orders/7").token(5)).await;
    for suffix in ["", "-wal", "-shm"] {
        let name = beside(&file, suffix);
        let file = std::fs::metadata(&name).expect("it is there");
        let mode = file.permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{}: {mode:o}", name.display());
    }
}

over_both_stores! {
    async fn a_start_says_what_it_found_and_the_gauge_counts(store: Store) {
        let (new, known) = if store.is_shared() {
            ("the namespace orders is new", "the namespace orders has 2 marks")
        } else {
            ("created a new store at ", ": 2 marks, latest change at 20")
        };
        let (_upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
        let says = |text: &'static str| move |line: &serde_json::Value| {
            line["message"].to_string().contains(text)
        };
        assert_eq!(proxy.logged("a new store", says(new)).await["level"], "WARN");
        assert!(proxy.sum("fencepost_marks", &[]).await == 0.0);
        for id in [7, 7, 8] {
            proxy.forward(put(&format!("/orders/{id}")).token(5)).await;
        }
        let are_two = |marks| (1.9..2.1).contains(&marks);
        if !store.is_shared() {
            proxy.until_metric("fencepost_marks", &[], are_two).await;
        }
        proxy.stop().await;
        let proxy = Proxy::start(&config).await;
        assert_eq!(proxy.logged("a known store", says(known)).await["level"], "INFO");
        assert!(!proxy.logs().iter().any(says(new)));
        proxy.until_metric("fencepost_marks", &[], are_two).await;
    }
}
