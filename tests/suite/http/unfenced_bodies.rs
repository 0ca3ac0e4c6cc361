//! Bodies on routes without a fence: they go upstream as they come.

use super::before;
use crate::support::bare::BareUpstream;
use crate::support::client::Exchange;
use crate::support::wire::chunk;
use crate::support::{Must, Upstream};

const ROUTES: &str = "{ unmatched: refuse, body: { max: 64KiB, progress_timeout: 1s }, routes: [\
     { path: '/seen/{id}', resource: 'seen:{id}', mode: observe, body: { buffer: 1KiB } }, \
     { path: '/open/{id}', mode: bypass }] }";

fn chunk_of(length: usize) -> String {
    String::from_utf8(chunk(&vec![b'a'; length])).expect("ASCII")
}

/// How a body goes on, at once with the head or behind a part that has gone upstream, and its end.
fn faults() -> Vec<(bool, String, u16, &'static str)> {
    let long = format!("0\r\nX: {}\r\n\r\n", "1".repeat(17_000));
    let ambiguous = "ambiguous-request";
    vec![
        (false, "x\r\n".to_owned(), 400, ambiguous),
        (true, "1 \r\nb\r\n0\r\n\r\n".to_owned(), 400, ambiguous),
        (true, "0\r\nX : y\r\n\r\n".to_owned(), 400, ambiguous),
        (true, long, 431, "head-too-large"),
        (true, chunk_of(70_000), 413, "content-too-large"),
        (true, String::new(), 408, "request-timeout"),
    ]
}

/// Its client's fault is no less one than on a fenced route.
#[tokio::test]
async fn a_fault_of_the_client_is_no_unknown_outcome_without_a_fence() {
    let upstream = Upstream::start().await;
    breaks_off(upstream.url(), Some(&upstream)).await;
    let bare = BareUpstream::start().await;
    let url = bare.h2c();
    let serving = tokio::spawn(async move {
        loop {
            let mut peer = bare.accept_http2(&[]).await;
            tokio::spawn(async move { peer.drain().await });
        }
    });
    breaks_off(&url, None).await;
    serving.abort();
}

/// `upstream`: where it is seen what arrives.
async fn breaks_off(url: &str, upstream: Option<&Upstream>) {
    let proxy = before(url, ROUTES).await;
    for target in ["/open/7", "/seen/7"] {
        for (begun, more, status, outcome) in faults() {
            if status == 413 && target == "/seen/7" {
                // Observing refuses nothing by a limit.
                continue;
            }
            let case = format!("{url} {target} {more:.20}");
            let before = upstream.map_or(0, Upstream::count);
            let head = format!(
                "POST {target} HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            let mut exchange = Exchange::open(proxy.data(), "POST").must().await;
            if begun {
                exchange.push(head + &chunk_of(4096)).await;
                if let Some(upstream) = upstream {
                    upstream.reached(before + 1).await;
                }
                exchange.push(more).await;
            } else {
                exchange.push(head + &more).await;
            }
            let answer = exchange.finish().await;
            let seen = (answer.status(), answer.outcome());
            assert_eq!(seen, (status, Some(outcome)), "{case}");
            if let Some(upstream) = upstream.filter(|_| begun) {
                upstream
                    .until("the end of its connection", |all| all[before].left)
                    .await;
                assert!(!upstream.last().whole, "{case}");
            }
        }
    }
    let unknown = proxy.ask("/v1/unknown").await.json();
    assert_eq!(unknown["unknown"], serde_json::json!([]));
    let outcome = [("outcome", "outcome-unknown")];
    assert_eq!(proxy.count("fencepost_requests_total", &outcome).await, 0);
}
