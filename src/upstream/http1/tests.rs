//! Exchanges with upstreams that are written by hand, byte by byte.

mod pool;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::body::RequestBody;
use crate::body::UpstreamRequest;
use crate::http1::Fields;
use crate::http1::{RequestHead, Response, Target};
use crate::metrics::Metrics;
use crate::upstream::connect::SendError;
use crate::upstream::tests::connecting;

const LONG: Duration = Duration::from_secs(20);
const HEAD_END: &[u8] = b"\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

struct Bench {
    listener: TcpListener,
    pool: Arc<Http1Pool>,
}

impl Bench {
    async fn new() -> Self {
        Self::with_idle_timeout(LONG).await
    }

    async fn with_idle_timeout(idle_timeout: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let pool = Http1Pool::new(connecting(port, idle_timeout));
        Self { listener, pool }
    }

    async fn accept(&self) -> TcpStream {
        let accepted = tokio::time::timeout(LONG, self.listener.accept()).await;
        accepted.expect("in time").expect("a connection").0
    }

    async fn send(&self, request: UpstreamRequest) -> Result<Response<Http1Body>, SendError> {
        let pending = Http1Exchange::new(Arc::clone(&self.pool), request);
        let answered = tokio::time::timeout(LONG, pending.response()).await;
        answered.expect("in time")
    }

    /// The upstream: answers over a new connection, once it has read up to this.
    async fn serve(&self, end: &[u8], answer: &[u8]) -> TcpStream {
        let mut socket = self.accept().await;
        read_until(&mut socket, end).await;
        socket.write_all(answer).await.expect("written");
        socket
    }

    /// Has an exchange over a new connection, whose other end it returns.
    async fn warm(&self) -> TcpStream {
        let (answer, socket) = tokio::join!(self.send(get()), self.serve(HEAD_END, OK));
        assert_eq!(whole(answer.expect("a head")).await, Some(b"ok".to_vec()));
        assert_eq!(self.pool.idle(), 1);
        socket
    }

