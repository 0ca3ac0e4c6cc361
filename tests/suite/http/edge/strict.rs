//! A reader of requests exactly as RFC 9112 defines them, without trailers: only these may arrive at
//! the upstream. It shares `httparse` with the program (hyper reads heads by it), and nothing else:
//! bare line ends, target, host and framing are checked here. It also refuses anything that another
//! server might read in another way, so that an arrival which passes here has one reading
//! everywhere. That is why it stands beside the suite's other reader ([`crate::support::wire`]),
//! which is lenient on purpose.

use httparse::{EMPTY_HEADER, Status};
use serde::Deserialize;

/// How a request's content ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ends {
    /// Neither length nor coding: there is no content.
    None,
    Length,
    Chunked,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Message {
    pub method: String,
    pub target: String,
    /// Bytes stand as the code points of the same number, so nothing is lost.
    pub fields: Vec<(String, String)>,
    pub ends: Ends,
    pub body: Vec<u8>,
}

impl Message {
    /// The values of every line of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = move |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields
            .iter()
            .filter(named)
            .map(|(_, value)| value.as_str())
    }
}

/// What is wrong, or `None`: it is not whole yet.
type Fault = Option<String>;

/// The request that `bytes` begin with, and its length.
pub fn message(bytes: &[u8]) -> Result<(Message, usize), Fault> {
    let end = head(bytes)?;
    let mut slots = [EMPTY_HEADER; 256];
    let mut read = httparse::Request::new(&mut slots);
    let parsed = read.parse(&bytes[..end]);
    if parsed != Ok(Status::Complete(end)) || read.version != Some(1) {
        return Err(Some(format!("{parsed:?}, HTTP/1.{:?}", read.version)));
    }
    let target = read.path.unwrap_or_default();
    let plain = target.bytes().all(|byte| byte.is_ascii_graphic());
    if !plain || target.contains('#') || !(target.starts_with('/') || target == "*") {
        return Err(Some(format!("the target {target:?}")));
    }
    let text = |value: &[u8]| value.iter().map(|byte| char::from(*byte)).collect();
    let field = |field: &httparse::Header<'_>| (field.name.to_owned(), text(field.value));
    let fields: Vec<(String, String)> = read.headers.iter().map(field).collect();
    let message = Message {
        method: read.method.unwrap_or_default().to_owned(),
        target: target.to_owned(),
        ends: ends(&fields)?,
        fields,
        body: Vec::new(),
    };
    content(message, bytes, end)
}

/// The length of the head, with its empty line. The library takes bare line feeds, and empty lines
/// before the head, too.
fn head(bytes: &[u8]) -> Result<usize, Fault> {
    let end = find(bytes, b"\r\n\r\n");
    let lines = &bytes[..end.unwrap_or(bytes.len())];
    let odd = |at: usize| match lines[at] {
        b'\r' => at == 0 || lines.get(at + 1).is_some_and(|next| *next != b'\n'),
        b'\n' => at == 0 || lines[at - 1] != b'\r',
        byte => byte == 0,
    };
    match (0..lines.len()).find(|at| odd(*at)) {
        Some(at) => Err(Some(format!("a bare CR, LF or NUL at byte {at}"))),
        None => end.map(|end| end + 4).ok_or(None),
    }
}

/// The framing that the fields say, which must be unambiguous.
fn ends(fields: &[(String, String)]) -> Result<Ends, String> {
    let all = |name: &str| -> Vec<&str> {
        let named = fields
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    };
    for (name, _) in fields {
        let dashed = name.to_ascii_lowercase().replace('_', "-");
        let decisive = ["content-length", "transfer-encoding", "host"].contains(&&*dashed)
            || dashed.starts_with("x-fencing-");
        if decisive && name.contains('_') {
            return Err(format!("{name}, which some servers take for {dashed}"));
        }
    }
    if all("host").len() != 1 {
        return Err(format!("the hosts {:?}", all("host")));
    }
    match (&*all("content-length"), &*all("transfer-encoding")) {
        ([], []) => Ok(Ends::None),
        ([length], [])
            if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            Ok(Ends::Length)
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Ends::Chunked),
        (lengths, codings) => Err(format!("the lengths {lengths:?}, the codings {codings:?}")),
    }
}

fn content(mut message: Message, bytes: &[u8], from: usize) -> Result<(Message, usize), Fault> {
    match message.ends {
        Ends::None => Ok((message, from)),
        Ends::Length => {
            let length = message.all("content-length").next();
            let length: Option<usize> = length.and_then(|text| text.parse().ok());
            let end = length.and_then(|length| from.checked_add(length));
            let end = end.ok_or_else(|| "a length beyond all bounds".to_owned())?;
            message.body = bytes.get(from..end).ok_or(None)?.to_vec();
            Ok((message, end))
        }
        Ends::Chunked => chunks(message, bytes, from),
    }
}

fn chunks(mut message: Message, bytes: &[u8], mut at: usize) -> Result<(Message, usize), Fault> {
    loop {
        let rest = &bytes[at..];
        let bare = || rest.contains(&b'\n').then(|| "a bare LF".to_owned());
        let length = find(rest, b"\r\n").ok_or_else(bare)?;
        let line = String::from_utf8_lossy(&rest[..length]);
        let digits = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(&line, 16).ok().filter(|_| digits);
        let size = size.ok_or_else(|| format!("the chunk size {line:?}"))?;
        at += length + 2;
        let data = bytes.get(at..at.saturating_add(size).saturating_add(2));
        let data = data.ok_or(None)?.strip_suffix(b"\r\n");
        message.body.extend_from_slice(
            data.ok_or_else(|| format!("no CRLF behind a chunk of {size} bytes, or a trailer"))?,
        );
        at += size + 2;
        if size == 0 {
            return Ok((message, at));
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|part| part == wanted)
}
