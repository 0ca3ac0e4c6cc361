//! Heads of responses: what passes, httparse and a reader that goes by lines find the same in; and
//! pieces decide nothing.

use fencepost::wire::head::Framing;
use fencepost::wire::response::{ResponseHead, ResponseReader};

use crate::message::{Message, lines};
use crate::request::LIMITS;
use crate::{Seen, Target, Verdict, hold};

pub const TARGET: Target = Target {
    name: "response",
    check,
    dictionary: include_str!("../dictionaries/response.dict"),
};

/// The reading of the bytes so far by the function under test.
pub type Read = dyn Fn(&[&[u8]]) -> Result<Option<ResponseHead>, String>;

fn check(data: &[u8]) -> Verdict {
    check_of(&real, data)
}

/// The proxy's reading of a head that comes in these pieces.
pub fn real(pieces: &[&[u8]]) -> Result<Option<ResponseHead>, String> {
    let mut reader = ResponseReader::default();
    let mut come = Vec::new();
    for piece in pieces {
        come.extend_from_slice(piece);
        let read = reader.read(&come, &LIMITS);
        if let Some(head) = read.map_err(|error| error.to_string())? {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

pub fn check_of(read: &Read, data: &[u8]) -> Verdict {
    let whole = read(&[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    let thirds: Vec<&[u8]> = data.chunks(data.len() / 3 + 1).collect();
    for pieces in [&bytes, &thirds] {
        let again = read(pieces);
        hold!(
            again == whole,
            "whole it is {whole:?}, and in {} pieces {again:?}",
            pieces.len()
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
    let (start, fields) = lines(&data[..head.length])?;
    let version = start.get(..8).ok_or("a short status line")?;
    let status = start
        .get(9..12)
        .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    hold!(
        status == Some(head.status),
        "the status {}, and to a plain reader {status:?}",
        head.status
    );

    let mut space = [httparse::EMPTY_HEADER; LIMITS.fields];
    let mut response = httparse::Response::new(&mut space);
    match response.parse(data) {
        Ok(httparse::Status::Complete(length)) => {
            hold!(
                length == head.length,
                "the head has {} bytes, and to httparse {length}",
                head.length
            );
        }
        other => return Err(format!("accepted, and to httparse {other:?}")),
    }
    let http_11 = version == b"HTTP/1.1";
    hold!(
        response.code == Some(head.status) && response.version == Some(u8::from(http_11)),
        "httparse has {:?} and {:?}",
        response.code,
        response.version
    );
    let seen: Vec<(&[u8], &[u8])> = response
        .headers
        .iter()
        .map(|field| (field.name.as_bytes(), field.value))
        .collect();
    hold!(
        seen == fields,
        "httparse has {seen:?} and a plain reader {fields:?}"
    );

    let message = Message { http_11, fields };
    message.is_well_formed()?;
    let framing = message.framing()?;
    hold!(
        framing == head.framing,
        "framed {:?}, and to a plain reader {framing:?}",
        head.framing
    );
    let bodiless = head.status < 200 || head.status == 204;
    hold!(
        !bodiless || matches!(framing, Framing::None | Framing::Length(0)),
        "a body with {}",
        head.status
    );
    Ok(Seen::Accepted)
}
