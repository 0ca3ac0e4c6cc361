//! Exchanges with an upstream that answers before it has read, breaks off, or does not answer: when
//! a permit ends, and as what.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::body::RequestBody;
use crate::body::UpstreamRequest;
use crate::body::{Feed, streamed};
use crate::config::{Overrides, RouteSettings, Span, parse};
use crate::fencing::Fencing;
use crate::fencing::tests::{Double, Rig, clock, key};
use crate::http1::Fields;
use crate::http1::{RequestHead, Response, Target};
use crate::metrics::{Metrics, Outcome};
use crate::proxy::client::Client;
use crate::proxy::client_body::ClientBody;
use crate::proxy::context::Context as RequestContext;
use crate::proxy::exchange::Asked;
use crate::proxy::headers::{OUTCOME, Via};
use crate::proxy::limits::InFlightLimit;
use crate::proxy::routing_table::{Route, Snapshot};
use crate::store::InstanceId;

const LONG: Duration = Duration::from_secs(20);
const HEAD_END: &[u8] = b"\r\n\r\n";

struct Bench {
    rig: Rig,
    fencing: Arc<Fencing>,
    limit: InFlightLimit,
    tasks: TaskTracker,
    snapshot: Arc<Snapshot>,
    route: RouteSettings,
    metrics: Arc<Metrics>,
    listener: TcpListener,
}

impl Bench {
    async fn new() -> Self {
        let rig = Rig::new(Arc::new(Double::default()), 1, clock()).await;
        let fencing = Arc::clone(&rig.0);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        // No deadline of the upstream or the upload: nothing but the exchange may end one.
        let text = format!(
            "upstream: {{ url: 'http://{address}', timeout: 20s }}
body: {{ timeout: 20s }}
routes: [{{ path: '/{{id}}', resource: '{{id}}' }}]"
        );
        let (settings, _) = parse(&text, &Overrides::default()).expect("a configuration");
        let metrics = Arc::new(Metrics::new(&[]));
        let (limits, route) = (settings.limits, settings.routes[0].clone());
        let snapshot = Snapshot::of(settings, fencing.lease(), &metrics);
        Self {
            limit: InFlightLimit::new(&limits, Arc::clone(&metrics)),
            rig,
            fencing,
            tasks: TaskTracker::new(),
            snapshot,
            route,
            metrics,
            listener,
        }
    }

    async fn permit(&self, number: i64) -> Permit {
        self.rig.admit("a", number).await
    }

    fn exchange(&self, upload: RequestBody, grace: Duration) -> (Box<Exchange>, FenceTerms) {
        let client = Arc::new(Client::at(None, 4));
        let mut route = self.route.clone();
        route.barrier.grace = Span(grace);
        let terms = FenceTerms {
            context: RequestContext::of(
                None,
                Arc::clone(&self.snapshot),
                client,
                false,
                (None, false),
            ),
            route: Arc::new(Route {
                metrics: self.metrics.route(route.label()),
                settings: route,
                host_in_key: false,
            }),
            progress: Arc::default(),
            outcome: Outcome::Current,
            asked: Asked {
                head: false,
                writes: true,
                grpc: false,
            },
            spend: None,
            attempt: None,
            via: Via::new(InstanceId::from_bits(1)),
        };
        let target = Target::new(PathAndQuery::from_static("/"), None);
        let fields = Fields::default();
        let exchange = Exchange {
            span: None,
            request: UpstreamRequest {
                head: RequestHead::new(http::Method::PUT, target, http::Version::HTTP_11, fields),
                body: upload.send(Arc::clone(&terms.progress), true),
            },
        };
        (Box::new(exchange), terms)
    }

    fn held(&self, terms: &FenceTerms) -> (InFlightPermit, Listed) {
        let listed = Listed::new(&terms.context, Stage::Body, Instant::now() + LONG);
        (self.limit.take(&Client::at(None, 4)).expect("room"), listed)
    }

