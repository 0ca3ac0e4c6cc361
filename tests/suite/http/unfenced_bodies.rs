//! Bodies on routes without a fence: they go upstream as they come.

use crate::support::bare::BareUpstream;
use crate::support::client::Exchange;
use crate::support::wire::chunk;
use crate::support::{Config, Proxy, Store, Upstream};

async fn sent(proxy: &Proxy, bytes: &[u8]) -> Exchange {
    let mut exchange = Exchange::open(proxy.data(), "POST")
        .await
        .expect("the proxy listens");
    exchange.push(bytes).await;
    exchange
}

/// Its client's fault is no less one than on a fenced route.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one scenario, in order")]
async fn a_fault_of_the_client_is_no_unknown_outcome_without_a_fence() {
    let routes = "{ unmatched: refuse, body: { max: 64KiB, progress_timeout: 1s }, routes: [\
         { path: '/seen/{id}', resource: 'seen:{id}', mode: observe, body: { buffer: 1KiB } }, \
         { path: '/open/{id}', mode: bypass }] }";
    let long = "1".repeat(17_000);
    let part = || String::from_utf8(chunk(&[b'a'; 4096])).expect("ASCII");
    for http2 in [false, true] {
        let (upstream, bare) = (Upstream::start().await, BareUpstream::start().await);
        let url = if http2 {
            bare.h2c()
        } else {
            upstream.url().to_owned()
        };
        let serving = tokio::spawn(async move {
            loop {
                let mut peer = bare.accept_http2(&[]).await;
                tokio::spawn(async move { peer.drain().await });
            }
        });
        let proxy = Proxy::start(&Config::to(&url, &Store::sqlite()).with(routes)).await;
        for target in ["/open/7", "/seen/7"] {
            for (first, second, status, outcome) in [
                // At once with the head, and behind a part that has gone upstream.
                (String::new(), "x\r\n".to_owned(), 400, "ambiguous-request"),
                (
                    part(),
                    "1 \r\nb\r\n0\r\n\r\n".to_owned(),
                    400,
                    "ambiguous-request",
                ),
                (
                    part(),
                    "0\r\nX : y\r\n\r\n".to_owned(),
                    400,
                    "ambiguous-request",
                ),
                (
                    part(),
                    format!("0\r\nX: {long}\r\n\r\n"),
                    431,
                    "head-too-large",
                ),
                (
                    part(),
                    String::from_utf8(chunk(&vec![b'a'; 70_000])).expect("ASCII"),
                    413,
                    "content-too-large",
                ),
                (part(), String::new(), 408, "request-timeout"),
            ] {
                if status == 413 && target == "/seen/7" {
                    // Observing refuses nothing by a limit.
                    continue;
                }
                let before = upstream.count();
                let start =
                    format!("POST {target} HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 9\r\n");
                let bytes = format!("{start}Transfer-Encoding: chunked\r\n\r\n{first}");
                let case = format!("{target} {second:.20} {http2}");
                let mut exchange = if first.is_empty() {
                    sent(&proxy, format!("{bytes}{second}").as_bytes()).await
                } else {
                    let mut exchange = sent(&proxy, bytes.as_bytes()).await;
                    if !http2 {
                        upstream.reached(before + 1).await;
                    }
                    exchange.wire.send(second.as_bytes()).await.expect("open");
                    exchange
                };
                let answer = exchange.finish().await;
                assert_eq!(
                    (answer.status(), answer.outcome()),
                    (status, Some(outcome)),
                    "{case}"
                );
                if !http2 && !first.is_empty() {
                    upstream
                        .until("the connection to be given up", |all| all[before].left)
                        .await;
                    assert!(!upstream.last().whole, "{case}");
                }
            }
        }
        let unknown = proxy.ask("/v1/unknown").await.json();
        assert_eq!(
            unknown["unknown"].as_array().map(Vec::len),
            Some(0),
            "{unknown}"
        );
        let outcome = [("outcome", "outcome-unknown")];
        let counted = proxy.sum("fencepost_requests_total", &outcome).await;
        assert!(counted < 0.5, "{counted}");
        serving.abort();
    }
}
