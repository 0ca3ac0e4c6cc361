//! HTTP/2 written by hand, frame by frame, for either side: for what no library would send, and for
//! seeing what comes back as it came. Only as much HPACK as that needs: fields go out as literals,
//! of an answer the status is read, and of a request nothing (a test tells requests by their
//! bodies).

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Must;
use super::wait::soon;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Also SETTINGS' and PING's ACK.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Names and values of fields.
pub type Fields<'a> = Vec<(&'a str, &'a [u8])>;

/// The head of a request.
pub fn head<'a>(method: &'a str, path: &'a str) -> Fields<'a> {
    vec![
        (":method", method.as_bytes()),
        (":scheme", b"http"),
        (":authority", b"app.test"),
        (":path", path.as_bytes()),
    ]
}

/// The head of a PUT with a token.
pub fn fenced_head<'a>(path: &'a str, token: &'a str) -> Fields<'a> {
    let mut fields = head("PUT", path);
    fields.push(("x-fencing-token", token.as_bytes()));
    fields
}

/// A frame as it came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("frames are short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block: every field a literal that is not indexed, nothing compressed.
pub fn block(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        literal(&mut block, name.as_bytes(), value);
    }
    block
}

/// Adds a field to a header block, as a literal that is not indexed (RFC 7541, 6.2.2).
pub fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    string(block, name);
    string(block, value);
}

/// A string literal (RFC 7541, 5.2), its length in a prefix of 7 bits (5.1).
pub fn string(block: &mut Vec<u8>, text: &[u8]) {
    if text.len() < 127 {
        block.push(u8::try_from(text.len()).expect("it is short"));
    } else {
        block.push(127);
        let mut left = text.len() - 127;
        while left >= 128 {
            block.push(u8::try_from(left % 128).expect("7 bits") | 128);
            left /= 128;
        }
        block.push(u8::try_from(left).expect("7 bits"));
    }
    block.extend(text);
}

/// The fate of a stream, or of the whole connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Status(u16),
    /// `RST_STREAM` with this code.
    Reset(u32),
    /// GOAWAY with this code, or the end of the connection without one.
    Gone(Option<u32>),
}

/// A connection, its preface and SETTINGS sent.
pub struct Http2 {
    from: OwnedReadHalf,
    /// `None`: another task writes.
    to: Option<OwnedWriteHalf>,
    read: Vec<u8>,
    /// True if PINGs and SETTINGS are answered.
    pub polite: bool,
    /// The settings that the other side has sent.
    pub settings: HashMap<u16, u32>,
    /// The fates of the streams; the first word on each counts.
    answers: HashMap<u32, Outcome>,
    /// The codes of the GOAWAYs that have come.
    goodbyes: Vec<u32>,
    next: u32,
    /// It is the server's end: HEADERS are requests.
    serves: bool,
}

