//! A commit that waits for its synchronous standby: ending the wait early makes the server
//! answer with success all the same, and only a warning says that the standby may not have it. It
//! never counts as durable (G1).

use crate::support::replication::{Commits, PostgresPair};
use crate::support::sql::{sql, until};
use crate::support::{Proxy, Store, Upstream, eventually, joined, or_return, put};

/// The lease outlives the test: its renewals wait for the standby too.
const PATIENT: &str = "{ store: { lease: 10m, timeout: 25s }, barrier: { settle: 500ms } }";

/// A part of the statement that a request waits for.
const ADVANCE: &str = "INSERT INTO marks";

/// A proxy on a pair whose primary may speak another language than English.
async fn on_pair(language: Option<&str>) -> Option<(PostgresPair, Upstream, Proxy)> {
    let pair = PostgresPair::start_speaking(Commits::WaitForStandby, language).await?;
    let (upstream, proxy) = Proxy::before(&Store::at(&pair.url()), PATIENT).await;
    Some((pair, upstream, proxy))
}

/// Waits until a commit waits for the standby in a statement with `what` in it; its process id.
async fn waits(pair: &PostgresPair, what: &str) -> i32 {
    let shell = &tokio::sync::Mutex::new(pair.shell().await);
    eventually(&format!("a commit waits in {what}"), || async move {
        let all = pair.waiting(&mut *shell.lock().await).await;
        let mut fitting = all
            .into_iter()
            .filter(|(_, statement)| statement.contains(what));
        fitting.next().map(|(pid, _)| pid)
    })
    .await
}

/// Ends a commit's wait with the function named.
async fn end_wait(pair: &PostgresPair, what: &str, by: &str) {
    let end = format!("SELECT {by}({})", waits(pair, what).await);
    sql(&mut pair.shell().await, &end).await;
}

/// The whole story of one request whose commit's wait is ended: refused, nothing forwarded; and the
/// retry, which finds its row there, waits for the standby as if it were the first.
async fn refused_and_waited_for_again(
    (pair, upstream, proxy): (&PostgresPair, &Upstream, &Proxy),
    token: u64,
    by: &str,
) {
    let request = |token| put("/orders/7").token(token);
    let mark = format!("SELECT count(*) FROM marks WHERE resource = 'order:7' AND token = {token}");
    proxy.forward(request(token - 1)).await;
    pair.standby().freeze();
    let first = proxy.start_request(request(token));
    end_wait(pair, ADVANCE, by).await;
    let problem = joined(first).await.assert_problem(503, "store-unavailable");
    assert_eq!(problem["retry"], "same-token");
    // Committed here all the same, and visible: that is what the retry finds.
    until(&mut pair.shell().await, "visible on the primary", &mark).await;
    let again = proxy.start_request(request(token));
    waits(pair, ADVANCE).await;
    assert_eq!(
        upstream.tokens("order:7").last(),
        Some(&(token - 1)),
        "nothing went out"
    );
    pair.standby().thaw();
    joined(again).await.assert_forwarded();
    assert_eq!(upstream.tokens("order:7").last(), Some(&token));
    until(&mut pair.standby_shell().await, "on the standby", &mark).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_the_standby_is_no_answer() {
    let (pair, upstream, proxy) = or_return!(on_pair(None).await);
    let all = (&pair, &upstream, &proxy);
    refused_and_waited_for_again(all, 42, "pg_cancel_backend").await;
    let metrics = proxy.metrics().await;
    let warned = metrics.sum("fencepost_store_errors_total", &[("kind", "warned")]);
    assert!(warned >= 1.0, "counted as what it is");
    assert!(metrics.sum("fencepost_mark_regressions_total", &[]) == 0.0);
    // Nor is one whose session is ended.
    refused_and_waited_for_again(all, 44, "pg_terminate_backend").await;
    assert_eq!(upstream.tokens("order:7"), [41, 42, 43, 44]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_language_makes_no_difference() {
    let (pair, upstream, proxy) = or_return!(on_pair(Some("de_DE")).await);
    let all = (&pair, &upstream, &proxy);
    refused_and_waited_for_again(all, 42, "pg_cancel_backend").await;
    let log = pair.primary().log();
    assert!(log.contains("WARNUNG"), "it did speak German: {log}");
}

/// The same for what operators do: an override that the standby may not have is not reported as
/// done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_override_is_not_done() {
    let (pair, upstream, proxy) = or_return!(on_pair(None).await);
    proxy.forward(put("/orders/7").token(42)).await;
    pair.standby().freeze();
    let body = serde_json::json!({ "token": "3", "reason": "the counter was reset" });
    let target = "/v1/marks/order%3A7/override";
    let (done, ()) = tokio::join!(proxy.command(target, &body), async {
        // It cedes its own idle epoch first, which waits for nobody.
        end_wait(&pair, "COMMIT", "pg_cancel_backend").await;
    });
    pair.standby().thaw();
    assert!(done.status() >= 500, "{} {}", done.status(), done.text());
    assert_eq!(upstream.tokens("order:7"), [42]);
    // Done again, it is done.
    let done = proxy.command(target, &body).await;
    assert_eq!(done.status(), 200, "{}", done.text());
    assert_eq!(proxy.token("order:7").await, Some(3));
}
