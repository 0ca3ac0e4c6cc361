//! The cases of `tests/edge/http2.toml`: fields as no library would send them, in frames written by hand. HPACK
//! is used in its plainest form, literals without an index; of the answer only the status is read, which comes
//! first and in one of a few forms.

use std::net::SocketAddr;

use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::field::shown;
use super::recorder::Arrival;
use super::template::{self, Entry, bytes, expand};
use super::wanted::Wanted;
use crate::support::wait::DEADLINE;

const PUT: [&str; 5] = [
    ":method: PUT",
    ":scheme: http",
    ":authority: app.test",
    ":path: /orders/{id}",
    "x-fencing-token: 7",
];
const GET: [&str; 4] = [
    ":method: GET",
    ":scheme: http",
    ":authority: app.test",
    ":path: /orders/{id}",
];
const PROBE: [&str; 4] = [
    ":method: GET",
    ":scheme: http",
    ":authority: app.test",
    ":path: /probe/{id}",
];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    basis: String,
    /// `name: value`; `{put}` and `{get}` are those of a request without fault.
    fields: Vec<String>,
    data: Option<String>,
    trailers: Option<Vec<String>>,
    status: Status,
}

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Status {
    Code(u16),
    /// `refused`: a 4xx, or the end of the stream or connection by an error (RFC 9113, 8.1.1).
    Word(Refused),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Refused {
    Refused,
}

/// One request over HTTP/2.
pub struct Case {
    pub name: String,
    id: String,
    basis: String,
    fields: Vec<String>,
    frames: Vec<u8>,
    status: Status,
    wanted: Wanted,
}

/// What came of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Status(u16),
    Reset(u32),
    GoAway(u32),
    Closed,
}

/// All cases of the file.
pub fn all() -> Vec<Case> {
    let files = template::files("tests/edge");
    let entries = template::entries("http2", &files["http2"], "fields", 9000);
    entries.into_iter().map(Case::new).collect()
}

impl Case {
    fn new(entry: Entry) -> Self {
        let Entry {
            name,
            id,
            mut table,
        } = entry;
        let wanted = Wanted::take(&mut table, &id);
        let raw: Raw = table
            .try_into()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let fields: Vec<String> = (raw.fields.iter())
            .flat_map(|field| match &**field {
                "{put}" => PUT.map(str::to_owned).to_vec(),
                "{get}" => GET.map(str::to_owned).to_vec(),
                _ => vec![field.clone()],
            })
            .collect();
        let ends = |last: bool| {
            if last {
                END_HEADERS | END_STREAM
            } else {
                END_HEADERS
            }
        };
        let last = raw.data.is_none() && raw.trailers.is_none();
        let mut frames = headers(ends(last), &block(&fields, &id));
        if let Some(data) = &raw.data {
            let last = u8::from(raw.trailers.is_none());
            frames.extend(frame(DATA, last, 1, &bytes(&expand(data, &id))));
        }
        if let Some(trailers) = &raw.trailers {
            frames.extend(headers(ends(true), &block(trailers, &id)));
        }
        Self {
            basis: raw.basis,
            status: raw.status,
            fields,
            frames,
            wanted,
            name,
            id,
        }
    }

    /// Sends it, and where the connection goes on, another request on it.
    pub async fn play(&self, to: SocketAddr) -> Result<(), String> {
        let played = tokio::time::timeout(DEADLINE, self.exchange(to)).await;
        played.map_err(|_| format!("nothing came of it in {DEADLINE:?}"))?
    }

    async fn exchange(&self, to: SocketAddr) -> Result<(), String> {
        let broken = |error: std::io::Error| format!("no connection: {error}");
        let mut stream = TcpStream::connect(to).await.map_err(broken)?;
        let mut start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        start.extend(frame(SETTINGS, 0, 0, b""));
        start.extend_from_slice(&self.frames);
        stream.write_all(&start).await.map_err(broken)?;
        let outcome = outcome(&mut stream, 1).await;
        let right = match (self.status, outcome) {
            (Status::Code(code), outcome) => outcome == Outcome::Status(code),
            (Status::Word(Refused::Refused), Outcome::Status(status)) => {
                (400..500).contains(&status)
            }
            (Status::Word(Refused::Refused), _) => true,
        };
        if !right {
            return Err(format!("{outcome:?}"));
        }
        if matches!(outcome, Outcome::Status(_) | Outcome::Reset(_)) {
            let probe = PROBE.map(str::to_owned);
            let probe = frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                3,
                &block(&probe, &self.id),
            );
            let _ = stream.write_all(&probe).await;
            let next = self::outcome(&mut stream, 3).await;
            if next != Outcome::Status(200) {
                return Err(format!("{outcome:?}, and for the next request {next:?}"));
            }
        }
        Ok(())
    }

    /// Whether what has arrived, and the mark that is left, are what they must be.
    pub fn settle(&self, arrivals: &[Arrival], marks: &[(String, u64)]) -> Result<(), String> {
        self.wanted.settle(&self.id, arrivals, marks)
    }

    /// What a failure prints.
    pub fn describe(&self, why: &str) -> String {
        format!(
            "{} ({}): {why}\n  fields    {:?}\n  frames    {}\n  expected  {:?}, arrivals {:?}",
            self.name,
            self.basis,
            self.fields,
            shown(&self.frames),
            self.status,
            self.wanted.lines,
        )
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a short frame")
        .to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The header block of stream 1 in as many frames as it takes.
fn headers(flags: u8, block: &[u8]) -> Vec<u8> {
    const MOST: usize = 16 << 10;
    if block.len() <= MOST {
        return frame(HEADERS, flags, 1, block);
    }
    let mut pieces = block.chunks(MOST).peekable();
    let mut frames = frame(
        HEADERS,
        flags & !END_HEADERS,
        1,
        pieces.next().unwrap_or_default(),
    );
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        frames.extend(frame(CONTINUATION, last, 1, piece));
    }
    frames
}

