//! Heads of responses: what passes, httparse and a reader that goes by lines find the same in; and
//! pieces decide nothing.

use fencepost::http1::content::{ContentReader, Framing};
use fencepost::http1::response::{ResponseExpectation, ResponseReader};

use crate::message::{Message, growing, head_of, in_pieces, lines};
use crate::request::LIMITS;
use crate::{Seen, Verdict, hold, target};

target!("response", &real);

/// What a final head that passes says about the end of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub length: usize,
    pub status: u16,
    /// `None`: another protocol follows.
    pub framing: Option<Framing>,
    /// Its connection is not used again.
    pub odd: bool,
}

/// The reading of the bytes so far by the function under test.
pub type Read = dyn Fn(&[&[u8]]) -> Result<Option<Whole>, String>;

/// The proxy's reading of a head that comes in these pieces, as the answer to a GET.
pub fn real(pieces: &[&[u8]]) -> Result<Option<Whole>, String> {
    let asked = ResponseExpectation {
        head: false,
        upgrade: true,
    };
    let mut reader = ResponseReader::new(asked, LIMITS);
    let read = growing(pieces, |buf| reader.read(buf))?;
    Ok(read.map(|(length, received)| Whole {
        length,
        status: received.head.status.as_u16(),
        framing: received.content.map(|content| match content {
            ContentReader::ToEnd => Framing::None,
            ContentReader::Length(length) => Framing::Length(length),
            ContentReader::Chunked(_) => Framing::Chunked,
        }),
        odd: received.odd,
    }))
}

pub fn check_of(read: &Read, data: &[u8]) -> Verdict {
    let whole = in_pieces(read, data)?;
    let Some(head) = head_of(whole, data)? else {
        return Ok(Seen::Refused);
    };
    hold!(
        head.length <= data.len(),
        "{} bytes are taken for a head",
        head.length
    );
    let taken = &data[..head.length];
    hold!(
        taken.ends_with(b"\n\n") || taken.ends_with(b"\n\r\n"),
        "it ends without an empty line"
    );
    // Interim responses before it have been passed over.
    let taken = last_head(taken);
    hold!(
        taken.len() <= LIMITS.bytes,
        "{} bytes are taken for one head",
        taken.len()
    );
    let digits = head.status.to_string();
    hold!(
        taken.starts_with(b"HTTP/1.")
            && taken[8..].trim_ascii_start().starts_with(digits.as_bytes()),
        "the status {}",
        head.status
    );
    // What is odd is put right. A plain reader and httparse have no opinion about it.
    let Ok((start, fields)) = lines(taken) else {
        return Ok(Seen::Accepted);
    };
    let http_11 = !start.starts_with(b"HTTP/1.0");
    let message = Message { http_11, fields };
    if message.is_well_formed().is_err() {
        return Ok(Seen::Accepted);
    }
    let framing = framing(&message);
    match head.status {
        101 => hold!(head.framing.is_none(), "content behind a 101"),
        204 | 304 => hold!(
            head.framing == Some(Framing::Length(0)),
            "framed {:?}, and it has no content",
            head.framing
        ),
        _ => hold!(
            head.framing == framing,
            "framed {:?}, and to a plain reader {framing:?}",
            head.framing
        ),
    }
    hold!(
        framing.is_some() || head.odd,
        "its end is in doubt, and its connection is kept"
    );
    let mut space = [httparse::EMPTY_HEADER; LIMITS.fields];
    let mut response = httparse::Response::new(&mut space);
    if let Ok(httparse::Status::Complete(length)) = response.parse(taken) {
        let seen: Vec<(&[u8], &[u8])> = response
            .headers
            .iter()
            .map(|field| (field.name.as_bytes(), field.value))
            .collect();
        hold!(
            (length, response.code) == (taken.len(), Some(head.status)) && seen == message.fields,
            "httparse has {length} bytes, {:?} and {seen:?}",
            response.code
        );
    }
    Ok(Seen::Accepted)
}

/// The last of these heads: each ends with its first empty line.
fn last_head(mut heads: &[u8]) -> &[u8] {
    loop {
        let empty = |at: &usize| {
            let rest = &heads[at + 1..];
            heads[*at] == b'\n' && (rest.starts_with(b"\n") || rest.starts_with(b"\r\n"))
        };
        let end = (0..heads.len()).find(empty).unwrap_or(heads.len());
        let rest = heads.get(end + 1..).unwrap_or_default();
        let rest = rest.strip_prefix(b"\r").unwrap_or(rest);
        match rest.get(1..) {
            Some(rest) if !rest.is_empty() => heads = rest,
            _ => return heads,
        }
    }
}

/// How the fields frame a response with content; `None`: in no way, or in more than one.
fn framing(message: &Message<'_>) -> Option<Framing> {
    let values = |wanted: &'static [u8]| {
        let fields = message.fields.iter();
        let fields = fields.filter(move |(name, _)| name.eq_ignore_ascii_case(wanted));
        fields.map(|(_, value)| *value)
    };
    let members = values(b"content-length").flat_map(|value| value.split(|b| *b == b','));
    let mut lengths = Vec::new();
    for member in members {
        let member = std::str::from_utf8(member).ok()?.trim_matches([' ', '\t']);
        if !member.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        lengths.push(member.parse::<i64>().ok()?.unsigned_abs());
    }
    lengths.dedup();
    let codings: Vec<&[u8]> = values(b"transfer-encoding").collect();
    match (&lengths[..], &codings[..]) {
        ([], []) => Some(Framing::None),
        ([length], []) => Some(Framing::Length(*length)),
        ([] | [_], [coding]) if message.http_11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Some(Framing::Chunked)
        }
        _ => None,
    }
}
