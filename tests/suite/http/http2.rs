//! HTTP/2 on the data port: what is offered, what is refused, and that nothing refused goes any
//! further.

mod floods;
mod life;
mod trailers;

use crate::support::http2::{
    END_HEADERS, END_STREAM, HEADERS, Http2, Outcome, SETTINGS, block, frame,
};
use crate::support::wire::via;
use crate::support::{Proxy, fenced};

/// A name, the length in its head, and the pieces of its body.
type BodyCase<'a> = (&'a str, &'a [u8], &'a [&'a [u8]]);

/// Names and values of fields.
type FieldList<'a> = Vec<(&'a str, &'a [u8])>;

/// The head of a request that is forwarded.
fn good(path: &str) -> FieldList<'_> {
    vec![
        (":method", b"PUT"),
        (":scheme", b"http"),
        (":authority", b"app.test"),
        (":path", path.as_bytes()),
        ("x-fencing-token", b"7"),
    ]
}

/// [`good`], with a field put in place of the one of its name, or put behind the others.
fn with<'a>(name: &'a str, value: &'a [u8]) -> FieldList<'a> {
    let mut fields = good("/orders/7");
    match fields.iter_mut().find(|(known, _)| *known == name) {
        Some(field) => field.1 = value,
        None => fields.push((name, value)),
    }
    fields
}

fn without(name: &str) -> FieldList<'static> {
    let mut fields = good("/orders/7");
    fields.retain(|(known, _)| *known != name);
    fields
}

/// A whole request on a connection of its own is forwarded.
async fn is_served(proxy: &Proxy) {
    let mut client = Http2::open(proxy.data()).await;
    let stream = client.head(&good("/orders/healthy"), true).await;
    assert_eq!(client.answer(stream).await, Outcome::Status(200));
}

