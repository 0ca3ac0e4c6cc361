//! A commit that waits for its synchronous standby: ending the wait early makes the server
//! answer with success all the same, and only a warning says that the standby may not have it. It
//! never counts as durable (G1).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::replication::{Commits, PostgresPair};
use crate::support::sql::{sql, until};
use crate::support::wait::deadline;
use crate::support::{
    Config, Proxy, Request, Store, Upstream, eventually, get, joined, or_return, put,
};

/// The lease outlives the test: its renewals wait for the standby too.
const PATIENT: &str = "{ store: { lease: 10m, timeout: 25s }, barrier: { settle: 500ms } }";

/// A part of the statement that a request waits for.
const ADVANCE: &str = "INSERT INTO marks";

async fn pair() -> Option<(PostgresPair, Upstream, Config)> {
    with(PostgresPair::start(Commits::WaitForStandby).await?).await
}

async fn with(pair: PostgresPair) -> Option<(PostgresPair, Upstream, Config)> {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::at(&pair.url())).with(PATIENT);
    Some((pair, upstream, config))
}

/// Waits until a commit waits for the standby in a statement with `what` in it; its process id.
async fn waits(pair: &PostgresPair, what: &str) -> i32 {
    let mut shell = pair.shell().await;
    let end = Instant::now() + deadline();
    loop {
        for (pid, statement) in pair.waiting(&mut shell).await {
            if statement.contains(what) {
                return pid;
            }
        }
        assert!(Instant::now() < end, "never: a commit waits in {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ends a commit's wait with the function named.
async fn end_wait(pair: &PostgresPair, what: &str, by: &str) {
    let pid = waits(pair, what).await;
    let mut shell = pair.shell().await;
    sql(&mut shell, &format!("SELECT {by}({pid})")).await;
}

const MARK_IS_42: &str = "SELECT count(*) FROM marks WHERE resource = 'order:7' AND token = 42";

/// The whole story of one request whose commit's wait is ended: refused, nothing forwarded; and the
/// retry, which finds its row there, waits for the standby as if it were the first.
async fn refused_and_waited_for_again(
    pair: &PostgresPair,
    upstream: &Upstream,
    to: SocketAddr,
    by: &str,
) {
    put("/orders/7").token(41).send(to).await.assert_forwarded();
    pair.standby().freeze();
    let first = put("/orders/7").token(42).start(to);
    end_wait(pair, ADVANCE, by).await;
    let answer = joined(first).await;
    assert_eq!(
        answer.assert_problem(503, "store-unavailable")["retry"],
        "same-token"
    );
    // Committed here all the same, and visible: that is what the retry finds.
    let mut shell = pair.shell().await;
    until(&mut shell, "42 is visible on the primary", MARK_IS_42).await;
    let again = put("/orders/7").token(42).start(to);
    waits(pair, ADVANCE).await;
    assert_eq!(upstream.tokens("order:7"), [41], "nothing of 42 went out");
    pair.standby().thaw();
    joined(again).await.assert_forwarded();
    assert_eq!(upstream.tokens("order:7"), [41, 42]);
    let mut shell = pair.standby_shell().await;
    until(&mut shell, "42 is on the standby", MARK_IS_42).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_the_standby_is_no_answer() {
    let (pair, upstream, config) = or_return!(pair().await);
    let proxy = Proxy::start(&config).await;
    refused_and_waited_for_again(&pair, &upstream, proxy.data(), "pg_cancel_backend").await;
    let metrics = proxy.metrics().await;
    let warned = metrics.sum("fencepost_store_errors_total", &[("kind", "warned")]);
    assert!(warned >= 1.0, "counted as what it is");
    assert!(metrics.sum("fencepost_mark_regressions_total", &[]) == 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_wait_for_the_standby_is_no_answer() {
    let (pair, upstream, config) = or_return!(pair().await);
    let proxy = Proxy::start(&config).await;
    refused_and_waited_for_again(&pair, &upstream, proxy.data(), "pg_terminate_backend").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_language_makes_no_difference() {
    let pair =
        or_return!(PostgresPair::start_speaking(Commits::WaitForStandby, Some("de_DE")).await);
    let (pair, upstream, config) = with(pair).await.expect("it has started");
    let proxy = Proxy::start(&config).await;
    refused_and_waited_for_again(&pair, &upstream, proxy.data(), "pg_cancel_backend").await;
    let log = pair.primary().log();
    assert!(log.contains("WARNUNG"), "it did speak German: {log}");
}

/// Warnings come by way of the program's own logging; what of that is shown must make no
/// difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_level_makes_no_difference() {
    let (pair, upstream, config) = or_return!(pair().await);
    for level in ["off", "error", "sqlx=off,fencepost=trace"] {
        let (data, admin) = (free_port(), free_port());
        let config = config.clone().with(&format!(
            "{{ listen: '127.0.0.1:{data}', admin: {{ listen: '127.0.0.1:{admin}' }}, \
             log: {{ level: '{level}' }} }}"
        ));
        let dir = TempDir::new().expect("a temporary directory");
        let file = dir.path().join("fencepost.yaml");
        std::fs::write(&file, config.text()).expect("the directory is ours");
        let mut process = Process::start(fencepost().arg("serve").arg("--config").arg(&file));
        let admin = SocketAddr::from(([127, 0, 0, 1], admin));
        eventually("it is ready", || async move {
            let answer = get("/readyz").attempt(admin).await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
        let resource = "order:7";
        let to = SocketAddr::from(([127, 0, 0, 1], data));
        let ask = |token: u64| -> Request { put("/orders/7").token(token) };
        let base = upstream.tokens(resource).last().copied().unwrap_or(0);
        ask(base + 1).send(to).await.assert_forwarded();
        pair.standby().freeze();
        let first = ask(base + 2).start(to);
        end_wait(&pair, ADVANCE, "pg_cancel_backend").await;
        let answer = joined(first).await;
        pair.standby().thaw();
        answer.assert_problem(503, "store-unavailable");
        assert_eq!(
            upstream.tokens(resource).last(),
            Some(&(base + 1)),
            "{level}"
        );
        process.kill9();
        let mut shell = pair.shell().await;
        sql(&mut shell, "UPDATE marks SET open = '{}'").await;
    }
}

/// The same for what operators do: an override that the standby may not have is not reported as
/// done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_override_is_not_done() {
    let (pair, upstream, config) = or_return!(pair().await);
    let proxy = Proxy::start(&config).await;
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
