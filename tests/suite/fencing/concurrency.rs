//! Many clients at once, some of which leave, and an upstream that stalls, breaks off and goes on.
//! Tokens still arrive in order, and work of different epochs never overlaps (guarantee G2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::support::{Config, Proxy, Step, Store, Upstream, fenced, or_return, put, soon};

const CLIENTS: u64 = 64;
const REQUESTS_EACH: u64 = 60;
const RESOURCES: usize = 4;

#[tokio::test]
async fn nothing_overtakes_among_64_clients() {
    let (upstream, proxy) = fenced(RUGGED).await;
    storm(&upstream, &[&proxy]).await;
}

#[tokio::test]
async fn nothing_overtakes_among_64_clients_of_two_proxies() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store).with(RUGGED);
    let proxies = [Proxy::start(&config).await, Proxy::start(&config).await];
    storm(&upstream, &[&proxies[0], &proxies[1]]).await;
}

/// The upstream works for at most 150 ms after its caller has given up on it; the rest of `settle`
/// is for a machine that is busy.
const RUGGED: &str =
    "{ upstream: { timeout: 150ms }, barrier: { wait: 2s, grace: 500ms, settle: 1s } }";

async fn storm(upstream: &Upstream, proxies: &[&Proxy]) {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut moods = StdRng::seed_from_u64(seed);
    upstream.otherwise(move |_| match moods.random_range(0..100) {
        0..60 => vec![Step::ok()],
        60..97 => vec![
            Step::Work(Duration::from_millis(moods.random_range(1..15))),
            Step::ok(),
        ],
        97..99 => vec![
            Step::Work(Duration::from_millis(moods.random_range(150..280))),
            Step::ok(),
        ],
        _ => vec![Step::Reset],
    });
    let newest: Arc<[AtomicU64; RESOURCES]> = Arc::default();
    let outcomes = Arc::new([const { AtomicUsize::new(0) }; 600]);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let to = proxies[usize::try_from(client).unwrap_or_default() % proxies.len()].data();
            let (newest, outcomes) = (Arc::clone(&newest), Arc::clone(&outcomes));
            let mut random = StdRng::seed_from_u64(seed ^ (client << 32));
            tokio::spawn(async move {
                for _ in 0..REQUESTS_EACH {
                    let resource = random.random_range(0..RESOURCES);
                    let token = match random.random_range(0..40) {
                        0 => newest[resource].fetch_add(1, Ordering::Relaxed) + 1,
                        1..4 => newest[resource].load(Ordering::Relaxed).saturating_sub(1),
                        _ => newest[resource].load(Ordering::Relaxed),
                    };
                    let request = put(&format!("/orders/{resource}"))
                        .token(token)
                        .body("write");
                    if random.random_range(0..4) == 0 {
                        let patience = Duration::from_millis(random.random_range(0..20));
                        let _ = tokio::time::timeout(patience, request.attempt(to)).await;
                    } else if let Ok(answer) = request.attempt(to).await {
                        outcomes[usize::from(answer.status())].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no panic");
    }
    for proxy in proxies {
        proxy.until_none("fencepost_upstream_in_flight").await;
    }
    soon("the upstream to end its work", async {
        upstream
            .until("all ended", |all| all.iter().all(|one| one.ended.is_some()))
            .await;
    })
    .await;
    upstream.assert_no_overtaking();
    // The storm was one: much arrived, in many epochs, and each verdict was given.
    let count = |status: usize| outcomes[status].load(Ordering::Relaxed);
    assert!(count(200) > 100, "{} forwarded", count(200));
    assert!(count(412) > 20, "{} stale", count(412));
    assert!(count(502) + count(504) > 0, "no exchange broke");
    for resource in 0..RESOURCES {
        let mut tokens = upstream.tokens(&format!("order:{resource}"));
        tokens.dedup();
        assert!(tokens.len() > 5, "few epochs: {tokens:?}");
    }
}
