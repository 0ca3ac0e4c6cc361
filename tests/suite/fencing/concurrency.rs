//! Many clients at once, some of which leave, and an upstream that stalls, breaks off and goes on.
//! Tokens still arrive in order, and work of different epochs never overlaps (guarantee G2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::support::{Step, fenced, put};

const RESOURCES: usize = 4;

#[tokio::test]
async fn nothing_overtakes_among_64_clients() {
    // The upstream works for at most 150 ms after its caller has given up on it; the rest of
    // `settle` is for a machine that is busy.
    let rugged =
        "{ upstream: { timeout: 150ms }, barrier: { wait: 2s, grace: 500ms, settle: 1s } }";
    let (upstream, proxy) = fenced(rugged).await;
    let to = proxy.data();
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut moods = StdRng::seed_from_u64(seed);
    upstream.otherwise(move |_| {
        let work = match moods.random_range(0..100) {
            0..60 => 0,
            60..97 => moods.random_range(1..15),
            97..99 => moods.random_range(150..280),
            _ => return vec![Step::Reset],
        };
        vec![Step::Work(Duration::from_millis(work)), Step::ok()]
    });
    let newest: Arc<[AtomicU64; RESOURCES]> = Arc::default();
    let clients: Vec<_> = (0..64_u64)
        .map(|client| {
            let newest = Arc::clone(&newest);
            let mut random = StdRng::seed_from_u64(seed ^ (client << 32));
            tokio::spawn(async move {
                let mut statuses = Vec::new();
                for _ in 0..60 {
                    let resource = random.random_range(0..RESOURCES);
                    let token = match random.random_range(0..40) {
                        0 => newest[resource].fetch_add(1, Ordering::Relaxed) + 1,
                        1..4 => newest[resource].load(Ordering::Relaxed).saturating_sub(1),
                        _ => newest[resource].load(Ordering::Relaxed),
                    };
                    let path = format!("/orders/{resource}");
                    let request = put(&path).token(token).body("write");
                    if random.random_range(0..4) == 0 {
                        let patience = Duration::from_millis(random.random_range(0..20));
                        let _ = tokio::time::timeout(patience, request.attempt(to)).await;
                    } else if let Ok(answer) = request.attempt(to).await {
                        statuses.push(answer.status());
                    }
                }
                statuses
            })
        })
        .collect();
    let mut statuses = Vec::new();
    for client in clients {
        statuses.extend(client.await.expect("no panic"));
    }
    proxy.until_none("fencepost_upstream_in_flight").await;
    upstream
        .until("all ended", |all| all.iter().all(|one| one.ended.is_some()))
        .await;
    upstream.assert_no_overtaking();
    // The storm was one: much arrived, in many epochs, and each verdict was given.
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    assert!(count(200) > 100, "{} forwarded", count(200));
    assert!(count(412) > 20, "{} stale", count(412));
    assert!(count(502) + count(504) > 0, "no exchange broke");
    for resource in 0..RESOURCES {
        let mut tokens = upstream.tokens(&format!("order:{resource}"));
        tokens.dedup();
        assert!(tokens.len() > 5, "few epochs: {tokens:?}");
    }
}
