//! HTTP/1 messages by their lines: the plain reader that the targets for heads compare with. It is
//! told heads that have passed, and finds out whether they should have.

use std::fmt::{Debug, Display};

use bytes::BytesMut;
use fencepost::http1::content::Framing;

use crate::hold;
use crate::request::LIMITS;

/// The parts that requests and responses have in common.
#[derive(Debug)]
pub struct Message<'a> {
    pub http_11: bool,
    pub fields: Vec<(&'a [u8], &'a [u8])>,
}

/// A name and a value.
type Field<'a> = (&'a [u8], &'a [u8]);

/// The start line, and the fields up to the empty line. Each line ends with CRLF, and has no CR in
/// it.
pub fn lines(head: &[u8]) -> Result<(&[u8], Vec<Field<'_>>), String> {
    let mut lines = head
        .split(|b| *b == b'\n')
        .map(|line| line.strip_suffix(b"\r").ok_or("a bare LF"));
    let start = lines.next().ok_or("no start line")??;
    let mut fields = Vec::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            return Ok((start, fields));
        }
        hold!(!line.contains(&b'\r'), "a bare CR");
        let colon = line.iter().position(|b| *b == b':');
        let colon = colon.ok_or("a line without a colon")?;
        let blank = |b: &u8| *b == b' ' || *b == b'\t';
        let value = &line[colon + 1..];
        let from = value.iter().position(|b| !blank(b)).unwrap_or(value.len());
        let to = value.iter().rposition(|b| !blank(b));
        let to = to.map_or(from, |last| last + 1);
        fields.push((&line[..colon], &value[from..to]));
    }
    Err("no empty line".to_owned())
}

/// The reading of the whole input, if it is the same in pieces of any size.
pub fn in_pieces<T: PartialEq + Debug>(
    read: impl Fn(&[&[u8]]) -> T,
    data: &[u8],
) -> Result<T, String> {
    let whole = read(&[data]);
    let parts = |count| data.len() / count + 1;
    for length in [1, parts(2), parts(3), parts(7)] {
        let pieces: Vec<&[u8]> = data.chunks(length).collect();
        let (again, count) = (read(&pieces), pieces.len());
        hold!(
            again == whole,
            "whole it is {whole:?}, and in {count} pieces {again:?}"
        );
    }
    Ok(whole)
}

/// Reads a head that comes in these pieces, and how many bytes it has.
pub fn growing<H, E: Display>(
    pieces: &[&[u8]],
    mut read: impl FnMut(&mut BytesMut) -> Result<Option<H>, E>,
) -> Result<Option<(usize, H)>, String> {
    let mut buf = BytesMut::new();
    let mut come = 0;
    for piece in pieces {
        buf.extend_from_slice(piece);
        come += piece.len();
        if let Some(head) = read(&mut buf).map_err(|error| error.to_string())? {
            return Ok(Some((come - buf.len(), head)));
        }
    }
    Ok(None)
}

/// The head, if one was found; it may be waited for, or be refused with a reason.
pub fn head_of<H>(found: Result<Option<H>, String>, data: &[u8]) -> Result<Option<H>, String> {
    match &found {
        Ok(Some(_)) => {}
        Ok(None) => hold!(
            data.len() < LIMITS.bytes,
            "it waits for more than it may have"
        ),
        Err(message) => hold!(!message.is_empty(), "a refusal without a word"),
    }
    Ok(found.unwrap_or_default())
}

/// RFC 9110, 5.6.2.
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    let sign = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !text.is_empty() && text.iter().all(sign)
}

impl<'a> Message<'a> {
    /// All values of a field; also under the names that some servers take for its.
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<&'a [u8]> {
        let letter = |b: &u8| {
            if b.is_ascii_alphanumeric() {
                b.to_ascii_lowercase()
            } else {
                b'_'
            }
        };
        let variable = |name: &[u8]| name.iter().map(letter).collect::<Vec<u8>>();
        let wanted = variable(name.as_bytes());
        let matching = self.fields.iter();
        let matching = matching.filter(|(name, _)| variable(name) == wanted);
        matching.map(|(_, value)| *value).collect()
    }

    /// How the content is framed, where there is one answer.
    pub fn framing(&self) -> Result<Framing, String> {
        let lengths = self.values("content-length");
        let codings = self.values("transfer-encoding");
        match (&lengths[..], &codings[..]) {
            ([], []) => Ok(Framing::None),
            ([length], []) => {
                let digits = std::str::from_utf8(length).ok();
                let digits = digits.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                let number = digits.and_then(|text| text.parse::<i64>().ok());
                let number = number.ok_or("a length that is none")?;
                Ok(Framing::Length(number.unsigned_abs()))
            }
            ([], [coding]) => {
                hold!(self.http_11, "a coding on HTTP/1.0");
                hold!(
                    coding.eq_ignore_ascii_case(b"chunked"),
                    "the coding {}",
                    coding.escape_ascii()
                );
                Ok(Framing::Chunked)
            }
            _ => Err(format!(
                "framed by {} lengths and {} codings",
                lengths.len(),
                codings.len()
            )),
        }
    }

    /// Names are tokens, and values have no control characters but tabs.
    pub fn is_well_formed(&self) -> Result<(), String> {
        for (name, value) in &self.fields {
            hold!(is_token(name), "the name {}", name.escape_ascii());
            let control = value.iter().any(|b| *b < 0x20 && *b != b'\t' || *b == 0x7f);
            hold!(!control, "the value {}", value.escape_ascii());
        }
        Ok(())
    }
}
