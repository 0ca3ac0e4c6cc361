//! HTTP/1.1 on the wire, read and written by hand: the suite shares no HTTP code with the program
//! under test, sees every byte as it came, and can send what no well-bred library would.

use std::any::Any;
use std::io::{Error, ErrorKind, Result};

use regex::Regex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::soon;

/// A start line and its header fields. Bytes are mapped to the code points of the same number, so
/// nothing is lost.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub start: String,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The values of every line of this name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.headers.iter();
        let named = fields.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of the only line of this name.
    ///
    /// # Panics
    /// If there is more than one.
    pub fn get(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} came {} times: {all:?}", all.len());
        all.first().copied()
    }

    /// The nth word of the start line.
    pub fn word(&self, n: usize) -> &str {
        self.start.split(' ').nth(n).unwrap_or_default()
    }

    fn chunked(&self) -> bool {
        let values = self.all("transfer-encoding");
        values.iter().any(|one| one.eq_ignore_ascii_case("chunked"))
    }

    fn length(&self) -> Option<usize> {
        self.get("content-length")?.parse().ok()
    }

    /// How the body of a request with this head ends.
    pub fn request_framing(&self) -> Framing {
        if self.chunked() {
            Framing::Chunked
        } else {
            Framing::Length(self.length().unwrap_or(0))
        }
    }

    /// How the body of a response with this head ends (RFC 9112, section 6.3).
    pub fn response_framing(&self, to_head_request: bool) -> Framing {
        let bodiless = to_head_request
            || matches!(self.word(1), "204" | "304")
            || self.word(1).starts_with('1');
        if bodiless {
            Framing::Length(0)
        } else if self.chunked() {
            Framing::Chunked
        } else {
            self.length().map_or(Framing::ToEnd, Framing::Length)
        }
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(usize),
    Chunked,
    ToEnd,
}

/// The stream below a [`Wire`]: a TCP or Unix connection, or TLS over one.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Any {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + Any> Stream for S {}

/// A connection with what has been read from it and not been used yet.
pub struct Wire {
    io: Box<dyn Stream>,
    buffer: Vec<u8>,
}

impl Wire {
    pub fn new(stream: impl Stream) -> Self {
        Self {
            io: Box::new(stream),
            buffer: Vec::new(),
        }
    }

    /// Reads up to so many bytes at a time.
    pub fn reading(mut self, most: usize) -> Self {
        self.buffer.reserve(most);
        self
    }

    pub async fn connect(address: std::net::SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }

    /// Sends a request and reads the whole answer; returns its status.
    pub async fn status(&mut self, request: &[u8]) -> String {
        let answer = async {
            self.send(request).await?;
            let head = self.head().await?.expect("an answer");
            self.body(head.response_framing(false), |_| {}).await?;
            Result::Ok(head.word(1).to_owned())
        };
        soon("an answer", answer).await.expect("a whole answer")
    }

    /// Closes with a reset rather than cleanly.
    pub fn reset(self) {
        self.end_by_reset();
    }

    /// Has the close, when it comes, be a reset, if it is TCP's.
    pub fn end_by_reset(&self) {
        let io: &dyn Any = &*self.io;
        if let Some(tcp) = io.downcast_ref::<TcpStream>() {
            tcp.set_zero_linger().expect("a live socket takes options");
        }
    }

    /// Reads once; `false` at the end of the stream.
    pub async fn fill(&mut self) -> Result<bool> {
        Ok(self.io.read_buf(&mut self.buffer).await? > 0)
    }

    /// Takes what has been read so far, at least one byte; empty at the end of the stream.
    pub async fn some(&mut self) -> Result<Vec<u8>> {
        self.peek().await?;
        Ok(std::mem::take(&mut self.buffer))
    }

    /// The next byte, which stays unread; `None` at the end of the stream.
    pub async fn peek(&mut self) -> Result<Option<u8>> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        Ok(self.buffer.first().copied())
    }

    async fn line(&mut self) -> Result<Option<String>> {
        let mut from = 0;
        loop {
            if let Some(at) = self.buffer[from..].iter().position(|byte| *byte == b'\n') {
                let line = self.take(from + at + 1);
                let whole = line.strip_suffix(b"\r\n").or(line.strip_suffix(b"\n"));
                let whole = whole.unwrap_or_default().iter();
                return Ok(Some(whole.map(|byte| char::from(*byte)).collect()));
            }
            from = self.buffer.len();
            if !self.fill().await? {
                let clean = self.buffer.is_empty();
                return if clean { Ok(None) } else { Err(cut()) };
            }
        }
    }

    async fn exactly(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.fill().await? {
                return Err(cut());
            }
        }
        Ok(self.take(count))
    }

    /// Not byte by byte, as `drain` alone would without optimisation; the room stays, and so does
    /// the size of a read.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.buffer[..count].to_vec();
        self.buffer.drain(..count);
        taken
    }

    async fn fields(&mut self) -> Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?.ok_or_else(cut)?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
    }

    /// The next head; `None` if the peer has closed cleanly.
    pub async fn head(&mut self) -> Result<Option<Head>> {
        let Some(start) = self.line().await? else {
            return Ok(None);
        };
        let headers = self.fields().await?;
        Ok(Some(Head { start, headers }))
    }

    /// Hands every piece of the body to `sink` as it comes; returns the trailers.
    pub async fn body(
        &mut self,
        framing: Framing,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<Vec<(String, String)>> {
        match framing {
            Framing::Length(mut left) => {
                while left > 0 {
                    if self.buffer.is_empty() && !self.fill().await? {
                        return Err(cut());
                    }
                    let now = left.min(self.buffer.len());
                    sink(&self.buffer[..now]);
                    self.buffer.drain(..now);
                    left -= now;
                }
                Ok(Vec::new())
            }
            Framing::ToEnd => loop {
                let piece = self.some().await?;
                if piece.is_empty() {
                    return Ok(Vec::new());
                }
                sink(&piece);
            },
            Framing::Chunked => loop {
                let size = self.line().await?.ok_or_else(cut)?;
                let size = size.split(';').next().unwrap_or_default();
                let size = usize::from_str_radix(size.trim(), 16)
                    .map_err(|_| Error::new(ErrorKind::InvalidData, "not a chunk size"))?;
                if size == 0 {
                    return self.fields().await;
                }
                sink(&self.exactly(size).await?);
                self.exactly(2).await?;
            },
        }
    }
}

fn cut() -> Error {
    ErrorKind::UnexpectedEof.into()
}

/// One chunk of a chunked body.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    let size = format!("{:x}\r\n", bytes.len());
    [size.as_bytes(), bytes, b"\r\n"].concat()
}

/// A line of `Via` without what tells one process from another: `1.1 fencepost`.
pub fn via(line: impl AsRef<str>) -> String {
    let id = Regex::new(" fencepost-[0-9a-fA-F]*").expect("a pattern");
    id.replace_all(line.as_ref(), " fencepost").into_owned()
}