    async fn forward(
        &self,
        upload: RequestBody,
        grace: Duration,
    ) -> Result<Response<ClientBody>, Refusal> {
        let permit = self.permit(5).await;
        let (exchange, terms) = self.exchange(upload, grace);
        let held = self.held(&terms);
        let answered = forward(permit, exchange, terms, held, &self.tasks).await;
        answered.map(|forwarded| forwarded.response)
    }

    /// The upstream: answers over a new connection, once it has read up to this.
    async fn serve(&self, end: &[u8], answer: &[u8]) -> TcpStream {
        let (mut socket, _) = self.listener.accept().await.expect("a connection");
        let mut seen = Vec::new();
        while !seen.ends_with(end) {
            seen.push(socket.read_u8().await.expect("more to read"));
        }
        socket.write_all(answer).await.expect("written");
        socket
    }

    /// Until every exchange has ended.
    async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn in_flight(&self) -> (usize, usize) {
        self.rig.in_flight(&key("a"))
    }
}

/// A body of ten bytes with five arrived, and the connection that may bring the rest.
fn half_an_upload() -> (RequestBody, Feed) {
    let (feed, body) = streamed(Some(10));
    let hello = Some(Bytes::from_static(b"hello"));
    feed.give(hello, false, &Context::from_waker(Waker::noop()));
    (RequestBody::unlimited(body), feed)
}

