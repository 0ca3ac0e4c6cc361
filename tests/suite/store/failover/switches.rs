//! Failover to a synchronous standby loses no mark (G1, G3), orders no two requests otherwise (G2),
//! and costs no restart of any proxy; and of two servers that both take themselves for the primary,
//! one answers nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinHandle;

use crate::support::replication::{Commits, PostgresPair};
use crate::support::{
    Config, Must, Proxy, Step, Store, Upstream, all_forwarded, eventually, joined, or_return, put,
};

/// Resources, and clients for each.
const LOAD: (usize, usize) = (4, 2);

/// The highest token of each resource.
pub type Marks = HashMap<String, u64>;

/// The server's rows, as of one statement.
async fn marks(pair: &PostgresPair) -> Marks {
    let rows = sqlx::query_as("SELECT resource, token FROM marks");
    let rows: Vec<(String, i64)> = rows.fetch_all(&mut pair.shell().await).must().await;
    let unsigned = |(resource, token): (String, i64)| (resource, token.unsigned_abs());
    rows.into_iter().map(unsigned).collect()
}

/// The highest token of each resource that has arrived.
pub fn arrived(upstream: &Upstream) -> Marks {
    let mut newest = Marks::new();
    for arrival in upstream.arrivals() {
        if let (Some(resource), Some(token)) = (arrival.resource(), arrival.token()) {
            let known = newest.entry(resource.to_owned()).or_default();
            *known = token.max(*known);
        }
    }
    newest
}

#[track_caller]
fn assert_at_least(marks: &Marks, others: &Marks, what: &str) {
    for (resource, other) in others {
        let mark = marks.get(resource).copied().unwrap_or_default();
        assert!(
            mark >= *other,
            "{resource}: the mark is {mark}, {what} {other}"
        );
    }
}

/// Clients that go on until told to stop: rising tokens mostly, equal and older ones among them.
pub struct Load {
    stop: Arc<AtomicBool>,
    tokens: Arc<[AtomicU64]>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(proxies: &[&Proxy], seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tokens: Arc<[AtomicU64]> = (0..LOAD.0).map(|_| AtomicU64::new(0)).collect();
        let clients = (0..LOAD.0 * LOAD.1).map(|client| {
            let (stop, tokens) = (Arc::clone(&stop), Arc::clone(&tokens));
            let to = proxies[(client / LOAD.0) % proxies.len()].data();
            let mut random = StdRng::seed_from_u64(seed + client as u64);
            tokio::spawn(async move {
                let resource = client % LOAD.0;
                while !stop.load(Ordering::Relaxed) {
                    let newest = tokens[resource].load(Ordering::Relaxed);
                    let token = match random.random_range(0..10) {
                        0 => newest.saturating_sub(2).max(1),
                        1 | 2 => newest.max(1),
                        _ => tokens[resource].fetch_add(1, Ordering::Relaxed) + 1,
                    };
                    let request = put(&format!("/orders/{resource}")).token(token);
                    let answer = request.send(to).await;
                    // 502: admitted under a lease that had lapsed by the first write.
                    let known = [200, 412, 503].contains(&answer.status())
                        || (answer.status(), answer.outcome()) == (502, Some("outcome-unknown"));
                    assert!(known, "{}: {}", answer.status(), answer.text());
                    tokio::time::sleep(Duration::from_millis(random.random_range(5..40))).await;
                }
            })
        });
        let clients = clients.collect();
        Self {
            stop,
            tokens,
            clients,
        }
    }

    /// A token newer than any so far.
    fn next(&self, resource: usize) -> u64 {
        self.tokens[resource].fetch_add(1, Ordering::Relaxed) + 1
    }

    pub async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            joined(client).await;
        }
    }
}