    async fn until_idle(&self, count: usize) {
        let soon = async {
            while self.pool.idle() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let became = tokio::time::timeout(LONG, soon).await;
        assert!(became.is_ok(), "{} idle, not {count}", self.pool.idle());
    }
}

fn request(method: Method, upload: RequestBody) -> UpstreamRequest {
    let target = Target::new(PathAndQuery::from_static("/a?b=%2f"), None);
    let mut fields = Fields::default();
    fields.append("host", "x");
    UpstreamRequest {
        head: RequestHead::new(method, target, Version::HTTP_11, fields),
        body: upload.send(Arc::default(), true),
    }
}

fn get() -> UpstreamRequest {
    request(Method::GET, RequestBody::empty())
}

async fn read_until(socket: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    while !seen.ends_with(end) {
        seen.push(socket.read_u8().await.expect("more to read"));
    }
    seen
}

/// Reads up to the end of a head.
async fn read_request(socket: &mut TcpStream) -> String {
    String::from_utf8(read_until(socket, HEAD_END).await).expect("ASCII")
}

/// Not a byte more comes before the end.
async fn ends(mut socket: TcpStream) {
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

/// The body's data, if it is whole.
async fn whole(response: Response<Http1Body>) -> Option<Vec<u8>> {
    let body = response.body.collect();
    let collected = tokio::time::timeout(LONG, body).await.expect("in time");
    Some(collected.ok()?.to_bytes().to_vec())
}

/// Answers, their bodies, and whether their connections may be used again.
const ANSWERS: &[(&[u8], &[u8], bool)] = &[
    (OK, b"ok", true),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", true),
    (
        b"HTTP/1.1 103 E\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"x",
        true,
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
        b"okabc",
        true,
    ),
    (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
        false,
    ),
    (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
        false,
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n",
        b"ok",
        false,
    ),
];

#[tokio::test]
async fn an_answer_may_come_in_pieces() {
    for (answer, body, kept) in ANSWERS {
        for piece in [1, 2, 7, answer.len()] {
            let bench = Bench::new().await;
            let served = async {
                let mut socket = bench.accept().await;
                socket.set_nodelay(true).expect("an option");
                read_request(&mut socket).await;
                for piece in answer.chunks(piece) {
                    if socket.write_all(piece).await.is_err() {
                        // The bytes behind an answer, when it was closed.
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                socket
            };
            let exchange = async {
                let response = bench.send(get()).await.expect("a head");
                whole(response).await
            };
            let (got, mut socket) = tokio::join!(exchange, served);
            let case = answer.escape_ascii();
            assert_eq!(got.as_deref(), Some(*body), "{case}");
            if *kept {
                assert_eq!(bench.pool.idle(), 1, "{case}");
                let next = async {
                    read_request(&mut socket).await;
                    socket.write_all(OK).await.expect("written");
                };
                let (response, ()) = tokio::join!(bench.send(get()), next);
                assert_eq!(whole(response.expect("a head")).await, Some(b"ok".to_vec()));
            } else {
                bench.until_idle(0).await;
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_at_any_byte_is_never_whole() {
    for (answer, body, _) in ANSWERS.iter().take(4) {
        for end in 0..answer.len() {
            let bench = Bench::new().await;
            let served = async {
                let mut socket = bench.accept().await;
                read_request(&mut socket).await;
                socket.write_all(&answer[..end]).await.expect("written");
                if end % 2 == 0 {
                    let reset = Some(Duration::ZERO);
                    let _ = socket2::SockRef::from(&socket).set_linger(reset);
                }
            };
            let exchange = async {
                match bench.send(get()).await {
                    Ok(response) => whole(response).await,
                    Err(SendError::Broken(_)) => None,
                    Err(error) => panic!("{error:?}"),
                }
            };
            let (got, ()) = tokio::join!(exchange, served);
            // Trailers and the last empty line are all that may be missing behind a body.
            assert_eq!(got, None, "{end} bytes, {}", body.escape_ascii());
            assert_eq!(bench.pool.idle(), 0);
        }
    }
}

#[tokio::test]
async fn an_answer_may_end_with_its_connection() {
    let bench = Bench::new().await;
    let answer = b"HTTP/1.1 200 OK\r\n\r\nall of it";
    let served = async { drop(bench.serve(HEAD_END, answer).await) };
    let exchange = async {
        let response = bench.send(get()).await.expect("a head");
        assert_eq!(response.body.size_hint().exact(), None);
        whole(response).await
    };
    let (got, ()) = tokio::join!(exchange, served);
    assert_eq!(got, Some(b"all of it".to_vec()));
    assert_eq!(bench.pool.idle(), 0);
}

#[tokio::test]
async fn a_connection_goes_back_before_the_last_frame_is_handed_on() {
    for (answer, body, kept) in ANSWERS.iter().filter(|(_, body, _)| !body.is_empty()) {
        let bench = Bench::new().await;
        let served = bench.serve(HEAD_END, answer);
        let (response, _socket) = tokio::join!(bench.send(get()), served);
        let mut body_read = response.expect("a head").body;
        let mut read = Vec::new();
        while read.len() < body.len() {
            let frame = body_read.frame().await.expect("more").expect("unbroken");
            read.extend(frame.into_data().expect("data"));
        }
        assert_eq!(bench.pool.idle(), usize::from(*kept));
    }
}

#[tokio::test]
async fn heads_pass_as_they_are() {
    let bench = Bench::new().await;
    let mut asked = get();
    for (name, value) in [
        ("SOAPAction", "\"u\""),
        ("x-lower", "1"),
        ("X-Title", "a, b"),
        ("X-LOWER", "2"),
    ] {
        let fields = &mut asked.head.fields;
        fields.append_as(name.as_bytes(), value.as_bytes());
    }
    let served = async {
        let mut socket = bench.accept().await;
        let head = read_request(&mut socket).await;
        let answer = b"HTTP/1.1 299 Odd one\r\nETag: \"a\"\r\nX-A: \xff\tb\r\nx-a: c\r\nX-Empty: \r\nContent-Length: 0\r\n\r\n";
        socket.write_all(answer).await.expect("written");
        head
    };
    let (response, head) = tokio::join!(bench.send(asked), served);
    let wanted = "GET /a?b=%2f HTTP/1.1\r\nHost: x\r\nSOAPAction: \"u\"\r\nx-lower: 1\r\nX-Title: a, b\r\nX-LOWER: 2\r\n\r\n";
    assert_eq!(head, wanted);
    let response = response.expect("a head");
    assert_eq!(response.status(), 299);
    assert_eq!(response.head.reason.as_deref(), Some(&b"Odd one"[..]));
    let lines: Vec<_> = response.head.fields.iter().collect();
    let expected: [(&[u8], &[u8]); 5] = [
        (b"ETag", b"\"a\""),
        (b"X-A", b"\xff\tb"),
        (b"x-a", b"c"),
        (b"X-Empty", b""),
        (b"Content-Length", b"0"),
    ];
    assert_eq!(lines, expected);
    assert!(response.body.is_end_stream());
}

#[tokio::test]
async fn a_tunnel_begins_behind_the_head_of_its_101() {
    let bench = Bench::new().await;
    let mut asked = get();
    asked.head.fields.append("upgrade", "x");
    let answer = b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello";
    let served = bench.serve(HEAD_END, answer);
    let (response, mut socket) = tokio::join!(bench.send(asked), served);
    let body = response.expect("a head").body;
    let mut upgraded = body.into_upgraded().expect("a tunnel");
    let mut tunnel = upgraded.tunnel();
    let mut got = [0; 5];
    tunnel.read_exact(&mut got).await.expect("what has come");
    assert_eq!(&got, b"hello");
    tunnel.write_all(b"ping").await.expect("written");
    socket.read_exact(&mut got[..4]).await.expect("it comes");
    assert_eq!(&got[..4], b"ping");
    socket.write_all(b"pong").await.expect("written");
    tunnel.read_exact(&mut got[..4]).await.expect("it comes");
    assert_eq!(&got[..4], b"pong");
    drop(tunnel);
    drop(upgraded);
    assert_eq!(bench.pool.idle(), 0);
    assert_eq!(socket.read(&mut got).await.expect("an end"), 0);
}
