//! Failover to a standby that was behind: marks are lost. A mark that a living proxy remembers is
//! found missing, refused, counted and written back.

use serde_json::json;

use crate::support::replication::{Commits, PostgresPair};
use crate::support::sql::until;
use crate::support::{Config, Proxy, Store, Upstream, eventually, or_return, put};

const LOSSES: &str = "fencepost_mark_regressions_total";
const SETTINGS: &str = "{ upstream: { undelivered: 500ms }, store: { lease: 5s, timeout: 3s }, \
    barrier: { wait: 1s, settle: 4s } }";

/// A pair whose standby has a mark of 40 on both resources and is detached; two proxies on it, of
/// which the first has seen all of that.
async fn behind() -> Option<(PostgresPair, Upstream, Proxy, Proxy)> {
    let pair = PostgresPair::start(Commits::DontWait).await?;
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::at(&pair.url())).with(SETTINGS);
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    for order in ["/orders/7", "/orders/8"] {
        a.forward(put(order).token(40)).await;
    }
    pair.caught_up().await;
    pair.detach();
    Some((pair, upstream, a, b))
}

/// An operator's advance (a mark, and no epoch) or override.
async fn command(proxy: &Proxy, verb: &str, token: u64) -> u16 {
    let body = json!({ "token": token.to_string(), "reason": "a test" });
    let target = format!("/v1/marks/order%3A7/{verb}");
    proxy.command(&target, &body).await.status()
}

/// Sends a token until the store can be asked; then the answer has to have this status. The
/// connection of a proxy that was idle may break first.
async fn gets(proxy: &Proxy, token: u64, status: u16) {
    eventually(&format!("{token} gets {status}"), || async {
        let answer = proxy.send(put("/orders/7").token(token)).await;
        if answer.status() == 503 {
            return None;
        }
        assert_eq!(answer.status(), status, "{token}: {}", answer.text());
        Some(())
    })
    .await;
}

/// Nobody asks for anything: the failover alone is reason enough to look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_epoch_and_its_mark_are_found_refused_and_written_back() {
    let (mut pair, upstream, a, b) = or_return!(behind().await);
    a.forward(put("/orders/7").token(42)).await;
    pair.lose().await;
    let mut shell = pair.shell().await;
    let back =
        "SELECT count(*) FROM marks WHERE resource = 'order:7' AND token = 42 AND 42 = open[3]";
    until(&mut shell, "the mark and its epoch are back", back).await;
    a.until_some(LOSSES).await;
    // Refused until it has settled: an equal token too, whose epoch is open in memory.
    for token in [42, 43] {
        let answer = a.send(put("/orders/7").token(token)).await;
        answer.assert_problem(503, "store-unavailable");
        assert!(answer.retry_after().is_some());
    }
    // A mark that was not lost goes on.
    a.until_forwarded(put("/orders/8").token(41)).await;
    gets(&b, 41, 412).await;
    gets(&a, 43, 200).await;
    assert_eq!(upstream.tokens("order:7"), [40, 42, 43]);
    upstream.assert_no_overtaking();
}

/// A mark without an epoch is not looked for: the proxy that knows it refuses what is older from
/// memory, and the first request that asks the store finds the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_mark_is_found_by_the_first_request_that_asks() {
    let (mut pair, upstream, a, b) = or_return!(behind().await);
    assert_eq!(command(&a, "advance", 42).await, 200);
    pair.lose().await;
    a.stale(put("/orders/7").token(41)).await;
    assert_eq!(a.count(LOSSES, &[]).await, 0, "nobody has asked");
    eventually("the loss is found", || async {
        let answer = a.send(put("/orders/7").token(42)).await;
        answer.assert_problem(503, "store-unavailable");
        (a.count(LOSSES, &[]).await > 0).then_some(())
    })
    .await;
    let query = "SELECT count(*) FROM marks WHERE resource = 'order:7' AND token = 42";
    until(&mut pair.shell().await, "the mark is back", query).await;
    gets(&b, 41, 412).await;
    gets(&a, 42, 200).await;
    assert_eq!(upstream.tokens("order:7"), [40, 42]);
    upstream.assert_no_overtaking();
}

/// The override is lost with its era; the next one must not get that era again, or who knows it
/// would go on refusing from memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_override_after_a_lost_override_is_heard_of_everywhere() {
    let (mut pair, upstream, a, b) = or_return!(behind().await);
    assert_eq!(command(&a, "override", 3).await, 200);
    eventually("B knows of it", || async {
        (command(&b, "advance", 5).await == 200).then_some(())
    })
    .await;
    pair.lose().await;
    let again = "SELECT count(*) FROM namespaces WHERE era = 1";
    until(
        &mut pair.shell().await,
        "the era that the proxies know is back",
        again,
    )
    .await;
    // The mark before the override is in force again: refused too much, but nothing let through.
    gets(&a, 6, 412).await;
    gets(&b, 6, 412).await;
    eventually("the override is done", || async {
        (command(&a, "override", 3).await == 200).then_some(())
    })
    .await;
    // They may be refused as stale until the override is known.
    b.until_forwarded(put("/orders/7").token(6)).await;
    a.until_forwarded(put("/orders/7").token(7)).await;
    assert_eq!(upstream.tokens("order:7"), [40, 6, 7]);
}
