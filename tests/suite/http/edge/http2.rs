//! The cases of `tests/edge/http2.toml`: fields as no library would send them, in frames written by
//! hand. HPACK is used in its plainest form, literals without an index; of the answer only the
//! status is read, which comes first and in one of a few forms.

use std::net::SocketAddr;

use serde::Deserialize;

use super::stage::shown;
use super::template::{self, CaseEntry, Listed, bytes, expand};
use super::wanted::Wanted;
use crate::http::http2::is_refusal;
use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, Outcome, frame, head, literal,
};
use crate::support::wait::deadline;

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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHttp2Case {
    /// `name: value`; `{put}` and `{get}` are those of a request without fault.
    fields: Vec<String>,
    data: Option<Listed<String>>,
    trailers: Option<Vec<String>>,
    /// A number, or `refused`: a 4xx, or the end of the stream or connection by an error (RFC 9113,
    /// 8.1.1).
    status: toml::Value,
}

/// One request over HTTP/2.
pub struct Http2Case {
    name: String,
    id: String,
    frames: Vec<u8>,
    /// None: it is refused.
    status: Option<u16>,
    pub wanted: Wanted,
}

/// All cases of the file.
pub fn all() -> Vec<Http2Case> {
    let files = template::files("tests/edge");
    let entries = template::entries("http2", &files["http2"], "fields");
    entries.into_iter().map(Http2Case::new).collect()
}

impl Http2Case {
    fn new(entry: CaseEntry) -> Self {
        let CaseEntry {
            name,
            id,
            mut table,
        } = entry;
        let wanted = Wanted::take(&mut table, &id);
        let raw: RawHttp2Case = table
            .try_into()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let fields: Vec<String> = (raw.fields.iter())
            .flat_map(|field| match &**field {
                "{put}" => PUT.map(str::to_owned).to_vec(),
                "{get}" => GET.map(str::to_owned).to_vec(),
                _ => vec![field.clone()],
            })
            .collect();
        let last = raw.data.is_none() && raw.trailers.is_none();
        let mut frames = headers(u8::from(last), &block(&fields, &id));
        let data = raw.data.map(Listed::list).unwrap_or_default();
        for (at, piece) in data.iter().enumerate() {
            let last = u8::from(raw.trailers.is_none() && at + 1 == data.len());
            frames.extend(frame(DATA, last, 1, &bytes(&expand(piece, &id))));
        }
        if let Some(trailers) = &raw.trailers {
            frames.extend(headers(END_STREAM, &block(trailers, &id)));
        }
        let status = match raw.status.as_str() {
            Some("refused") => None,
            _ => Some(raw.status.try_into().expect("a status")),
        };
        Self {
            name,
            id,
            frames,
            status,
            wanted,
        }
    }

    /// Sends it, and where the connection goes on, another request on it.
    pub async fn play(&self, to: SocketAddr) -> Result<(), String> {
        let played = tokio::time::timeout(deadline(), self.exchange(to)).await;
        played.map_err(|_| format!("nothing came of it in {:?}", deadline()))?
    }

    async fn exchange(&self, to: SocketAddr) -> Result<(), String> {
        let mut client = Http2::open(to).await;
        // The proxy may have ended the connection before it has read all of it.
        let stream = client.id();
        let _ = client.send(&self.frames).await;
        let outcome = client.answer(stream).await;
        let right = match self.status {
            Some(status) => outcome == Outcome::Status(status),
            None => is_refusal(&outcome),
        };
        if !right {
            return Err(format!("{outcome:?}"));
        }
        if matches!(outcome, Outcome::Status(_) | Outcome::Reset(_)) {
            let probe = format!("/probe/{}", self.id);
            let next = client.head(&head("GET", &probe), true).await;
            let next = client.answer(next).await;
            if next != Outcome::Status(200) {
                return Err(format!("{outcome:?}, and for the next request {next:?}"));
            }
        }
        Ok(())
    }

    /// The text that a failure prints.
    pub fn shown(&self) -> String {
        let frames = shown(&self.frames);
        format!(
            "{}\n  frames    {frames}\n  expected  {:?}, {:?}",
            self.name, self.status, self.wanted
        )
    }
}

/// The header block of stream 1, in as many frames as it takes.
fn headers(end: u8, block: &[u8]) -> Vec<u8> {
    const MOST: usize = 16 << 10;
    let mut frames = Vec::new();
    for (at, piece) in block.chunks(MOST).enumerate() {
        let last = (at + 1) * MOST >= block.len();
        let flags = if last { END_HEADERS } else { 0 };
        frames.extend(match at {
            0 => frame(HEADERS, flags | end, 1, piece),
            _ => frame(CONTINUATION, flags, 1, piece),
        });
    }
    frames
}

/// A header block of literals that are not indexed (RFC 7541, 6.2.2).
fn block(fields: &[String], id: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for field in fields {
        let field = expand(field, id);
        let (name, value) = field
            .split_once(": ")
            .unwrap_or_else(|| panic!("{field:?} has no `: `"));
        literal(&mut block, &bytes(name), &bytes(value));
    }
    block
}
