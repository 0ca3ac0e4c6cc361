//! A client that can be as rude as a test needs: one connection per request, nothing followed,
//! nothing sent again, nothing corrected.

use std::net::SocketAddr;
use std::panic::Location;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::Must;
use super::wait::soon;
use super::wire::{Head, Stream, Wire, chunk};

/// A request as it will stand on the wire.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    host: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

pub fn request(method: &str, target: &str) -> Request {
    Request {
        method: method.to_owned(),
        target: target.to_owned(),
        host: Some("app.test".to_owned()),
        headers: Vec::new(),
        body: Vec::new(),
    }
}

pub fn get(target: &str) -> Request {
    request("GET", target)
}

pub fn put(target: &str) -> Request {
    request("PUT", target)
}

pub fn post(target: &str) -> Request {
    request("POST", target)
}

pub fn delete(target: &str) -> Request {
    request("DELETE", target)
}

impl Request {
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers
            .push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub fn token(self, token: impl std::fmt::Display) -> Self {
        self.header("X-Fencing-Token", format!("{token}"))
    }

    /// The first value of a header field.
    pub fn get(&self, name: &str) -> Option<String> {
        let mut fields = self.headers.iter();
        let (_, value) = fields.find(|(own, _)| own == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    pub fn host(mut self, host: Option<&str>) -> Self {
        self.host = host.map(str::to_owned);
        self
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// Sends the body in these chunks, with these trailer lines (each with its CRLF).
    pub fn chunks(self, chunks: &[&[u8]], trailers: &str) -> Self {
        let mut body: Vec<u8> = chunks.iter().flat_map(|piece| chunk(piece)).collect();
        body.extend(format!("0\r\n{trailers}\r\n").bytes());
        self.header("Transfer-Encoding", "chunked").body(body)
    }

    /// The head on the wire, up to and with the empty line.
    pub fn head_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if let Some(host) = &self.host {
            bytes.extend(format!("Host: {host}\r\n").bytes());
        }
        for (name, value) in &self.headers {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        let framing = ["content-length", "transfer-encoding"];
        let framed = |(name, _): &(String, _)| framing.contains(&&*name.to_ascii_lowercase());
        let has_body = !self.body.is_empty() || matches!(&*self.method, "PUT" | "POST" | "PATCH");
        if has_body && !self.headers.iter().any(framed) {
            bytes.extend(format!("Content-Length: {}\r\n", self.body.len()).bytes());
        }
        bytes.extend(b"\r\n");
        bytes
    }

    /// The whole request on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        [self.head_bytes(), self.body.clone()].concat()
    }

    /// Sends it all and reads the whole answer.
    ///
    /// # Panics
    /// If no whole answer comes in time.
    pub async fn send(&self, to: SocketAddr) -> Answer {
        let what = format!("the answer to {} {}", self.method, self.target);
        let answer = soon(&what, self.attempt(to)).await;
        answer.expect(&what)
    }

    /// As [`Self::send`], where the connection may break.
    pub async fn attempt(&self, to: SocketAddr) -> std::io::Result<Answer> {
        self.over(Wire::connect(to).await?).await
    }

    async fn over(&self, wire: Wire) -> std::io::Result<Answer> {
        let mut exchange = Exchange::over(wire, self);
        // A server may answer and close before it has read everything: the answer counts.
        let sent = exchange.wire.send(&self.bytes()).await;
        let answer = exchange.answer().await;
        answer.map_err(|error| sent.err().unwrap_or(error))
    }

    /// As [`Self::send`], over HTTP/2 with prior knowledge.
    pub async fn send_http2(&self, to: SocketAddr) -> Answer {
        let stream = TcpStream::connect(to).must().await;
        self.http2_over(stream).await
    }

    /// As [`Self::send_http2`], over a connection that is there.
    pub async fn http2_over(&self, stream: impl Stream) -> Answer {
        let host = self.host.as_deref().unwrap_or("app.test");
        let mut request = http::Request::builder()
            .method(self.method.as_str())
            .uri(format!("http://{host}{}", self.target));
        for (name, value) in &self.headers {
            request = request.header(name, &value[..]);
        }
        let body = Full::new(Bytes::from(self.body.clone()));
        let request = request.body(body).expect("a request");
        let what = format!("the answer to {} {} over HTTP/2", self.method, self.target);
        let answer = soon(&what, async {
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes().to_vec();
            connection.abort();
            let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.to_string(), value)
            };
            let head = Head {
                start: format!("HTTP/2 {}", parts.status.as_u16()),
                headers: parts.headers.iter().map(field).collect(),
            };
            Ok::<_, hyper::Error>(Answer {
                head,
                body,
                ..Answer::default()
            })
        });
        answer.await.expect(&what)
    }

    /// As [`Self::send`], from this address.
    pub async fn send_from(&self, from: std::net::Ipv4Addr, to: SocketAddr) -> Answer {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("an own address");
        let wire = Wire::new(socket.connect(to).must().await);
        soon("the answer", self.over(wire)).must().await
    }

    /// Sends it from a task of its own.
    pub fn start(self, to: SocketAddr) -> JoinHandle<Answer> {
        tokio::spawn(async move { self.send(to).await })
    }
}

/// A connection in the middle of one request; drop it to leave.
pub struct Exchange {
    pub wire: Wire,
    /// Decides how the answer is framed.
    pub method: String,
    interim: Vec<Head>,
}

impl Exchange {
    /// Connects.
    pub async fn open(to: SocketAddr, method: &str) -> std::io::Result<Self> {
        Ok(Self::over(Wire::connect(to).await?, &request(method, "")))
    }