/// A SETTINGS frame.
pub fn settings_frame(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in settings {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

impl Http2 {
    /// Takes the preface of a client over this connection, and sends these SETTINGS.
    pub async fn serve_over(mut stream: TcpStream, settings: &[(u16, u32)]) -> Self {
        let mut preface = [0; PREFACE.len()];
        let read = stream.read_exact(&mut preface);
        soon("the preface", read).must().await;
        assert_eq!(preface, PREFACE);
        stream.write_all(&settings_frame(settings)).must().await;
        Self {
            serves: true,
            ..Self::over(stream)
        }
    }

    fn over(stream: TcpStream) -> Self {
        let set = stream.set_nodelay(true);
        set.expect("a live socket takes options");
        let (from, to) = stream.into_split();
        Self {
            from,
            to: Some(to),
            read: Vec::new(),
            polite: true,
            settings: HashMap::new(),
            answers: HashMap::new(),
            goodbyes: Vec::new(),
            next: 1,
            serves: false,
        }
    }

    pub async fn open(to: SocketAddr) -> Self {
        Self::with_settings(to, &[]).await
    }

    /// As [`Self::open`], with these SETTINGS.
    pub async fn with_settings(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(to).await.expect("the proxy listens");
        let mut own = Self::over(stream);
        let bytes = [PREFACE, &settings_frame(settings)].concat();
        own.send(&bytes).await.expect("the preface is taken");
        own
    }

    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let to = self.to.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        to.write_all(bytes).await
    }

    /// The id of the next stream.
    pub fn id(&mut self) -> u32 {
        let id = self.next;
        self.next += 2;
        id
    }

    /// Sends a request's head; returns its stream.
    pub async fn head(&mut self, fields: &[(&str, &[u8])], end: bool) -> u32 {
        let id = self.id();
        let flags = END_HEADERS | (u8::from(end) * END_STREAM);
        // A peer that has gone tells in its own way.
        let _ = self.send(&frame(HEADERS, flags, id, &block(fields))).await;
        id
    }

    pub async fn data(&mut self, stream: u32, data: &[u8], end: bool) {
        let data = frame(DATA, u8::from(end) * END_STREAM, stream, data);
        let _ = self.send(&data).await;
    }

    async fn fill(&mut self, count: usize) -> Result<()> {
        while self.read.len() < count {
            if self.from.read_buf(&mut self.read).await? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    }

    /// The next frame; SETTINGS and PINGs are answered on the way, and windows never close.
    pub async fn frame(&mut self) -> Result<Frame> {
        self.fill(9).await?;
        let length = u32::from_be_bytes([0, self.read[0], self.read[1], self.read[2]]);
        let length = usize::try_from(length).expect("24 bits");
        self.fill(9 + length).await?;
        let bytes: Vec<u8> = self.read.drain(..9 + length).collect();
        let frame_ = Frame {
            kind: bytes[3],
            flags: bytes[4],
            stream: code(&bytes[5..]) & 0x7fff_ffff,
            payload: bytes[9..].to_vec(),
        };
        let (payload, acked) = (&*frame_.payload, frame_.flags & 1 == 1);
        let answer = self.answers.entry(frame_.stream);
        match frame_.kind {
            HEADERS if !self.serves => {
                answer.or_insert_with(|| Outcome::Status(status(payload)));
            }
            RST_STREAM => {
                answer.or_insert_with(|| Outcome::Reset(code(payload)));
            }
            GOAWAY => self.goodbyes.push(code(&payload[4..])),
            SETTINGS if !acked => {
                let settings = payload.chunks_exact(6);
                let setting = |one: &[u8]| (u16::from_be_bytes([one[0], one[1]]), code(&one[2..]));
                self.settings.extend(settings.map(setting));
            }
            _ => {}
        }
        if self.polite && !acked && matches!(frame_.kind, SETTINGS | PING) {
            let same = if frame_.kind == PING { payload } else { &[] };
            let ack = frame(frame_.kind, 1, 0, same);
            let _ = self.send(&ack).await;
        }
        Ok(frame_)
    }

    /// The next frame that `fits`.
    ///
    /// # Panics
    /// If none comes.
    pub async fn until(&mut self, what: &str, fits: impl Fn(&Frame) -> bool) -> Frame {
        soon(what, async {
            loop {
                let frame = self.frame().await.expect(what);
                if fits(&frame) {
                    return frame;
                }
            }
        })
        .await
    }

    /// The next request, to its end: its stream, and its body.
    pub async fn request(&mut self) -> (u32, Vec<u8>) {
        let head = self.until("a request", |frame| frame.kind == HEADERS).await;
        let (stream, mut body) = (head.stream, Vec::new());
        let mut ended = head.flags & END_STREAM != 0;
        while !ended {
            let rest = |frame: &Frame| frame.kind == DATA && frame.stream == stream;
            let part = self.until("the rest of a request", rest).await;
            body.extend(&part.payload);
            ended = part.flags & END_STREAM != 0;
        }
        (stream, body)
    }

    /// Sends the head of a 200.
    pub async fn respond(&mut self, stream: u32, end: bool) {
        let flags = END_HEADERS | (u8::from(end) * END_STREAM);
        let head = block(&[(":status", b"200")]);
        let _ = self.send(&frame(HEADERS, flags, stream, &head)).await;
    }

    /// Answers the next request with a small 200; returns its body.
    pub async fn serve(&mut self) -> String {
        let (stream, body) = self.request().await;
        self.respond(stream, true).await;
        String::from_utf8(body).expect("a text")
    }

    /// `RST_STREAM`.
    pub async fn reset(&mut self, stream: u32, code: u32) {
        let reset = frame(RST_STREAM, 0, stream, &code.to_be_bytes());
        let _ = self.send(&reset).await;
    }

    /// Reads all that comes; returns how much that was and how it ended.
    pub async fn drain(&mut self) -> (usize, Result<()>) {
        let mut all = std::mem::take(&mut self.read);
        let ended = self.from.read_to_end(&mut all).await;
        (all.len(), ended.map(drop))
    }

    /// Reads until it is known what became of `stream`.
    pub async fn answer(&mut self, stream: u32) -> Outcome {
        soon("an answer", async {
            loop {
                if let Some(answer) = self.answers.get(&stream) {
                    return answer.clone();
                }
                match self.frame().await {
                    Err(_) => return Outcome::Gone(None),
                    // NO_ERROR: a clean goodbye, the stream may still be answered.
                    Ok(frame) if frame.kind == GOAWAY && code(&frame.payload[4..]) != 0 => {
                        return Outcome::Gone(Some(code(&frame.payload[4..])));
                    }
                    Ok(_) => {}
                }
            }
        })
        .await
    }

    /// Reads until the other side has closed; returns the codes of all its GOAWAYs.
    pub async fn end(&mut self) -> Vec<u32> {
        soon("the end of the connection", async {
            while self.frame().await.is_ok() {}
        })
        .await;
        self.goodbyes.clone()
    }

    /// Sends `bytes` once, or `again` and again, as far as the other side takes them, and reads
    /// what it says meanwhile; returns the codes of its GOAWAYs.
    pub async fn flood(mut self, bytes: Vec<u8>, again: bool) -> Vec<u32> {
        let mut to = self.to.take().expect("nobody else writes");
        // Held until the other side has closed: closing first would be an end of our own.
        let writing = tokio::spawn(async move {
            while to.write_all(&bytes).await.is_ok() && again {}
            to
        });
        let codes = self.end().await;
        let _ = writing.await;
        codes
    }
}

/// A code in four bytes.
pub fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]])
}

