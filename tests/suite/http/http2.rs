//! HTTP/2 on the data port: what is offered, what is refused, and that nothing refused goes any
//! further.

mod floods;
mod life;
mod trailers;

use crate::support::http2::{Fields, Http2, Outcome, SETTINGS, fenced_head};
use crate::support::{Proxy, fenced};

/// The head of a request that is forwarded.
fn good(path: &str) -> Fields<'_> {
    fenced_head(path, "7")
}

/// [`good`], with a field put in place of the one of its name, or put behind the others.
fn with<'a>(name: &'a str, value: &'a [u8]) -> Fields<'a> {
    let mut fields = good("/orders/7");
    match fields.iter_mut().find(|(known, _)| *known == name) {
        Some(field) => field.1 = value,
        None => fields.push((name, value)),
    }
    fields
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
    let mut many = good("/orders/7");
    many.extend(names.iter().map(|name| (name.as_str(), &b"1"[..])));
    for (what, fields, status, limit) in [
        ("bytes", with("x-long", &long), 431, "header-bytes"),
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