    /// Over a connection that is there.
    pub fn over(wire: Wire, request: &Request) -> Self {
        Self {
            wire,
            method: request.method.clone(),
            interim: Vec::new(),
        }
    }

    /// Connects and sends the head of `request`, and as much of a body as `part` holds.
    pub async fn begin(to: SocketAddr, request: &Request, part: &[u8]) -> Self {
        let mut exchange = Self::open(to, &request.method).must().await;
        exchange.wire.send(&request.head_bytes()).must().await;
        exchange.wire.send(part).must().await;
        exchange
    }

    /// Sends more of the request.
    #[track_caller]
    pub fn push(&mut self, bytes: impl AsRef<[u8]>) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let sent = self.wire.send(bytes.as_ref()).await;
            sent.unwrap_or_else(|error| panic!("{at}: {error}"));
        }
    }

    /// The next head that is not an interim one.
    pub async fn head(&mut self) -> std::io::Result<Head> {
        loop {
            let head = self.wire.head().await?;
            let head = head.ok_or(std::io::ErrorKind::UnexpectedEof)?;
            if head.word(1).starts_with('1') && head.word(1) != "101" {
                self.interim.push(head);
            } else {
                return Ok(head);
            }
        }
    }

    /// The next head, interim or not.
    pub async fn any_head(&mut self) -> Head {
        let head = soon("a response head", self.wire.head()).must().await;
        head.expect("not the end of the stream")
    }

    pub async fn answer(&mut self) -> std::io::Result<Answer> {
        let head = self.head().await?;
        let framing = head.response_framing(self.method == "HEAD");
        let mut body = Vec::new();
        let sink = |bytes: &[u8]| body.extend_from_slice(bytes);
        let trailers = self.wire.body(framing, sink).await?;
        Ok(Answer {
            head,
            interim: std::mem::take(&mut self.interim),
            body,
            trailers,
        })
    }

    /// As [`Self::answer`], in time.
    pub async fn finish(&mut self) -> Answer {
        soon("the answer", self.answer()).must().await
    }
}

/// Percent-encodes a key for use as one path segment.
pub fn escape(key: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    utf8_percent_encode(key, RESERVED).to_string()
}

/// A whole response.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub head: Head,
    pub interim: Vec<Head>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

/// The words with which the last sentence of a problem's `detail` begins.
const NEXT_STEPS: &[&str] = &["Acquire", "Check", "Correct", "Send", "Use"];
const RETRIES: &[&str] = &["never", "same-token", "check-first"];

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.word(1).parse().expect("a status code")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The outcome of the proxy's own answer; `None`: the answer is the upstream's.
    pub fn outcome(&self) -> Option<&str> {
        self.header("x-fencing-outcome")
    }

    /// Whole seconds of `Retry-After`.
    pub fn retry_after(&self) -> Option<u64> {
        let value = self.header("retry-after")?;
        Some(value.parse().expect("whole seconds"))
    }

    /// Asserts that this is the upstream's own success.
    #[track_caller]
    pub fn assert_forwarded(&self) -> &Self {
        self.check(200, None, Location::caller());
        self
    }

    /// As [`Self::assert_forwarded`], for the line of a test that waits for it.
    pub fn forwarded_at(self, at: &Location<'_>) -> Self {
        self.check(200, None, at);
        self
    }

    fn check(&self, status: u16, outcome: Option<&str>, at: &Location<'_>) {
        let found = (self.status(), self.outcome());
        assert_eq!(found, (status, outcome), "{at}: {}", self.text());
    }

    /// Asserts that this is a problem of the admin port. Returns its body.
    #[track_caller]
    pub fn assert_admin_problem(&self, status: u16, kind: &str) -> Value {
        let body = self.json();
        assert_eq!(self.status(), status, "{body}");
        assert_eq!(body["type"], format!("urn:fencepost:problem:{kind}"));
        body
    }

    /// Asserts that this is the proxy's own answer, in full form (RFC 9457).
    #[track_caller]
    pub fn assert_problem(&self, status: u16, kind: &str) -> Value {
        self.problem_at(status, kind, Location::caller())
    }

    /// As [`Self::assert_problem`], for the line of a test that waits for it.
    pub fn problem_at(&self, status: u16, kind: &str, at: &Location<'_>) -> Value {
        self.check(status, Some(kind), at);
        let content = self.header("content-type");
        assert_eq!(content, Some("application/problem+json"), "{at}");
        let problem = self.json();
        let urn = format!("urn:fencepost:problem:{kind}");
        assert_eq!(problem["type"], urn, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        for field in ["title", "detail", "retry"] {
            let text = problem[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{field}: {problem}");
        }
        // The last sentence is the next step, with the seconds until it.
        let detail = problem["detail"].as_str().unwrap_or_default();
        let (_, step) = detail.rsplit_once(". ").unwrap_or(("", detail));
        let (first, _) = step.split_once(' ').unwrap_or_default();
        assert!(NEXT_STEPS.contains(&first), "{at}: {detail}");
        let retry = problem["retry"].as_str().unwrap_or_default();
        assert!(RETRIES.contains(&retry), "{problem}");
        assert_eq!(self.header("x-fencing-retry"), Some(retry), "{problem}");
        if let Some(after) = self.header("retry-after").filter(|_| retry == "same-token") {
            let ends = format!(", after {after} s.");
            assert!(detail.ends_with(&ends), "{problem}");
        }
        problem
    }
}
