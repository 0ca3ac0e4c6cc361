//! More than one exchange on a connection; and what a connection of HTTP/2 makes of one.

use std::net::SocketAddr;
use std::sync::Arc;

use super::cases::Case;
use super::compare;
use super::scribe::{Arrival, Scribe};
use super::servers::{Kind, Server};
use super::{fenced, matrix, play};
use crate::support::wait::soon;
use crate::support::wire::{Head, Wire};
use crate::support::{Answer, Config, Proxy, Step, Store, Upstream, get, put};

/// Cases that leave the connection open and are short enough to be sent before anything is read.
fn short(cases: &[Case]) -> Vec<&Case> {
    cases
        .iter()
        .filter(|case| !case.closes && !case.expects() && case.version == "HTTP/1.1")
        .filter(|case| !case.is_not_by(Kind::Nginx))
        .filter(|case| case.head_bytes().len() + case.body_bytes().len() < 2000)
        .filter(|case| case.answer.len() < 2000 && !case.has_line("connection"))
        .collect()
}

async fn answer(wire: &mut Wire, case: &Case) -> Answer {
    let read = async {
        let head = wire
            .head()
            .await?
            .ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let mut body = Vec::new();
        let framing = head.response_framing(case.method == "HEAD");
        let trailers = wire
            .body(framing, |piece| body.extend_from_slice(piece))
            .await?;
        Ok::<_, std::io::Error>(Answer {
            head,
            interim: Vec::new(),
            body,
            trailers,
        })
    };
    let what = format!("the answer to {}", case.name);
    let answer = soon(&what, read).await;
    answer.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Sends `ahead` requests before it reads an answer, again and again, on one connection; each exchange is
/// held against the same one without the proxy.
async fn one_connection(
    ahead: usize,
    by: Option<Kind>,
    plain: SocketAddr,
    through: SocketAddr,
    scribe: &mut Scribe,
) {
    let all = matrix::all();
    let cases = short(&all);
    assert!(cases.len() > 100, "only {} short cases", cases.len());
    let mut expected: Vec<(Arrival, Answer)> = Vec::new();
    for case in &cases {
        let seen = play(case, plain, scribe).await;
        expected.push(seen.unwrap_or_else(|why| panic!("{}: {why}", case.name)));
    }
    let mut wire = Wire::connect(through).await.expect("it listens");
    for (batch, wanted) in cases.chunks(ahead).zip(expected.chunks(ahead)) {
        let mut bytes = Vec::new();
        for case in batch {
            bytes.extend_from_slice(&case.head_bytes());
            bytes.extend_from_slice(&case.body_bytes());
        }
        wire.send(&bytes).await.expect("they are taken");
        for (case, (sent, told)) in batch.iter().zip(wanted) {
            let answered = answer(&mut wire, case).await;
            let arrived = scribe.arrival().await;
            let same = compare::arrivals(case, by, sent, &arrived);
            let same = same.and_then(|()| compare::answers(case, by, told, &answered));
            same.unwrap_or_else(|why| panic!("{}: {why}", case.name));
        }
    }
    scribe.assert_no_more();
}

async fn each_way(kind: Option<Kind>, ahead: usize, test: &str) {
    let cases = Arc::new(matrix::all());
    let mut scribe = Scribe::start(cases).await;
    let to = scribe.address;
    let Some(kind) = kind else {
        let proxy = fenced(to).await;
        return one_connection(ahead, None, to, proxy.data(), &mut scribe).await;
    };
    let Some(server) = Server::start(kind, to, test).await else {
        return;
    };
    let (plain, by) = (server.address, Some(kind));
    let proxy = fenced(plain).await;
    one_connection(ahead, by, plain, proxy.data(), &mut scribe).await;
    let proxy = fenced(to).await;
    let in_front = Server::start(kind, proxy.data(), test).await;
    let in_front = in_front.expect("it has started before");
    one_connection(ahead, by, plain, in_front.address, &mut scribe).await;
}

#[tokio::test]
async fn exchanges_on_one_connection_are_each_their_own() {
    each_way(None, 1, "").await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    each_way(None, 7, "").await;
}

#[tokio::test]
async fn exchanges_on_one_connection_with_nginx() {
    let test = "echo::streams::exchanges_on_one_connection_with_nginx";
    each_way(Some(Kind::Nginx), 1, test).await;
}

#[tokio::test]
async fn pipelined_requests_with_nginx() {
    let test = "echo::streams::pipelined_requests_with_nginx";
    each_way(Some(Kind::Nginx), 7, test).await;
}

#[tokio::test]
async fn exchanges_on_one_connection_with_haproxy() {
    let test = "echo::streams::exchanges_on_one_connection_with_haproxy";
    each_way(Some(Kind::HaProxy), 1, test).await;
}

#[tokio::test]
async fn pipelined_requests_with_haproxy() {
    let test = "echo::streams::pipelined_requests_with_haproxy";
    each_way(Some(Kind::HaProxy), 7, test).await;
}

/// An upstream that answers in HTTP/1.0 and keeps its connection: what goes there next may have no length.
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
        proxy.send(sent).await.assert_forwarded();
        assert_eq!(upstream.last().text().len(), body.len());
        proxy.send(get("/orders/7")).await.assert_forwarded();
    }
}

/// A frame of HTTP/2 (RFC 9113, 4.1), on stream 1 unless it is about the connection.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags, 0, 0, 0, u8::from(kind != 4)]);
    frame.extend_from_slice(payload);
    frame
}

/// A field, spelled out (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).expect("short enough for one byte");
    let mut bytes = vec![0, length(name)];
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(length(value));
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

#[tokio::test]
async fn http_2_arrives_as_a_person_would_write_it() {
    let mut cases = matrix::all();
    cases.truncate(1);
    let mut scribe = Scribe::start(Arc::new(cases)).await;
    let proxy = fenced(scribe.address).await;
    let mut wire = Wire::connect(proxy.data()).await.expect("it listens");
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
    let fields: Vec<u8> = fields
        .iter()
        .flat_map(|(name, value)| field(name, value))
        .collect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, b""));
    bytes.extend(frame(1, 5, &fields));
    wire.send(&bytes).await.expect("it is taken");
    let arrived: Head = scribe.arrival().await.head;
    assert_eq!(arrived.start, "DELETE /e/0?b=%2f HTTP/1.1");
    let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let end_to_end: Vec<(String, String)> = arrived
        .headers
        .iter()
        .filter(|(name, _)| {
            !["Via", "Idempotency-Key"].contains(&&**name)
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
    ] {
        assert!(names.contains(&ours), "{ours} in {names:?}");
    }
}
