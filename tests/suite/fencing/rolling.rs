//! Rolling restarts of two proxies under load: nobody who tries again is kept out, and nothing
//! overtakes. `settle` is longer than the test, so that a client that waits for it never gets
//! through.
//!
//! `FENCEPOST_LONG=1` runs a hundred restarts, and then holds the longest wait against the clock,
//! which on a crowded machine would measure the crowd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::postgres::free_port;
use crate::support::store::NOT_SETTLED;
use crate::support::wait::deadline;
use crate::support::{Config, Proxy, Step, Store, Upstream, joined, or_return, put};

const CLIENTS: u64 = 12;
const RESOURCES: usize = 4;
/// Between two attempts of a client that was refused.
const AGAIN: Duration = Duration::from_millis(5);
/// The longest that a client may take to get through, in the long form.
const BOUND: Duration = Duration::from_secs(1);

/// The state that the clients share.
struct RollingClients {
    /// Where the proxies are, those that have gone included.
    doors: [SocketAddr; 2],
    newest: [AtomicU64; RESOURCES],
    over: AtomicBool,
}

impl RollingClients {
    /// Now and then a new grant, else more work under the newest one: writes, and tries again until
    /// it is done or superseded. Returns how much was done, and the longest time that it took to get
    /// through.
    async fn client(&self) -> (usize, Duration) {
        let (mut forwarded, mut longest) = (0, Duration::ZERO);
        while !self.over.load(Ordering::Relaxed) {
            let resource = rand::random_range(0..RESOURCES);
            let grant = u64::from(rand::random_range(0..10) == 0);
            let token = self.newest[resource].fetch_add(grant, Ordering::Relaxed) + grant;
            let request = put(&format!("/orders/{resource}")).token(token);
            let (mut door, began) = (rand::random_range(0..2), Instant::now());
            let status = loop {
                assert!(began.elapsed() < deadline(), "order:{resource}, {token}");
                // A connection that is refused or closed without an answer is a proxy that stops.
                if let Ok(answer) = request.attempt(self.doors[door]).await {
                    if answer.status() != 503 {
                        break answer.status();
                    }
                    assert_ne!(answer.outcome(), None, "the upstream never says so");
                }
                door = 1 - door;
                tokio::time::sleep(AGAIN).await;
            };
            assert!([200, 412].contains(&status), "{status}");
            forwarded += usize::from(status == 200);
            longest = longest.max(began.elapsed());
        }
        (forwarded, longest)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_keep_nobody_out() {
    let long = std::env::var_os("FENCEPOST_LONG").is_some_and(|value| value == "1");
    let restarts = if long { 100 } else { 10 };
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    upstream.otherwise(|_| {
        let work = Duration::from_millis(rand::random_range(0..4));
        vec![Step::Work(work), Step::ok()]
    });
    let config = Config::new(&upstream, &store)
        .with("{ store: { lease: 300s }, barrier: { wait: 25s, grace: 300s, settle: 300s } }");
    // Ports that nobody else is handed while nobody listens there.
    let configs = [free_port(), free_port()]
        .map(|port| config.clone().with(&format!("listen: '127.0.0.1:{port}'")));
    let [a, b] = &configs;
    let mut proxies = [Proxy::start(a).await, Proxy::start(b).await];
    let field = Arc::new(RollingClients {
        doors: [proxies[0].data(), proxies[1].data()],
        newest: [const { AtomicU64::new(1) }; RESOURCES],
        over: AtomicBool::new(false),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let field = Arc::clone(&field);
            tokio::spawn(async move { field.client().await })
        })
        .collect();
    for restart in 0..restarts {
        let at = restart % 2;
        // Load on both before each stop.
        upstream.reached(upstream.count() + 100).await;
        proxies[at].stop().await;
        proxies[at] = Proxy::start(&configs[at]).await;
        let gone = clients.iter().find(|client| client.is_finished());
        assert!(gone.is_none(), "a client has given up: {gone:?}");
    }
    field.over.store(true, Ordering::Relaxed);
    let (mut forwarded, mut longest) = (0, Duration::ZERO);
    for client in clients {
        let (done, time) = joined(client).await;
        (forwarded, longest) = (forwarded + done, longest.max(time));
    }
    eprintln!("{restarts} restarts: {forwarded} forwarded, the longest in {longest:?}");
    upstream.assert_no_overtaking();
    assert!(forwarded >= restarts * 100, "there was load");
    for resource in 0..RESOURCES {
        let mut tokens = upstream.tokens(&format!("order:{resource}"));
        tokens.dedup();
        assert!(tokens.len() > restarts, "few tokens: {tokens:?}");
    }
    assert_eq!(store.number(NOT_SETTLED).await, 2, "the stopped have left");
    if long {
        assert!(longest < BOUND, "kept out for {longest:?}");
    }
}