fn is_refusal(answer: &Outcome) -> bool {
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
async fn a_connect_is_refused_extended_or_not() {
    let (upstream, proxy) = fenced("{}").await;
    let mut client = Http2::open(proxy.data()).await;
    let plain: FieldList = vec![(":method", b"CONNECT"), (":authority", b"app.test:443")];
    let stream = client.head(&plain, false).await;
    assert_eq!(client.answer(stream).await, Outcome::Status(405));
    let mut extended = good("/orders/7");
    extended[0].1 = b"CONNECT";
    extended.insert(1, (":protocol", b"websocket"));
    let stream = client.head(&extended, false).await;
    let answer = client.answer(stream).await;
    assert!(is_refusal(&answer), "{answer:?}");
    assert_eq!(upstream.count(), 0);
    is_served(&proxy).await;
}

#[tokio::test]
async fn heads_that_are_not_well_formed_go_nowhere() {
    let (upstream, proxy) = fenced("{}").await;
    let doubled = |name: &'static str, value: &'static [u8]| {
        let mut fields = with(name, value);
        fields.push((name, value));
        fields
    };
    let mut late = without(":path");
    late.push((":path", b"/orders/7"));
    let mut twice = good("/orders/7");
    twice.insert(3, (":path", b"/orders/8"));
    let cases: Vec<(&str, FieldList)> = vec![
        // RFC 9113, 8.2.1.
        ("an upper-case name", with("X-Upper", b"1")),
        ("a space in a name", with("x name", b"1")),
        ("a colon in a name", with("x:name", b"1")),
        ("an empty name", with("", b"1")),
        ("CR and LF in a value", with("x-split", b"1\r\nx-more: 2")),
        ("LF in a value", with("x-split", b"1\n")),
        ("NUL in a value", with("x-nul", b"\0")),
        // 8.2.2.
        ("Connection", with("connection", b"close")),
        ("Keep-Alive", with("keep-alive", b"1")),
        ("Proxy-Connection", with("proxy-connection", b"close")),
        ("Transfer-Encoding", with("transfer-encoding", b"chunked")),
        ("Upgrade", with("upgrade", b"h2c")),
        ("TE beyond trailers", with("te", b"trailers, gzip")),
        // 8.3.
        ("an unknown pseudo-field", with(":colour", b"red")),
        ("a response's pseudo-field", with(":status", b"200")),
        ("a pseudo-field after the others", late),
        ("a pseudo-field twice", twice),
        ("no method", without(":method")),
        ("no scheme", without(":scheme")),
        ("no path", without(":path")),
        ("neither authority nor host", without(":authority")),
        // 8.3.1.
        ("an empty path", with(":path", b"")),
        ("a path without a slash", with(":path", b"orders/7")),
        (
            "a whole URL for a path",
            with(":path", b"http://app.test/orders/7"),
        ),
        ("a space in the path", with(":path", b"/orders/7 HTTP/1.1")),
        ("CR and LF in the path", with(":path", b"/orders/7\r\nx: y")),
        ("NUL in the path", with(":path", b"/orders/\0")),
        ("DEL in the path", with(":path", b"/orders/\x7f")),
        ("a backslash in the path", with(":path", b"/orders\\7")),
        ("UTF-8 in the path", with(":path", "/orders/ü".as_bytes())),
        (
            "UTF-8 in the query",
            with(":path", "/orders/7?q=ü".as_bytes()),
        ),
        ("Latin-1 in the path", with(":path", b"/orders/\xfc")),
        ("another host", with("host", b"other.test")),
        ("an empty host beside the authority", with("host", b"")),
        ("the host twice", doubled("host", b"app.test")),
        ("an empty authority", with(":authority", b"")),
        ("user information", with(":authority", b"user@app.test")),
        (
            "user information and a password",
            with(":authority", b"app.test:80@evil.test"),
        ),
        (
            "a path in the authority",
            with(":authority", b"app.test/orders"),
        ),
        ("a space in the authority", with(":authority", b"app test")),
        // 8.1.1; RFC 9112, 6.3.
        ("a length that is no number", with("content-length", b"+0")),
        ("a length that is a list", with("content-length", b"0, 0")),
        ("an empty length", with("content-length", b"")),
        (
            "a length beyond numbers",
            with("content-length", b"99999999999999999999"),
        ),
        ("two equal lengths", doubled("content-length", b"0")),
        ("a length without a body", with("content-length", b"5")),
        // A server behind may read these as framing, or as ours.
        ("a length with an underscore", with("content_length", b"5")),
        (
            "a coding with an underscore",
            with("transfer_encoding", b"chunked"),
        ),
        ("a token with an underscore", with("x_fencing_token", b"8")),
        ("two tokens", doubled("x-fencing-token", b"7")),
    ];
    for (what, fields) in cases {
        let mut client = Http2::open(proxy.data()).await;
        let stream = client.head(&fields, true).await;
        let answer = client.answer(stream).await;
        assert!(is_refusal(&answer), "{what}: {answer:?}");
        assert_eq!(upstream.count(), 0, "{what}");
    }
    assert_eq!(proxy.token("order:7").await, None, "no mark has moved");
    is_served(&proxy).await;
}

#[tokio::test]
async fn a_body_of_another_length_than_it_says_goes_nowhere() {
    let (upstream, proxy) = fenced("{}").await;
    let cases: [BodyCase; 4] = [
        ("more than it says", b"3", &[b"1234"]),
        ("more, in a second frame", b"3", &[b"123", b"4"]),
        ("less than it says", b"5", &[b"1234"]),
        ("none", b"5", &[b""]),
    ];
    for (what, length, frames) in cases {
        let mut client = Http2::open(proxy.data()).await;
        let stream = client.head(&with("content-length", length), false).await;
        for (at, data) in frames.iter().enumerate() {
            client.data(stream, data, at + 1 == frames.len()).await;
        }
        let answer = client.answer(stream).await;
        assert!(is_refusal(&answer), "{what}: {answer:?}");
        assert_eq!(upstream.count(), 0, "{what}");
    }
    assert_eq!(proxy.token("order:7").await, None, "no mark has moved");
    is_served(&proxy).await;
}

#[tokio::test]
async fn what_is_judged_is_what_goes_upstream() {
    let (upstream, proxy) = fenced("{}").await;
    let mut client = Http2::open(proxy.data()).await;
    let mut fields = good("/orders/7?a=1#../8");
    fields.push(("host", b"APP.test"));
    fields.push(("te", b"trailers"));
    fields.push(("trailer", b"x-sum"));
    fields.push(("cookie", b"a=1"));
    fields.push(("cookie", b"b=2"));
    let stream = client.head(&fields, false).await;
    client.data(stream, b"body", false).await;
    let trailers = block(&[("x-sum", b"5"), ("content-length", b"9")]);
    let end = frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
    client.send(&end).await.expect("a live connection");
    assert_eq!(client.answer(stream).await, Outcome::Status(200));
    let arrival = upstream.only();
    // A fragment is cut off before anything is decided, and never comes back.
    assert_eq!(arrival.target(), "/orders/7?a=1");
    assert_eq!(arrival.resource(), Some("order:7"));
    assert_eq!(arrival.head.get("host"), Some("app.test"));
    assert_eq!(arrival.head.all("te"), [""; 0]);
    assert_eq!(arrival.head.all("cookie"), ["a=1; b=2"]);
    assert_eq!(arrival.text(), "body");
    assert_eq!(arrival.trailers, []);
    assert_eq!(arrival.head.all("trailer"), [""; 0]);
    let passed = arrival.head.get("via").map(via);
    assert_eq!(passed.as_deref(), Some("2 fencepost"));
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
        proxy
            .until_metric(
                "fencepost_limit_reached_total",
                &[("limit", limit)],
                |count| count > 0.0,
            )
            .await;
        // Each stream is judged for itself.
        let stream = client.head(&good("/orders/8"), true).await;
        assert_eq!(client.answer(stream).await, Outcome::Status(200), "{what}");
    }
    assert!(upstream.tokens("order:7").is_empty());
    // Far beyond the limit it is the library that refuses, before anything is stored.
    let far = vec![b'a'; 16 << 10];
    let mut client = Http2::open(proxy.data()).await;
    let fields = with("x-long", &far[..15 << 10]);
    let stream = client.head(&fields, true).await;
    let answer = client.answer(stream).await;
    assert!(is_refusal(&answer), "{answer:?}");
}
