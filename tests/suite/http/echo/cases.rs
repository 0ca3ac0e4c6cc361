//! One exchange: what the client sends, and what the upstream answers, byte for byte.

use crate::support::wire::chunk;

pub type Bytes = Vec<u8>;

/// One exchange.
#[derive(Clone, Debug)]
pub struct EchoCase {
    pub name: String,
    pub method: String,
    pub version: &'static str,
    /// It carries a token.
    pub fenced: bool,
    pub query: &'static str,
    pub lines: Vec<Bytes>,
    /// Its pieces, if it has one,
    pub body: Option<Vec<Bytes>>,
    /// and its trailers, if the pieces are chunks.
    pub trailers: Option<String>,
    /// The upstream's answer.
    pub answer: Bytes,
    /// The upstream closes behind its answer.
    pub closes: bool,
    pub number: usize,
}

/// Bytes of all values, always the same ones.
pub fn noise(length: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_be_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Cuts bytes into pieces of these sizes, again and again.
pub fn pieces(bytes: &[u8], sizes: &[usize]) -> Vec<Bytes> {
    let mut left = bytes;
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if left.is_empty() {
            break;
        }
        let (piece, rest) = left.split_at((*size).min(left.len()));
        pieces.push(piece.to_vec());
        left = rest;
    }
    pieces
}

pub fn chunked(pieces: &[Bytes], trailers: &[u8]) -> Bytes {
    let chunks: Vec<_> = pieces.iter().map(|piece| chunk(piece)).collect();
    let mut bytes = chunks.concat();
    bytes.extend_from_slice(b"0\r\n");
    bytes.extend_from_slice(trailers);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// An answer with a length.
pub fn sized(status: &str, lines: &[u8], body: &[u8]) -> Bytes {
    let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
    bytes.extend_from_slice(lines);
    bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

impl EchoCase {
    pub fn new(name: impl Into<String>, method: &str) -> Self {
        Self {
            name: name.into(),
            method: method.to_owned(),
            version: "HTTP/1.1",
            fenced: true,
            query: "",
            lines: Vec::new(),
            body: None,
            trailers: None,
            answer: sized("200 OK", b"Content-Type: text/plain\r\n", b"done\n"),
            closes: false,
            number: 0,
        }
    }

    pub fn line(mut self, line: impl AsRef<[u8]>) -> Self {
        self.lines.push(line.as_ref().to_vec());
        self
    }

    pub fn lines(self, lines: &[&str]) -> Self {
        lines.iter().fold(self, Self::line)
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = Some(vec![body.as_ref().to_vec()]);
        self
    }

    pub fn chunks(mut self, pieces: Vec<Bytes>, trailers: &str) -> Self {
        self.body = Some(pieces);
        self.trailers = Some(trailers.to_owned());
        self
    }

    pub fn answer(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.answer = bytes.as_ref().to_vec();
        self
    }

    pub fn closes(mut self) -> Self {
        self.closes = true;
        self
    }

    /// The case that a target is of.
    pub fn of<'a>(cases: &'a [Self], target: &str) -> Option<&'a Self> {
        let path = target.split('?').next().unwrap_or(target);
        cases.get(path.strip_prefix("/e/")?.parse::<usize>().ok()?)
    }

    pub fn body_length(&self) -> usize {
        self.body.iter().flatten().map(Vec::len).sum()
    }

    /// The client waits for `100 Continue`.
    pub fn expects(&self) -> bool {
        self.has_line("expect:")
    }

    /// Returns whether the request has a field that starts so, in lower case.
    pub fn has_line(&self, start: &str) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| line.to_ascii_lowercase().starts_with(start.as_bytes()))
    }

    /// Returns whether the upstream's answer has this field.
    pub fn answers_with(&self, name: &str) -> bool {
        let head = self.answer.split(|byte| *byte == b'\n');
        let mut head = head.take_while(|line| *line != b"\r");
        head.any(|line| line.to_ascii_lowercase().starts_with(name.as_bytes()))
    }

    pub fn head_bytes(&self) -> Bytes {
        let (method, query) = (&self.method, self.query);
        let start = format!("{method} /e/{}{query} {}\r\n", self.number, self.version);
        let mut bytes = start.into_bytes();
        bytes.extend_from_slice(b"Host: app.test\r\n");
        if self.fenced {
            bytes.extend_from_slice(b"X-Fencing-Token: 1\r\n");
        }
        for line in &self.lines {
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(b"\r\n");
        }
        if self.trailers.is_some() {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        } else if self.body.is_some() {
            bytes.extend_from_slice(
                format!("Content-Length: {}\r\n", self.body_length()).as_bytes(),
            );
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    pub fn body_bytes(&self) -> Bytes {
        let pieces = self.body.as_deref().unwrap_or_default();
        match &self.trailers {
            Some(trailers) => chunked(pieces, trailers.as_bytes()),
            None => pieces.concat(),
        }
    }
}
