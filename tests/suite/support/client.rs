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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::Must;
use super::wait::soon;
use super::wire::{Head, Io, Wire, chunk};

/// A request as it will stand on the wire.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    host: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    chunks: Option<Vec<Vec<u8>>>,
    trailers: String,
}

pub fn request(method: &str, target: &str) -> Request {
    Request {
        method: method.to_owned(),
        target: target.to_owned(),
        host: Some("app.test".to_owned()),
        headers: Vec::new(),
        body: Vec::new(),
        chunks: None,
        trailers: String::new(),
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

pub fn patch(target: &str) -> Request {
    request("PATCH", target)
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
    pub fn chunks(mut self, chunks: &[&[u8]], trailers: &str) -> Self {
        self.chunks = Some(chunks.iter().map(|piece| piece.to_vec()).collect());
        trailers.clone_into(&mut self.trailers);
        self
    }

    /// The head on the wire, up to and with the empty line.
    pub fn head_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if let Some(host) = &self.host {
            bytes.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        let sized = |(name, _): &(String, Vec<u8>)| name.eq_ignore_ascii_case("content-length");
        if self.chunks.is_some() {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        } else if !self.headers.iter().any(sized)
            && (!self.body.is_empty() || matches!(&*self.method, "PUT" | "POST" | "PATCH"))
        {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// The whole request on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head_bytes();
        match &self.chunks {
            None => bytes.extend_from_slice(&self.body),
            Some(chunks) => {
                for piece in chunks {
                    bytes.extend_from_slice(&chunk(piece));
                }
                bytes.extend_from_slice(b"0\r\n");
                bytes.extend_from_slice(self.trailers.as_bytes());
                bytes.extend_from_slice(b"\r\n");
            }
        }
        bytes
    }

    /// Sends it all and reads the whole answer.
    ///
    /// # Panics
    /// If no whole answer comes in time.
    pub async fn send(&self, to: SocketAddr) -> Answer {
        let what = format!("the answer to {} {}", self.method, self.target);
        let answer = soon(&what, self.attempt(to)).await;
        answer.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// As [`Self::send`], where the connection may break.
    pub async fn attempt(&self, to: SocketAddr) -> std::io::Result<Answer> {
        let mut exchange = Exchange::open(to, &self.method).await?;
        // A server may answer and close before it has read everything: the answer counts.
        let sent = exchange.wire.send(&self.bytes()).await;
        match exchange.answer().await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(sent.err().unwrap_or(error)),
        }
    }

    /// As [`Self::send`], over HTTP/2 with prior knowledge.
    pub async fn send_http2(&self, to: SocketAddr) -> Answer {
        let stream = TcpStream::connect(to).must().await;
        self.http2_over(stream).await
    }

    /// As [`Self::send_http2`], over a connection that is there.
    pub async fn http2_over<S>(&self, stream: S) -> Answer
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut request = http::Request::builder()
            .method(self.method.as_str())
            .uri(format!(
                "http://{}{}",
                self.host.as_deref().unwrap_or("app.test"),
                self.target
            ));
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
                interim: Vec::new(),
                body,
                trailers: Vec::new(),
            })
        });
        answer
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// As [`Self::send`], from this address.
    pub async fn send_from(&self, from: std::net::Ipv4Addr, to: SocketAddr) -> Answer {
        let sent = async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((from, 0).into())?;
            let wire = Wire::new(Io::Tcp(socket.connect(to).await?));
            let mut exchange = Exchange::over(wire, self);
            exchange.wire.send(&self.bytes()).await?;
            exchange.answer().await
        };
        let answer = soon("the answer", sent).await;
        answer.unwrap_or_else(|error| panic!("from {from}: {error}"))
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
        let wire = Wire::connect(to).await?;
        Ok(Self {
            wire,
            method: method.to_owned(),
            interim: Vec::new(),
        })
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
            let head = self
                .wire
                .head()
                .await?
                .ok_or(std::io::ErrorKind::UnexpectedEof)?;
            if head.word(1).starts_with('1') && head.word(1) != "101" {
                self.interim.push(head);
            } else {
                return Ok(head);
            }
        }
    }

    /// The next head, interim or not.
    pub async fn any_head(&mut self) -> Head {
        let head = soon("a response head", self.wire.head()).await;
        head.expect("a well-formed head")
            .expect("not the end of the stream")
    }

    pub async fn answer(&mut self) -> std::io::Result<Answer> {
        let head = self.head().await?;
        let framing = head.response_framing(self.method == "HEAD");
        let mut body = Vec::new();
        let trailers = self
            .wire
            .body(framing, |bytes| body.extend_from_slice(bytes))
            .await?;
        let interim = std::mem::take(&mut self.interim);
        Ok(Answer {
            head,
            interim,
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
#[derive(Clone, Debug)]
pub struct Answer {
    pub head: Head,
    pub interim: Vec<Head>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

/// The words with which the last sentence of a problem's `detail` begins.
const NEXT_STEPS: &[&str] = &["Acquire", "Check", "Correct", "Send", "Use"];

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
        self.header("retry-after")
            .map(|value| value.parse().expect("whole seconds"))
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
        assert_eq!(
            problem["type"],
            format!("urn:fencepost:problem:{kind}"),
            "{problem}"
        );
        assert_eq!(problem["status"], status, "{problem}");
        for field in ["title", "detail", "retry"] {
            assert!(
                problem[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field}: {problem}"
            );
        }
        // The last sentence is the next step, with the seconds until it.
        let detail = problem["detail"].as_str().unwrap_or_default();
        let step = detail.trim_end_matches('.').rsplit(". ").next();
        let step = step.unwrap_or_default();
        let (first, _) = step.split_once(' ').unwrap_or_default();
        assert!(NEXT_STEPS.contains(&first), "{at}: {detail}");
        let retry = problem["retry"].as_str().unwrap_or_default();
        assert!(
            ["never", "same-token", "check-first"].contains(&retry),
            "{problem}"
        );
        assert_eq!(self.header("x-fencing-retry"), Some(retry), "{problem}");
        if let Some(after) = self.header("retry-after").filter(|_| retry == "same-token") {
            assert!(
                detail.ends_with(&format!(", after {after} s.")),
                "{problem}"
            );
        }
        problem
    }
}