/// Two kills in the short form; `FENCEPOST_LONG=1`: twenty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_killed_under_load_loses_no_mark() {
    let mut pair = or_return!(PostgresPair::start(Commits::WaitForStandby).await);
    let long = std::env::var_os("FENCEPOST_LONG").is_some_and(|value| value == "1");
    let seed = rand::random::<u32>().into();
    eprintln!("seed {seed}");
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::at(&pair.url())).with(
        "{ upstream: { undelivered: 500ms }, store: { lease: 3s, timeout: 2s }, \
            barrier: { wait: 5s, grace: 2s, settle: 500ms } }",
    );
    let mut proxies = [Proxy::start(&config).await, Proxy::start(&config).await];
    let load = Load::start(&[&proxies[0], &proxies[1]], seed);
    let mut before = Marks::new();
    for _kill in 0..if long { 20 } else { 2 } {
        upstream.reached(upstream.count() + 100).await;
        pair.kill_primary();
        pair.promote().await;
        // No commit is answered until this server has a standby of its own. So what the upstream
        // sees by now was durable before the kill, or never was.
        let marks = marks(&pair).await;
        let arrived = arrived(&upstream);
        assert_at_least(&marks, &arrived, "the upstream has seen");
        assert_at_least(&marks, &before, "before it was");
        before = marks;
        pair.rebuild().await;
        for proxy in &proxies {
            let newer = || async {
                let answer = proxy.send(put("/orders/0").token(load.next(0))).await;
                (answer.status() == 200).then_some(())
            };
            eventually("it goes on by itself", newer).await;
        }
    }
    load.end().await;
    let last = marks(&pair).await;
    assert_at_least(&last, &arrived(&upstream), "the upstream has seen");
    for proxy in &mut proxies {
        assert!(proxy.process().ended().is_none(), "no proxy was restarted");
        assert_eq!(
            proxy.count("fencepost_mark_regressions_total", &[]).await,
            0
        );
        let noticed = proxy.count("fencepost_store_errors_total", &[]).await;
        assert!(noticed > 0, "it did notice");
    }
    upstream.assert_no_overtaking();
}

/// The standby is promoted while the primary lives, cut off from it. Commits there wait for a
/// standby that will not come back: no renewal, so the lease ends; and the other side counts it out
/// before it lets a newer token pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_primaries_the_one_without_a_standby_forwards_nothing() {
    let mut pair = or_return!(PostgresPair::start(Commits::WaitForStandby).await);
    let upstream = Upstream::start().await;
    let settings = "{ upstream: { undelivered: 500ms }, store: { lease: 5s, timeout: 6s }, \
            barrier: { wait: 28s, grace: 300s, settle: 2s } }";
    let config = Config::new(&upstream, &Store::at(&pair.url())).with(settings);
    let a = Proxy::start(&config).await;
    upstream.on_token(41, [Step::Work(Duration::from_secs(1)), Step::ok()]);
    let at_work = a.start_request(put("/orders/7").token(41));
    upstream.reached(1).await;

    pair.promote().await;
    let _third = pair.third().await;
    let there = Store::at(&pair.url_of(pair.primary()));
    let b = Proxy::start(&Config::new(&upstream, &there).with(settings)).await;
    let newer = b.start_request(put("/orders/7").token(42));
    all_forwarded([newer, at_work]).await;
    for token in [41, 42, 43] {
        let request = put("/orders/7").token(token);
        a.refuse(request, 503, "store-unavailable").await;
    }
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    upstream.assert_no_overtaking();

    // Once the old one is gone, A finds the new one by itself.
    tokio::task::block_in_place(|| pair.standby().kill9());
    a.until_forwarded(put("/orders/7").token(43)).await;
    a.stale(put("/orders/7").token(42)).await;
}

/// An old primary that comes back takes itself for one still, and a URL may name it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_comes_back_lets_nothing_pass() {
    let mut pair = or_return!(PostgresPair::start(Commits::WaitForStandby).await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::at(&pair.url()))
        .with("{ store: { lease: 5s, timeout: 6s }, barrier: { settle: 500ms } }")
        .with("upstream: { undelivered: 500ms }");
    let a = Proxy::start(&config).await;
    a.forward(put("/orders/7").token(41)).await;
    pair.kill_primary();
    pair.promote().await;
    let _third = pair.third().await;
    a.until_forwarded(put("/orders/7").token(42)).await;
    pair.start_standby_alone();
    let (url, first) = (pair.url(), pair.url_of(pair.standby()));
    let (first, _) = first.split_once("/t").expect("a database");
    assert!(url.starts_with(first), "{first} {url}");
    let c = Proxy::start_unready(&config).await;
    for token in [41, 42, 43] {
        let request = put("/orders/7").token(token);
        c.refuse(request, 503, "store-unavailable").await;
    }
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    a.forward(put("/orders/7").token(43)).await;
    tokio::task::block_in_place(|| pair.standby().kill9());
    c.until_forwarded(put("/orders/7").token(44)).await;
    upstream.assert_no_overtaking();
}