/// A header block of literals that are not indexed (RFC 7541, 6.2.2).
fn block(fields: &[String], id: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for field in fields {
        let field = expand(field, id);
        // Not the colon that a pseudo-header begins with.
        let at = field
            .char_indices()
            .skip(1)
            .map(|(at, _)| at)
            .find(|at| field[*at..].starts_with(": "));
        let at = at.unwrap_or_else(|| panic!("{field:?} has no `: `"));
        block.push(0);
        for text in [&field[..at], &field[at + 2..]] {
            let text = bytes(text);
            integer(text.len(), &mut block);
            block.extend_from_slice(&text);
        }
    }
    block
}

/// A length behind a bit that is 0: no Huffman code (RFC 7541, 5.1 and 5.2).
fn integer(value: usize, block: &mut Vec<u8>) {
    let low = |value: usize| u8::try_from(value & 0x7f).expect("7 bits");
    if value < 0x7f {
        block.push(low(value));
        return;
    }
    block.push(0x7f);
    let mut rest = value - 0x7f;
    while rest > 0x7f {
        block.push(low(rest) | 0x80);
        rest >>= 7;
    }
    block.push(low(rest));
}

/// Reads on until it is known what came of a stream.
async fn outcome(stream: &mut TcpStream, id: u32) -> Outcome {
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return Outcome::Closed;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("24 bits")];
        if stream.read_exact(&mut payload).await.is_err() {
            return Outcome::Closed;
        }
        let (kind, flags) = (head[3], head[4]);
        let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let number = |at: usize| {
            let word = payload
                .get(at..at + 4)
                .and_then(|word| word.try_into().ok());
            word.map_or(0, u32::from_be_bytes)
        };
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let echoed: &[u8] = if kind == PING { &payload } else { b"" };
                let _ = stream.write_all(&frame(kind, ACK, 0, echoed)).await;
            }
            HEADERS if of == id => return Outcome::Status(status(&payload)),
            RST_STREAM if of == id => return Outcome::Reset(number(0)),
            GOAWAY => return Outcome::GoAway(number(4)),
            _ => {}
        }
    }
}

/// The status that a response's header block begins with; 0: it does not begin so.
fn status(block: &[u8]) -> u16 {
    let known = [200, 204, 206, 304, 400, 404, 500];
    match block {
        // A change of the dynamic table's size.
        [byte, rest @ ..] if byte & 0xe0 == 0x20 => status(rest),
        [byte @ 0x88..=0x8e, ..] => known[usize::from(byte - 0x88)],
        [0x08 | 0x18 | 0x48, 3, digits @ ..] => {
            digits_of(digits.iter().take(3).map(|byte| char::from(*byte)))
        }
        [0x08 | 0x18 | 0x48, length, coded @ ..] if length & 0x80 != 0 => {
            let bits: Vec<bool> = (coded.iter().take(usize::from(length & 0x7f)))
                .flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1 == 1))
                .collect();
            digits_of(huffman(&bits).into_iter())
        }
        _ => 0,
    }
}

fn digits_of(digits: impl Iterator<Item = char>) -> u16 {
    digits.collect::<String>().parse().unwrap_or(0)
}

/// The digits of a Huffman code: 0 to 2 have five bits, from 00000 on, and the others six, from 011001 on (RFC
/// 7541, appendix B).
fn huffman(mut bits: &[bool]) -> Vec<char> {
    let mut digits = Vec::new();
    while digits.len() < 3 && bits.len() >= 5 {
        let value = |count: usize| {
            bits.iter()
                .take(count)
                .fold(0_u32, |value, bit| value << 1 | u32::from(*bit))
        };
        let (digit, count) = match (value(5), value(6)) {
            (five @ 0..=2, _) => (five, 5),
            (_, six @ 0x19..=0x1f) => (six - 0x19 + 3, 6),
            _ => return Vec::new(),
        };
        digits.extend(char::from_digit(digit, 10));
        bits = bits.get(count..).unwrap_or_default();
    }
    digits
}

#[test]
fn the_status_of_an_answer_is_read() {
    assert_eq!(status(&[0x88]), 200);
    assert_eq!(status(&[0x20, 0x8d]), 404);
    assert_eq!(status(b"\x48\x03412"), 412);
    // 4, 1, 2: 011010 00001 00010.
    assert_eq!(status(&[0x48, 0x82, 0b0110_1000, 0b0010_0010]), 412);
    // 5, 0, 3: 011011 00000 011001, and the padding of ones.
    assert_eq!(
        status(&[0x48, 0x83, 0b0110_1100, 0b0000_1100, 0b1111_1111]),
        503
    );
}

#[test]
fn lengths_are_coded_as_they_must_be() {
    let coded = |value| {
        let mut block = Vec::new();
        integer(value, &mut block);
        block
    };
    assert_eq!(coded(5), [5]);
    assert_eq!(coded(126), [126]);
    assert_eq!(coded(127), [127, 0]);
    assert_eq!(coded(1337 + 127), [127, 0b1011_1001, 10]);
}
