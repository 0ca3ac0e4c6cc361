//! More than one exchange on a connection; and what a connection of HTTP/2 makes of one.

use std::net::SocketAddr;

use super::cases::EchoCase;
use super::compare;
use super::servers::{RealServer, ServerKind};
use super::{fenced, matrix, play, scripted};
use crate::support::client::Exchange;
use crate::support::http2::Http2;
use crate::support::upstream::Arrival;
use crate::support::wire::Head;
use crate::support::{Answer, Config, Proxy, Step, Store, Upstream, get, or_return, put};

/// Cases that leave the connection open and are short enough to be sent before anything is read.
fn short(cases: &[EchoCase]) -> Vec<&EchoCase> {
    cases
        .iter()
        .filter(|case| !case.closes && !case.expects() && case.version == "HTTP/1.1")
        .filter(|case| !case.is_not_by(ServerKind::Nginx))
        .filter(|case| case.head_bytes().len() + case.body_bytes().len() < 2000)
        .filter(|case| case.answer.len() < 2000 && !case.has_line("connection"))
        .collect()
}

/// Sends `ahead` requests before it reads an answer, again and again, on one connection; each
/// exchange is held against the same one without the proxy.
async fn one_connection(
    ahead: usize,
    by: Option<ServerKind>,
    plain: SocketAddr,
    through: SocketAddr,
    upstream: &Upstream,
) {
    let all = matrix::all();
    let cases = short(&all);
    assert!(cases.len() > 100, "only {} short cases", cases.len());
    let mut expected: Vec<(Arrival, Answer)> = Vec::new();
    for case in &cases {
        let seen = play(case, plain, upstream).await;
        expected.push(seen.unwrap_or_else(|why| panic!("{}: {why}", case.name)));
    }
    let mut exchange = Exchange::open(through, "").await.expect("it listens");
    for (batch, wanted) in cases.chunks(ahead).zip(expected.chunks(ahead)) {
        let mut bytes = Vec::new();
        for case in batch {
            bytes.extend_from_slice(&case.head_bytes());
            bytes.extend_from_slice(&case.body_bytes());
        }
        exchange.wire.send(&bytes).await.expect("they are taken");
        for (case, (sent, told)) in batch.iter().zip(wanted) {
            exchange.method.clone_from(&case.method);
            let answered = exchange.finish().await;
            let arrived = upstream.take().await;
            let same = compare::arrivals(case, by, sent, &arrived);
            let same = same.and_then(|()| compare::answers(case, by, told, &answered));
            same.unwrap_or_else(|why| panic!("{}: {why}", case.name));
        }
    }
    assert_eq!(upstream.count(), 0, "one arrival too many");
}

async fn each_way(kind: Option<ServerKind>, ahead: usize) {
    let (upstream, _) = scripted().await;
    let to = upstream.address();
    let Some(kind) = kind else {
        let proxy = fenced(to).await;
        return one_connection(ahead, None, to, proxy.data(), &upstream).await;
    };
    let server = or_return!(RealServer::start(kind, to).await);
    let (plain, by) = (server.address, Some(kind));
    let proxy = fenced(plain).await;
    one_connection(ahead, by, plain, proxy.data(), &upstream).await;
    let proxy = fenced(to).await;
    let in_front = RealServer::start(kind, proxy.data()).await;
    let in_front = in_front.expect("it has started before");
    one_connection(ahead, by, plain, in_front.address, &upstream).await;
}

#[tokio::test]
async fn exchanges_on_one_connection_are_each_their_own() {
    each_way(None, 1).await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    each_way(None, 7).await;
}

#[tokio::test]
async fn exchanges_on_one_connection_with_nginx() {
    each_way(Some(ServerKind::Nginx), 1).await;
}

#[tokio::test]
async fn pipelined_requests_with_nginx() {
    each_way(Some(ServerKind::Nginx), 7).await;
}

#[tokio::test]
async fn exchanges_on_one_connection_with_haproxy() {
    each_way(Some(ServerKind::HaProxy), 1).await;
}

#[tokio::test]
async fn pipelined_requests_with_haproxy() {
    each_way(Some(ServerKind::HaProxy), 7).await;
}

/// An upstream that answers in HTTP/1.0 and keeps its connection: what goes there next may have no
/// length.
#[tokio::test]
async fn a_body_of_no_length_reaches_an_upstream_that_answers_in_http_1_0() {
    let upstream = Upstream::start().await;
    let kept = "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok";
    upstream.otherwise(|_| vec![Step::raw(kept)]);
    let long = "b".repeat(3 << 20);
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start(&config).await;
    for body in ["short", &long, "short again"] {
        let sent = put("/orders/7").token(1).chunks(&[body.as_bytes()], "");
        proxy.forward(sent).await;
        assert_eq!(upstream.last().text().len(), body.len());
        proxy.forward(get("/orders/7")).await;
    }
}

#[tokio::test]
async fn http_2_arrives_as_a_person_would_write_it() {
    let (upstream, _) = scripted().await;
    let proxy = fenced(upstream.address()).await;
    let mut client = Http2::open(proxy.data()).await;
    let fields = [
        (":method", "DELETE"),
        (":scheme", "http"),
        (":path", "/e/0?b=%2f"),
        (":authority", "app.test"),
        ("x-fencing-token", "1"),
        ("cookie", "a=1"),
        ("x-b", "2"),
        ("cookie", "b=2; c=3"),
        ("x-a", "1"),
        ("soapaction", "\"urn:x\""),
        ("cookie", "d=4"),
        ("x-b", "1"),
    ];
    client
        .head(&fields.map(|(name, value)| (name, value.as_bytes())), true)
        .await;
    let arrived: Head = upstream.take().await.head;
    assert_eq!(arrived.start, "DELETE /e/0?b=%2f HTTP/1.1");
    let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let end_to_end: Vec<(String, String)> = arrived
        .headers
        .iter()
        .filter(|(name, _)| {
            !["Via", "Idempotency-Key", "X-Request-Id"].contains(&&**name)
                && !name.starts_with("X-F")
                && name != "Host"
        })
        .cloned()
        .collect();
    assert_eq!(
        end_to_end,
        [
            line("Cookie", "a=1; b=2; c=3; d=4"),
            line("X-B", "2"),
            line("X-B", "1"),
            line("X-A", "1"),
            line("Soapaction", "\"urn:x\""),
        ]
    );
    assert_eq!(arrived.get("host"), Some("app.test"));
    let names: Vec<&str> = arrived.headers.iter().map(|(name, _)| &**name).collect();
    for ours in [
        "X-Fencing-Token",
        "X-Fencing-Resource",
        "Via",
        "X-Forwarded-For",
        "X-Request-Id",
    ] {
        assert!(names.contains(&ours), "{ours} in {names:?}");
    }
}
