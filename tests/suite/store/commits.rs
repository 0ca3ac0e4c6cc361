//! The commits that a token costs the store. Counts, never times.

use crate::support::postgres::Cluster;
use crate::support::store::has_postgres;
use crate::support::{Proxy, Store, put};

/// How many tokens rise, one after the other.
const TOKENS: u64 = 200;

/// Renewals and looks at the others are rare, so that what is counted is the tokens'.
const QUIET: &str = "{ store: { lease: 10m }, barrier: { settle: 1s } }";

/// Each new token at a resource leaves the epoch of the one before it to be closed.
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
    if !has_postgres() {
        return;
    }
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

/// Counted in the log: the last frame of a commit has the size of the file, every other frame has
/// none.
#[tokio::test]
async fn a_rising_token_costs_one_commit_on_sqlite() {
    let store = Store::sqlite();
    let (_upstream, proxy) = Proxy::before(&store, QUIET).await;
    rise(&proxy, 1).await;
    let mut counted = 0;
    let mut log = WriteAheadLog::read(&store);
    for token in 1 + TOKENS..=2 * TOKENS {
        let order = format!("/orders/{}", token % 5);
        proxy.forward(put(&order).token(token)).await;
        let now = WriteAheadLog::read(&store);
        // From its start again, once it was copied into the file.
        let before = if now.salt == log.salt { log.commits } else { 0 };
        counted += now.commits - before;
        log = now;
    }
    assert_about_one_each(counted);
}

/// The header of `SQLite`'s write-ahead log
/// (<https://sqlite.org/fileformat2.html#walformat>).
struct WriteAheadLog {
    salt: [u8; 8],
    commits: u64,
}

impl WriteAheadLog {
    fn read(store: &Store) -> Self {
        let path = store.path().with_extension("db-wal");
        let log = std::fs::read(path).expect("it has a log");
        let salt: [u8; 8] = log[16..24].try_into().expect("eight bytes");
        let page = u32::from_be_bytes(log[8..12].try_into().expect("four bytes"));
        let page = usize::try_from(page).expect("a page fits");
        let frames = log[32..].chunks_exact(24 + page);
        // Frames from before the log began from its start have another salt.
        let commits = frames.filter(|frame| frame[8..16] == salt && frame[4..8] != [0; 4]);
        let commits = commits.count().try_into().expect("it fits");
        Self { salt, commits }
    }
}
