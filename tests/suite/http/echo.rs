//! Requests and responses pass byte for byte, except as the documentation says ([`compare`]): over
//! a matrix of exchanges ([`matrix`]). Each is compared with the same one without the proxy.

mod cases;
mod compare;
mod matrix;

use std::fmt::Write as _;
use std::iter;
use std::net::SocketAddr;

use self::cases::EchoCase;
pub use self::cases::noise;
use super::before;
use crate::support::client::Exchange;
use crate::support::upstream::Arrival;
use crate::support::wait::soon;
use crate::support::{Answer, Must, Proxy, Step, Upstream, request};

/// The proxy in front of an address.
async fn fenced(to: SocketAddr) -> Proxy {
    let routes = "routes: [{ path: '/e/{*rest}', resource: 'e:{rest}', methods: [POST, PUT, PATCH, \
        DELETE, PURGE, M-SEARCH, LABEL, X_OWN, GETS, XPUT, 'X!#$%&''*+.^`|~0'] }]";
    before(&format!("http://{to}"), routes).await
}

/// An upstream that answers with the bytes of the case.
async fn scripted() -> (Upstream, Vec<EchoCase>) {
    let cases = matrix::all();
    let known = cases.clone();
    let upstream = Upstream::start().await;
    upstream.otherwise(move |head| {
        let Some(case) = EchoCase::of(&known, head.word(1)) else {
            return vec![Step::Close];
        };
        let end = case.closes.then_some(Step::Close);
        iter::once(Step::Send(case.answer.clone()))
            .chain(end)
            .collect()
    });
    (upstream, cases)
}

/// Plays one case against `front`; what arrived, and what was answered.
async fn play(
    case: &EchoCase,
    front: SocketAddr,
    upstream: &Upstream,
) -> Result<(Arrival, Answer), String> {
    let exchanged = async {
        let mut exchange = Exchange::open(front, &case.method).await?;
        exchange.wire.send(&case.head_bytes()).await?;
        let mut interim = Vec::new();
        if case.expects() {
            interim.push(exchange.any_head().await);
        }
        exchange.wire.send(&case.body_bytes()).await?;
        let mut answer = exchange.answer().await?;
        answer.interim.splice(0..0, interim);
        Ok::<_, std::io::Error>(answer)
    };
    let answer = soon(&case.name, exchanged).await;
    let answer = answer.map_err(|error| format!("no answer: {error}"))?;
    let arrival = upstream.take().await;
    assert_eq!(upstream.count(), 0, "one arrival too many");
    Ok((arrival, answer))
}

#[tokio::test]
async fn alone() {
    let (upstream, cases) = scripted().await;
    let proxy = fenced(upstream.address()).await;
    let mut wrong = String::new();
    for case in &cases {
        let mut say = |side: &str, why: &str| {
            writeln!(wrong, "{}: {side}: {why}", case.name).expect("a String takes all");
        };
        let (sent, told) = match play(case, upstream.address(), &upstream).await {
            Ok(seen) => seen,
            Err(why) => {
                say("without the proxy", &why);
                continue;
            }
        };
        match play(case, proxy.data(), &upstream).await {
            Ok((arrived, answered)) => {
                let request = compare::arrivals(case, &sent, &arrived);
                request.unwrap_or_else(|why| say("request", &why));
                let answer = compare::answers(case, &told, &answered);
                answer.unwrap_or_else(|why| say("answer", &why));
            }
            Err(why) => say("through the proxy", &why),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(cases.len() > 150, "only {} cases", cases.len());
}

/// Cases that leave the connection open and are short enough to be sent before anything is read.
fn short(cases: &[EchoCase]) -> Vec<&EchoCase> {
    cases
        .iter()
        .filter(|case| !case.closes && !case.expects() && case.version == "HTTP/1.1")
        .filter(|case| case.head_bytes().len() + case.body_bytes().len() < 2000)
        .filter(|case| case.answer.len() < 2000 && !case.has_line("connection"))
        .collect()
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let (upstream, all) = scripted().await;
    let proxy = fenced(upstream.address()).await;
    let cases = short(&all);
    assert!(cases.len() > 100, "only {} short cases", cases.len());
    let mut exchange = Exchange::open(proxy.data(), "").must().await;
    for batch in cases.chunks(7) {
        let mut expected = Vec::new();
        let mut bytes = Vec::new();
        for case in batch {
            let seen = play(case, upstream.address(), &upstream).await;
            expected.push(seen.unwrap_or_else(|why| panic!("{}: {why}", case.name)));
            bytes.extend(case.head_bytes());
            bytes.extend(case.body_bytes());
        }
        exchange.push(&bytes).await;
        for (case, (sent, told)) in batch.iter().zip(expected) {
            exchange.method.clone_from(&case.method);
            let answered = exchange.finish().await;
            let same = compare::arrivals(case, &sent, &upstream.take().await);
            let same = same.and_then(|()| compare::answers(case, &told, &answered));
            same.unwrap_or_else(|why| panic!("{}: {why}", case.name));
        }
    }
    assert_eq!(upstream.count(), 0, "one arrival too many");
}

#[tokio::test]
async fn http_2_arrives_as_a_person_would_write_it() {
    let (upstream, _) = scripted().await;
    let proxy = fenced(upstream.address()).await;
    let fields = [
        ("x-fencing-token", "1"),
        ("cookie", "a=1"),
        ("x-b", "2"),
        ("cookie", "b=2; c=3"),
        ("x-a", "1"),
        ("soapaction", "\"urn:x\""),
        ("cookie", "d=4"),
        ("x-b", "1"),
    ];
    let asked = fields
        .iter()
        .fold(request("DELETE", "/e/0?b=%2f"), |asked, (name, value)| {
            asked.header(name, value)
        });
    asked.send_http2(proxy.data()).await.assert_forwarded();
    let head = upstream.take().await.head;
    assert_eq!(head.start, "DELETE /e/0?b=%2f HTTP/1.1");
    assert_eq!(head.get("host"), Some("app.test"));
    let lines = head.headers.iter();
    let lines: Vec<String> = lines
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let at = lines.iter().position(|line| line.starts_with("Cookie"));
    let sent = &lines[at.expect("there are cookies")..];
    assert_eq!(
        sent[..5],
        [
            "Cookie: a=1; b=2; c=3; d=4",
            "X-B: 2",
            "X-B: 1",
            "X-A: 1",
            "Soapaction: \"urn:x\"",
        ]
    );
}
