//! Heads of requests: what passes, httparse and a reader that goes by lines find the same in, and no
//! server that knows a field by two names finds more; and pieces decide nothing.

use fencepost::wire::head::{Framing, HeadLimits};
use fencepost::wire::request::{RequestError, RequestHead, RequestReader};

use crate::{Seen, Target, Verdict, hold};

pub const TARGET: Target = Target {
    name: "request",
    check,
    dictionary: include_str!("../dictionaries/request.dict"),
};

/// Small, so that inputs reach them.
pub const LIMITS: HeadLimits = HeadLimits {
    bytes: 1024,
    fields: 16,
    target: 256,
};

/// What the function under test makes of what has come so far.
pub type Read = dyn Fn(&[&[u8]]) -> Result<Option<RequestHead>, String>;

fn check(data: &[u8]) -> Verdict {
    check_of(&real, data)
}

/// What the proxy makes of a head that comes in these pieces.
pub fn real(pieces: &[&[u8]]) -> Result<Option<RequestHead>, String> {
    let mut reader = RequestReader::default();
    let mut come = Vec::new();
    for piece in pieces {
        come.extend_from_slice(piece);
        let read = reader.read(&come, &LIMITS);
        if let Some(head) = read.map_err(|error: RequestError| error.to_string())? {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

pub fn check_of(read: &Read, data: &[u8]) -> Verdict {
    let whole = read(&[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    let single = read(&bytes);
    hold!(
        single == whole,
        "whole it is {whole:?}, and byte by byte {single:?}"
    );
    for parts in [2, 3, 7] {
        let pieces: Vec<&[u8]> = data.chunks(data.len() / parts + 1).collect();
        let again = read(&pieces);
        hold!(
            again == whole,
            "whole it is {whole:?}, and in {parts} pieces {again:?}"
        );
    }
    let head = match whole {
        Ok(Some(head)) => head,
        Ok(None) => {
            hold!(
                data.len() < LIMITS.bytes,
                "it waits for more than it may have"
            );
            return Ok(Seen::Refused);
        }
        Err(message) => {
            hold!(!message.is_empty(), "a refusal without a word");
            return Ok(Seen::Refused);
        }
    };
    hold!(
        head.length <= data.len().min(LIMITS.bytes),
        "{} bytes are taken for a head",
        head.length
    );
    let plain = Plain::read(&data[..head.length])?;
    hold!(
        plain.fields.len() <= LIMITS.fields,
        "{} fields",
        plain.fields.len()
    );
    hold!(
        plain.target.len() <= LIMITS.target,
        "a target of {} bytes",
        plain.target.len()
    );

    let mut space = [httparse::EMPTY_HEADER; LIMITS.fields];
    let mut request = httparse::Request::new(&mut space);
    match request.parse(data) {
        Ok(httparse::Status::Complete(length)) => {
            hold!(
                length == head.length,
                "the head has {} bytes, and to httparse {length}",
                head.length
            );
        }
        other => return Err(format!("accepted, and to httparse {other:?}")),
    }
    let line = (
        request.method.unwrap_or_default().as_bytes(),
        request.path.unwrap_or_default().as_bytes(),
        request.version == Some(1),
    );
    hold!(
        line == (plain.method, plain.target, plain.http_11),
        "httparse has {line:?} and a plain reader {plain:?}"
    );
    let fields: Vec<(&[u8], &[u8])> = request
        .headers
        .iter()
        .map(|field| (field.name.as_bytes(), field.value))
        .collect();
    hold!(
        fields == plain.fields,
        "httparse has {fields:?} and a plain reader {plain:?}"
    );

    plain.promises(&head)?;
    Ok(Seen::Accepted)
}

/// A head by its lines.
#[derive(Debug)]
pub struct Plain<'a> {
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub http_11: bool,
    pub fields: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Plain<'a> {
    /// Reads a head that has passed: each line end is a CRLF, and one empty line may lead.
    pub fn read(head: &'a [u8]) -> Result<Self, String> {
        let head = head.strip_prefix(b"\r\n").unwrap_or(head);
        let mut lines = head
            .split(|b| *b == b'\n')
            .map(|line| line.strip_suffix(b"\r").ok_or("a bare LF"));
        let start = lines.next().ok_or("no start line")??;
        let words: Vec<&[u8]> = start.split(|b| *b == b' ').collect();
        let [method, target, version] = words[..] else {
            return Err(format!("{} words in the start line", words.len()));
        };
        let mut fields = Vec::new();
        for line in lines {
            let line = match line {
                Ok(b"") => break,
                Ok(line) => line,
                Err(error) => return Err(error.to_owned()),
            };
            hold!(!line.contains(&b'\r'), "a bare CR");
            let colon = line
                .iter()
                .position(|b| *b == b':')
                .ok_or("a line without a colon")?;
            let blank = |b: &u8| *b == b' ' || *b == b'\t';
            let value = &line[colon + 1..];
            let from = value.iter().position(|b| !blank(b)).unwrap_or(value.len());
            let to = value
                .iter()
                .rposition(|b| !blank(b))
                .map_or(from, |last| last + 1);
            fields.push((&line[..colon], &value[from..to]));
        }
        Ok(Self {
            method,
            target,
            http_11: version == b"HTTP/1.1",
            fields,
        })
    }

    /// All values of a field; also under the names that some servers take for its.
    fn values(&self, name: &str) -> Vec<&'a [u8]> {
        let letter = |b: &u8| {
            if b.is_ascii_alphanumeric() {
                b.to_ascii_lowercase()
            } else {
                b'_'
            }
        };
        let variable = |name: &[u8]| name.iter().map(letter).collect::<Vec<u8>>();
        let wanted = variable(name.as_bytes());
        let matching = self
            .fields
            .iter()
            .filter(|(name, _)| variable(name) == wanted);
        matching.map(|(_, value)| *value).collect()
    }

    fn promises(&self, head: &RequestHead) -> Result<(), String> {
        let lengths = self.values("content-length");
        let codings = self.values("transfer-encoding");
        let framing = match (&lengths[..], &codings[..]) {
            ([], []) => Framing::None,
            ([length], []) => {
                let digits = std::str::from_utf8(length)
                    .ok()
                    .filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                let number = digits.and_then(|text| text.parse::<i64>().ok());
                let number = number.ok_or("a length that is none")?;
                Framing::Length(number.unsigned_abs())
            }
            ([], [coding]) => {
                hold!(self.http_11, "a coding on HTTP/1.0");
                hold!(
                    coding.eq_ignore_ascii_case(b"chunked"),
                    "the coding {}",
                    coding.escape_ascii()
                );
                Framing::Chunked
            }
            _ => {
                return Err(format!(
                    "framed by {} lengths and {} codings",
                    lengths.len(),
                    codings.len()
                ));
            }
        };
        hold!(
            framing == head.framing,
            "framed {:?}, and to a plain reader {framing:?}",
            head.framing
        );

        let token = |text: &[u8]| {
            !text.is_empty()
                && text
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
        };
        hold!(
            token(self.method) && self.method != b"CONNECT",
            "the method {}",
            self.method.escape_ascii()
        );
        for (name, value) in &self.fields {
            hold!(token(name), "the name {}", name.escape_ascii());
            let control = value.iter().any(|b| *b < 0x20 && *b != b'\t' || *b == 0x7f);
            hold!(!control, "the value {}", value.escape_ascii());
        }

        // What is judged is what goes on: nothing is cut or mended on the way.
        let target = std::str::from_utf8(self.target).map_err(|_| "a target that is no text")?;
        let uri: http::Uri = target
            .parse()
            .map_err(|error| format!("{target} is no URI: {error}"))?;
        let rest = uri.path_and_query().map_or("", |rest| rest.as_str());
        hold!(
            target == rest
                || uri
                    .authority()
                    .is_some_and(|_| target.ends_with(rest) || rest == "/"),
            "{target} goes on as {rest}"
        );
        let named = self
            .fields
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"host"))
            .count();
        hold!(
            named == 1 || named == 0 && !self.http_11,
            "{named} Host fields"
        );
        if let (Some(authority), [host]) = (uri.authority(), &self.values("host")[..]) {
            hold!(
                host.eq_ignore_ascii_case(authority.as_str().as_bytes()),
                "{authority} is asked for, of {}",
                host.escape_ascii()
            );
        }
        Ok(())
    }
}
