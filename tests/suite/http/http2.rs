//! HTTP/2 on the data port: what is offered, what is refused, that nothing refused goes any
//! further, and how long a connection lives.

mod floods;
mod trailers;

use crate::support::http2::{Fields, GOAWAY, Http2, Outcome, PING, SETTINGS, fenced_head};
use crate::support::{Proxy, fenced};

/// The head of a request that is forwarded.
fn good(path: &str) -> Fields<'_> {
    fenced_head(path, "7")
}

/// A whole request on a connection of its own is forwarded.
async fn is_served(proxy: &Proxy) {
    let mut client = Http2::open(proxy.data()).await;
    let stream = client.head(&good("/orders/healthy"), true).await;
    assert_eq!(client.answer(stream).await, Outcome::Status(200));
}

pub fn is_refusal(answer: &Outcome) -> bool {
    match answer {
        Outcome::Status(status) => (400..500).contains(status),
        // PROTOCOL_ERROR, ENHANCE_YOUR_CALM, COMPRESSION_ERROR, FRAME_SIZE_ERROR.
        Outcome::Reset(code) | Outcome::Gone(Some(code)) => [1, 6, 9, 11].contains(code),
        Outcome::Gone(None) => false,
    }
}

#[tokio::test]
async fn what_is_offered_is_what_is_configured_and_no_extended_connect() {
    let (_upstream, proxy) = fenced("limits: { http2_streams: 7, header_bytes: 16KiB }").await;
    let mut client = Http2::open(proxy.data()).await;
    client
        .until("its settings", |frame| {
            frame.kind == SETTINGS && frame.flags == 0
        })
        .await;
    assert_eq!(client.settings.get(&3), Some(&7), "concurrent streams");
    let list = client.settings[&6];
    assert!(
        (16 << 10..32 << 10).contains(&list),
        "the list of header fields: {list}"
    );
    assert!(client.settings[&4] <= 256 << 10, "the window of a stream");
    assert_eq!(client.settings.get(&8), None, "extended CONNECT");
}

#[tokio::test]
async fn heads_over_a_limit_are_refused_as_on_http1() {
    let limits = "limits: { header_bytes: 8KiB, header_count: 20, target_bytes: 256 }";
    let (upstream, proxy) = fenced(limits).await;
    let long = vec![b'a'; 8300];
    let path = format!("/orders/{}", "7".repeat(300));
    let names: Vec<String> = (0..20).map(|n| format!("x-{n}")).collect();
    let mut lengthy = good("/orders/7");
    lengthy.push(("x-long", &long));
    let mut many = good("/orders/7");
    many.extend(names.iter().map(|name| (name.as_str(), &b"1"[..])));
    for (what, fields, status, limit) in [
        ("bytes", lengthy, 431, "header-bytes"),
        ("lines", many, 431, "header-count"),
        ("target", good(&path), 414, "target-bytes"),
    ] {
        let mut client = Http2::open(proxy.data()).await;
        let stream = client.head(&fields, true).await;
        assert_eq!(
            client.answer(stream).await,
            Outcome::Status(status),
            "{what}"
        );
        proxy.until_reached(limit, 1).await;
        // Each stream is judged for itself.
        let stream = client.head(&good("/orders/8"), true).await;
        assert_eq!(client.answer(stream).await, Outcome::Status(200), "{what}");
    }
    assert!(upstream.tokens("order:7").is_empty());
}

/// Connections whose times are short.
const BRIEF: &str = "limits: { idle_timeout: 1s, head_timeout: 3s }";

#[tokio::test]
async fn a_connection_without_requests_is_ended_in_good_order() {
    let (_upstream, proxy) = fenced(BRIEF).await;
    let mut polite = Http2::open(proxy.data()).await;
    let stream = polite.head(&good("/orders/7"), true).await;
    assert_eq!(polite.answer(stream).await, Outcome::Status(200));
    let codes = polite.end().await;
    // Two steps: nothing more, please; and then: this was the last one (RFC 9113, 6.8).
    assert_eq!(codes, [0, 0]);
    // One that has never asked for anything, and one that does not even answer pings.
    let mut unused = Http2::open(proxy.data()).await;
    assert_eq!(unused.end().await, [0, 0]);
    let mut silent = Http2::open(proxy.data()).await;
    silent.polite = false;
    silent.end().await;
    proxy.until_reached("idle-timeout", 2).await;
}

#[tokio::test]
async fn a_connection_with_a_request_at_work_is_not_idle() {
    let (upstream, proxy) = fenced("limits: { idle_timeout: 1s, head_timeout: 10s }").await;
    let gate = upstream.hold_next();
    let mut client = Http2::open(proxy.data()).await;
    let stream = client.head(&good("/orders/7"), true).await;
    upstream.reached(1).await;
    // Pings keep coming, and no GOAWAY, for many times the limit.
    for _ in 0..10 {
        let frame = client
            .until("a ping", |frame| {
                frame.kind == PING && frame.flags == 0 || frame.kind == GOAWAY
            })
            .await;
        assert_eq!(frame.kind, PING);
    }
    gate.open();
    assert_eq!(client.answer(stream).await, Outcome::Status(200));
}

#[tokio::test]
async fn a_client_that_is_gone_without_a_word_is_noticed() {
    let (upstream, proxy) = fenced(BRIEF).await;
    let gate = upstream.hold_next();
    let mut client = Http2::open(proxy.data()).await;
    let _stream = client.head(&good("/orders/7"), true).await;
    upstream.reached(1).await;
    client.polite = false;
    client.end().await;
    // Its requests are followed to their end: their outcome is known.
    gate.open();
    upstream
        .until("the end of its request", |all| {
            all[0].ended.is_some_and(|_| !all[0].left)
        })
        .await;
    is_served(&proxy).await;
}
