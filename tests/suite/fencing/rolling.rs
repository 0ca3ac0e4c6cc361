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

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

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
    /// Writes once, and tries again until it is done or superseded. Returns whether it is done.
    async fn write(&self, resource: usize, token: u64, mut door: usize) -> bool {
        let request = put(&format!("/orders/{resource}"))
            .token(token)
            .body("write");
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < deadline(), "order:{resource}, {token}");
            // A connection that is refused or closed without an answer is a proxy that stops.
            match request.attempt(self.doors[door]).await {
                Ok(answer) if answer.status() == 503 => {
                    assert_ne!(answer.outcome(), None, "the upstream never says so");
                }
                Ok(answer) => {
                    let forwarded = answer.status() == 200;
                    assert!(forwarded || answer.status() == 412, "{}", answer.text());
                    return forwarded;
                }
                Err(_) => {}
            }
            door = 1 - door;
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Now and then a new grant, else more work under the newest one. Returns how much was done,
    /// and the longest time that it took to get through.
    async fn client(&self, mut random: StdRng) -> (usize, Duration) {
        let (mut forwarded, mut longest) = (0, Duration::ZERO);
        while !self.over.load(Ordering::Relaxed) {
            let resource = random.random_range(0..RESOURCES);
            let newest = &self.newest[resource];
            let token = match random.random_range(0..10) {
                0 => newest.fetch_add(1, Ordering::Relaxed) + 1,
                _ => newest.load(Ordering::Relaxed),
            };
            let began = Instant::now();
            let done = self.write(resource, token, random.random_range(0..2)).await;
            forwarded += usize::from(done);
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
    let seed: u64 = rand::random();
    let upstream = Upstream::start().await;
    let mut moods = StdRng::seed_from_u64(seed);
    upstream.otherwise(move |_| {
        let work = Duration::from_millis(moods.random_range(0..4));
        vec![Step::Work(work), Step::ok()]
    });
    let config = Config::new(&upstream, &store)
        .with("{ store: { lease: 300s }, barrier: { wait: 25s, grace: 300s, settle: 300s } }");
    // Ports that nobody else is handed while nobody listens there.
    let configs = [free_port(), free_port()]
        .map(|port| config.clone().with(&format!("listen: '127.0.0.1:{port}'")));
    let mut proxies = [
        Proxy::start(&configs[0]).await,
        Proxy::start(&configs[1]).await,
    ];
    let field = Arc::new(RollingClients {
        doors: [proxies[0].data(), proxies[1].data()],
        newest: [const { AtomicU64::new(1) }; RESOURCES],
        over: AtomicBool::new(false),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let field = Arc::clone(&field);
            let random = StdRng::seed_from_u64(seed ^ (client << 32));
            tokio::spawn(async move { field.client(random).await })
        })
        .collect();
    for restart in 0..restarts {
        let at = restart % 2;
        // Load on both before each stop.
        upstream.reached(upstream.count() + 100).await;
        proxies[at].stop().await;
        proxies[at] = Proxy::start(&configs[at]).await;
        if let Some(client) = clients.iter().find(|client| client.is_finished()) {
            panic!("a client has given up: {client:?}, seed {seed}");
        }
    }
    field.over.store(true, Ordering::Relaxed);
    let (mut forwarded, mut longest) = (0, Duration::ZERO);
    for client in clients {
        let (done, time) = joined(client).await;
        (forwarded, longest) = (forwarded + done, longest.max(time));
    }
    eprintln!(
        "{restarts} restarts, seed {seed}: {forwarded} forwarded, the longest in {longest:?}"
    );
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