/// The status that a response's header block opens with: indexed, or a literal of three digits,
/// which Huffman's code (RFC 7541, appendix B) may have made shorter.
pub fn status(block: &[u8]) -> u16 {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    // An update of the table's size may come first.
    let block = match block {
        [first, rest @ ..] if first >> 5 == 1 => rest,
        block => block,
    };
    match block {
        [first @ 0x88..=0x8e, ..] => INDEXED[usize::from(first - 0x88)],
        [0x48 | 0x08 | 0x18, length, rest @ ..] => {
            let text = &rest[..usize::from(length & 0x7f)];
            if length & 0x80 == 0 {
                String::from_utf8_lossy(text).parse().expect("digits")
            } else {
                huffman_digits(text)
            }
        }
        other => panic!("an answer begins with its status: {other:02x?}"),
    }
}

/// Three digits: 0 to 2 have five bits, the others six.
fn huffman_digits(text: &[u8]) -> u16 {
    let bytes = text.iter();
    let bits = bytes.fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    let mut bits = bits << (32 - 8 * text.len());
    let status = (0..3).fold(0, |status, _| {
        let (digit, length) = match bits >> 27 {
            short @ 0..3 => (short, 5),
            _ => ((bits >> 26) - 22, 6),
        };
        bits <<= length;
        status * 10 + digit
    });
    u16::try_from(status).expect("three digits")
}