#[tokio::test]
async fn a_whole_answer_ends_its_upload_and_settles_where_what_was_sent_has_been_taken() {
    let bench = Bench::new().await;
    let (upload, _client) = half_an_upload();
    let upstream = bench.serve(b"hello", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let (answer, mut socket) = tokio::join!(bench.forward(upload, LONG), upstream);
    let body = answer.expect("a head").body.collect();
    assert_eq!(body.await.expect("whole").to_bytes(), "ok");
    // The client never sends the rest, and nothing waits for it.
    bench.ended().await;
    assert_eq!(bench.in_flight(), (0, 0));
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(LONG, socket.read_to_end(&mut rest)).await;
    assert!(closed.is_ok() && rest.is_empty());
}

#[tokio::test]
async fn an_exchange_goes_on_wherever_its_client_leaves_before_the_head_of_the_answer() {
    // The upstream's state when the client leaves, and the rest of its answer.
    for (said, rest) in [
        ("", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("HTTP/1.1 200", " OK\r\ncontent-length: 0\r\n\r\n"),
        (
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        ),
        ("", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
    ] {
        let bench = Bench::new().await;
        let mut request = Box::pin(bench.forward(RequestBody::empty(), LONG));
        let upstream = bench.serve(HEAD_END, said.as_bytes());
        let mut socket = tokio::select! {
            _ = &mut request => unreachable!("there is no head yet"),
            socket = upstream => socket,
        };
        drop(request);
        assert_eq!(bench.in_flight(), (1, 0), "{rest:?}");
        socket.write_all(rest.as_bytes()).await.expect("written");
        drop(socket);
        bench.ended().await;
        let unknown = usize::from(rest.contains('9'));
        assert_eq!(bench.in_flight(), (0, unknown), "{rest:?}");
    }
}

/// A frame is what one read from the upstream returned: more of them than a client that reads may lag
/// behind, and as many.
#[tokio::test]
async fn an_answer_in_many_pieces_is_read_to_its_end_though_its_client_has_left() {
    for pieces in [1, 2, 3, 8] {
        let bench = Bench::new().await;
        let mut request = Box::pin(bench.forward(RequestBody::empty(), LONG));
        let mut socket = tokio::select! {
            _ = &mut request => unreachable!("there is no head yet"),
            socket = bench.serve(HEAD_END, b"") => socket,
        };
        drop(request);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {pieces}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.expect("written");
        for _ in 0..pieces {
            tokio::time::sleep(Duration::from_millis(5)).await;
            socket.write_all(b"x").await.expect("written");
        }
        let ended = tokio::time::timeout(LONG, bench.ended()).await;
        assert_eq!((ended, bench.in_flight()), (Ok(()), (0, 0)), "{pieces}");
    }
}

#[tokio::test]
async fn a_request_whose_client_leaves_before_it_begins_is_let_go() {
    let bench = Bench::new().await;
    // Never polled, so that nothing has begun.
    drop(bench.forward(RequestBody::empty(), LONG));
    assert_eq!(bench.in_flight(), (0, 0));
    let permit = bench.permit(5).await;
    let (exchange, terms) = bench.exchange(RequestBody::empty(), LONG);
    let held = bench.held(&terms);
    let request = forward(permit, exchange, terms, held, &bench.tasks);
    assert_eq!(bench.in_flight(), (1, 0));
    drop(request);
    bench.ended().await;
    assert_eq!(bench.in_flight(), (0, 0));
}

#[tokio::test]
async fn an_answer_that_came_whole_has_ended_its_exchange() {
    for (answer, content) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", ""),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "ok"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "ok",
        ),
    ] {
        let bench = Bench::new().await;
        let upstream = bench.serve(HEAD_END, answer.as_bytes());
        let (answered, _socket) = tokio::join!(bench.forward(RequestBody::empty(), LONG), upstream);
        assert_eq!(bench.in_flight(), (0, 0), "{answer:?}");
        assert!(bench.tasks.is_empty(), "{answer:?}");
        let body = answered.expect("a head").body;
        let exact = (!answer.contains("chunked")).then_some(content.len() as u64);
        assert_eq!(
            http_body::Body::size_hint(&body).exact(),
            exact,
            "{answer:?}"
        );
        let taken = body.collect().await.expect("whole").to_bytes();
        assert_eq!(taken, content.as_bytes());
    }
}

#[tokio::test]
async fn a_whole_answer_settles_though_its_client_has_left() {
    let bench = Bench::new().await;
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok";
    let upstream = bench.serve(HEAD_END, half);
    let (answer, mut socket) = tokio::join!(bench.forward(RequestBody::empty(), LONG), upstream);
    drop(answer.expect("a head"));
    assert_eq!(
        bench.in_flight(),
        (1, 0),
        "the client has left, the exchange not"
    );
    socket.write_all(b"ok").await.expect("the other half");
    bench.ended().await;
    assert_eq!(bench.in_flight(), (0, 0));
}

#[tokio::test]
async fn every_break_after_the_send_is_an_unknown_outcome() {
    for part in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok",
    ] {
        let bench = Bench::new().await;
        let upstream = async { drop(bench.serve(HEAD_END, part.as_bytes()).await) };
        let (answer, ()) = tokio::join!(bench.forward(RequestBody::empty(), LONG), upstream);
        let answer = answer.expect("an answer");
        match answer.head.fields.get_str(OUTCOME) {
            // The proxy's own, in place of the upstream's.
            Some(outcome) => assert_eq!(
                (answer.status().as_u16(), outcome),
                (502, "outcome-unknown")
            ),
            None => assert!(answer.body.collect().await.is_err(), "never whole"),
        }
        bench.ended().await;
        assert_eq!(bench.in_flight(), (0, 1), "{part:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_settles_at_once() {
    let mut bench = Bench::new().await;
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    drop(std::mem::replace(&mut bench.listener, other));
    let refused = bench.forward(RequestBody::empty(), LONG).await;
    assert!(matches!(refused, Err(Refusal::Unreachable(_))));
    bench.ended().await;
    assert_eq!(bench.in_flight(), (0, 0));
}

#[tokio::test]
async fn a_lapsed_lease_writes_nothing_even_on_a_connection_that_is_open() {
    let bench = Bench::new().await;
    let answer = bench.serve(HEAD_END, b"HTTP/1.1 204 No Content\r\n\r\n");
    let (answered, mut socket) = tokio::join!(bench.forward(RequestBody::empty(), LONG), answer);
    answered.expect("a head");
    let permit = bench.permit(5).await;
    bench.fencing.lease().end();
    let (exchange, terms) = bench.exchange(RequestBody::empty(), LONG);
    let held = bench.held(&terms);
    let cut = forward(permit, exchange, terms, held, &bench.tasks).await;
    let outcome = cut.expect("the proxy's own answer").outcome;
    assert_eq!(outcome, Some(Outcome::OutcomeUnknown));
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
}
