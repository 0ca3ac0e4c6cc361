//! The commits and the row versions that a token costs the store. Counts, never times.

use crate::support::postgres::Cluster;
use crate::support::store::has_postgres;
use crate::support::{Proxy, Store, or_return, put, return_unless};

/// How many tokens rise, one after the other.
const TOKENS: u64 = 200;

/// Renewals and looks at the others are rare, so that what is counted is the tokens'.
const QUIET: &str = "{ store: { lease: 10m }, barrier: { settle: 1s } }";

/// Each new token at a resource leaves the epoch of the one before it without use.
async fn rise(proxy: &Proxy, from: u64) {
    for token in from..from + TOKENS {
        let order = format!("/orders/{}", token % 5);
        proxy.forward(put(&order).token(token)).await;
    }
}

fn assert_about_one_each(commits: u64) {
    assert!(commits >= TOKENS, "{commits} commits for {TOKENS} tokens");
    let most = TOKENS * 105 / 100;
    assert!(commits <= most, "{commits} commits for {TOKENS} tokens");
}

/// Counted by the transactions that write: nobody else uses this server.
#[tokio::test]
async fn a_rising_token_costs_one_commit_on_postgres() {
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let store = Store::on(&cluster).await;
    let (_upstream, proxy) = Proxy::before(&store, QUIET).await;
    rise(&proxy, 1).await;
    // The first transaction that is not decided yet: to ask for it takes no number.
    let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = store.number(next).await;
    rise(&proxy, 1 + TOKENS).await;
    let commits = store.number(next).await - before;
    assert_about_one_each(u64::try_from(commits).expect("it grows"));
}

/// The row is written when the resource is used, and never again: neither when its epoch is idle
/// nor at the stop.
#[tokio::test]
async fn a_resource_that_is_used_once_costs_one_row_version() {
    let store = or_return!(Store::postgres().await);
    let (_upstream, mut proxy) = Proxy::before(&store, "{}").await;
    for order in 0..50 {
        proxy
            .forward(put(&format!("/orders/{order}")).token(1))
            .await;
    }
    store.until(&store.open_epochs("true"), 0).await;
    proxy.stop().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND application_name LIKE 'fencepost%'";
    store.until(sessions, 0).await;
    // The server counts behind the commits, in the order in which sessions end.
    let counted = "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables \
        WHERE relname = 'marks'";
    store.execute("UPDATE marks SET era = 0").await;
    store.until(counted, 100).await;
}

/// Counted in the log: the last frame of a commit has the size of the file, every other frame has
/// none.
#[tokio::test]
async fn a_rising_token_costs_one_commit_on_sqlite() {
    let store = Store::sqlite();
    let (_upstream, proxy) = Proxy::before(&store, QUIET).await;
    rise(&proxy, 1).await;
    let mut counted = 0;
    let mut log = read_log(&store);
    for token in 1 + TOKENS..=2 * TOKENS {
        let order = format!("/orders/{}", token % 5);
        proxy.forward(put(&order).token(token)).await;
        let now = read_log(&store);
        // From its start again, once it was copied into the file.
        counted += now.1 - if now.0 == log.0 { log.1 } else { 0 };
        log = now;
    }
    assert_about_one_each(counted);
}

/// The salt in the header of `SQLite`'s write-ahead log
/// (<https://sqlite.org/fileformat2.html#walformat>), and the commits in it.
fn read_log(store: &Store) -> ([u8; 8], u64) {
    let path = store.path().with_extension("db-wal");
    let log = std::fs::read(path).expect("it has a log");
    let salt: [u8; 8] = log[16..24].try_into().expect("eight bytes");
    let page = u32::from_be_bytes(log[8..12].try_into().expect("four bytes"));
    let page = usize::try_from(page).expect("a page fits");
    let frames = log[32..].chunks_exact(24 + page);
    // Frames from before the log began from its start have another salt.
    let commits = frames.filter(|frame| frame[8..16] == salt && frame[4..8] != [0; 4]);
    (salt, commits.count() as u64)
}
