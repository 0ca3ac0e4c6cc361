//! Failover to a standby that was behind: marks are lost. What a living proxy remembers is found missing, refused,
//! counted and written back; what nobody remembers nobody can miss.

use crate::support::replication::{Commits, Pair, until};
use crate::support::{Config, Proxy, Store, Upstream, eventually, post, put};

const SETTINGS: &str = "{ store: { lease: 5s, timeout: 3s }, barrier: { wait: 1s, settle: 4s } }";

/// A pair whose standby has a mark of 40 on both resources and is detached; a proxy on it.
async fn behind(test: &str) -> Option<(Pair, Upstream, Config, Proxy)> {
    let pair = Pair::start(test, Commits::DontWait).await?;
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::at(&pair.url())).with(SETTINGS);
    let proxy = Proxy::start(&config).await;
    for order in ["/orders/7", "/orders/8"] {
        proxy.send(put(order).token(40)).await.assert_forwarded();
    }
    pair.caught_up().await;
    pair.detach();
    Some((pair, upstream, config, proxy))
}

fn claim(token: u64) -> crate::support::Request {
    post("/.well-known/fencing/claim")
        .header("X-Fencing-Target", "PUT /orders/7")
        .token(token)
}

async fn passes(proxy: &Proxy, token: u64) {
    eventually(&format!("{token} passes"), || async {
        let answer = proxy.send(put("/orders/7").token(token)).await;
        match answer.status() {
            200 => Some(()),
            503 => None,
            other => panic!("{other}: {}", answer.text()),
        }
    })
    .await;
}

/// Nobody asks for anything: the failover alone is reason enough to look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_epoch_and_its_mark_are_found_refused_and_written_back() {
    let Some((mut pair, upstream, config, a)) = behind("a_lost_epoch_and_its_mark_…").await
    else {
        return;
    };
    a.send(put("/orders/7").token(42)).await.assert_forwarded();
    pair.lose().await;
    let mut shell = pair.shell().await;
    for (what, query) in [
        (
            "the mark is back",
            "SELECT count(*) FROM marks WHERE resource = 'order:7' AND token = 42",
        ),
        (
            "the epoch is back",
            "SELECT count(*) FROM epochs WHERE resource = 'order:7' AND token = 42",
        ),
    ] {
        until(&mut shell, what, query).await;
    }
    a.until_metric("fencepost_mark_regressions_total", &[], |value| {
        value == 1.0
    })
    .await;
    // Refused until it has settled: an equal token too, whose epoch is open in memory.
    for token in [42, 43] {
        let answer = a.send(put("/orders/7").token(token)).await;
        answer.assert_problem(503, "store-unavailable");
        assert!(answer.retry_after().is_some());
    }
    // What was not lost goes on.
    eventually("the other resource goes on", || async {
        let answer = a.send(put("/orders/8").token(41)).await;
        (answer.status() == 200).then_some(())
    })
    .await;
    let b = Proxy::start(&config).await;
    b.send(put("/orders/7").token(41))
        .await
        .assert_problem(412, "stale-token");
    passes(&a, 43).await;
    assert_eq!(upstream.tokens("order:7"), [40, 42, 43]);
    upstream.assert_no_overtaking();
}

/// A claim leaves no epoch, so that nothing of it is looked for: the proxy that heard of it refuses what is older from
/// memory, and the first request that asks the store finds the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_claim_is_found_by_the_first_request_that_asks() {
    let Some((mut pair, upstream, config, a)) = behind("a_lost_claim_is_found_by_…").await else {
        return;
    };
    assert_eq!(a.send(claim(42)).await.status(), 204);
    pair.lose().await;
    a.send(put("/orders/7").token(41))
        .await
        .assert_problem(412, "stale-token");
    let metrics = a.metrics().await;
    assert!(
        metrics.sum("fencepost_mark_regressions_total", &[]) == 0.0,
        "nobody has asked"
    );
    eventually("the loss is found", || async {
        let answer = a.send(put("/orders/7").token(42)).await;
        answer.assert_problem(503, "store-unavailable");
        let metrics = a.metrics().await;
        (metrics.sum("fencepost_mark_regressions_total", &[]) > 0.0).then_some(())
    })
    .await;
    let b = Proxy::start(&config).await;
    b.send(put("/orders/7").token(41))
        .await
        .assert_problem(412, "stale-token");
    passes(&a, 42).await;
    assert_eq!(upstream.tokens("order:7"), [40, 42]);
    upstream.assert_no_overtaking();
}

/// The limit of it, and the reason for synchronous standbys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_remembers_nobody_can_miss() {
    let Some((mut pair, upstream, config, mut a)) = behind("what_nobody_remembers_…").await
    else {
        return;
    };
    a.send(put("/orders/7").token(42)).await.assert_forwarded();
    a.kill9();
    pair.lose().await;
    let b = Proxy::start(&config).await;
    passes(&b, 41).await;
    let metrics = b.metrics().await;
    assert!(metrics.sum("fencepost_mark_regressions_total", &[]) == 0.0);
    assert_eq!(
        upstream.tokens("order:7"),
        [40, 42, 41],
        "G3 is broken, and nobody knows"
    );
}

/// The override is lost with its era; the next one must not get that era again, or who knows it would go on refusing
/// from memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_override_after_a_lost_override_is_heard_of_everywhere() {
    let Some((mut pair, upstream, config, a)) = behind("an_override_after_a_lost_one_…").await
    else {
        return;
    };
    let b = Proxy::start(&config).await;
    let body = serde_json::json!({ "token": "3", "reason": "the counter was reset" });
    let override_at_a = || a.command("/v1/marks/order%3A7/override", &body);
    assert_eq!(override_at_a().await.status(), 200);
    eventually("B knows of it", || async {
        (b.send(claim(5)).await.status() == 204).then_some(())
    })
    .await;
    pair.lose().await;
    let mut shell = pair.shell().await;
    until(
        &mut shell,
        "the era that the proxies know is the namespace's again",
        "SELECT count(*) FROM namespaces WHERE era = 1",
    )
    .await;
    // The mark before the override is in force again: refused too much, but nothing let through.
    for proxy in [&a, &b] {
        eventually("6 is stale again", || async {
            let answer = proxy.send(put("/orders/7").token(6)).await;
            (answer.status() == 412).then_some(())
        })
        .await;
    }
    let done = override_at_a().await;
    assert_eq!(done.status(), 200, "{}", done.text());
    passes_at_last(&b, 6).await;
    passes_at_last(&a, 7).await;
    assert_eq!(upstream.tokens("order:7"), [40, 6, 7]);
}

/// As [`passes`], where it may be refused as stale until the override is known.
async fn passes_at_last(proxy: &Proxy, token: u64) {
    eventually(&format!("{token} passes"), || async {
        let answer = proxy.send(put("/orders/7").token(token)).await;
        (answer.status() == 200).then_some(())
    })
    .await;
}
