//! A connection of requests: each begins where a reader that goes message by message has it, and
//! what passes does not depend on the pieces in which it comes.

use bytes::BytesMut;
use fencepost::http1::MessageError;
use fencepost::http1::content::{ContentReader, Framing};
use fencepost::http1::request::{NextHead, RequestReader};

use crate::request::LIMITS;
use crate::{Seen, Verdict, hold, target};

target!("stream", &real);

/// The parts of a connection that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The bytes of the heads and bodies, as far as they passed.
    pub bytes: usize,
    pub heads: u64,
    /// The data of all bodies.
    pub data: Vec<u8>,
    pub violation: Option<MessageError>,
    /// It stands inside a body.
    pub in_body: bool,
    /// It is HTTP/2.
    pub http2: bool,
}

/// The function under test: a connection in these pieces.
pub type Run = dyn Fn(&[&[u8]]) -> Passed;

/// The parts that the proxy lets pass: it reads a head, the content behind it, and so on.
#[must_use]
pub fn real(pieces: &[&[u8]]) -> Passed {
    let mut heads = RequestReader::default();
    let mut content = ContentReader::NONE;
    let mut buf = BytesMut::new();
    let mut come = 0;
    let mut passed = Passed::default();
    for piece in pieces {
        buf.extend_from_slice(piece);
        come += piece.len();
        loop {
            let read = if content.is_end() {
                heads.read(&mut buf, &LIMITS).map(|next| match next {
                    NextHead::Request(request) => {
                        passed.heads += 1;
                        content = ContentReader::of_request(request.framing);
                        Some(())
                    }
                    NextHead::Http2 => {
                        passed.http2 = true;
                        None
                    }
                    NextHead::None => None,
                })
            } else {
                let data = content.take(&mut buf, &LIMITS);
                passed.bytes = come - buf.len();
                data.map(|data| {
                    let more = data.is_some() || content.is_end();
                    passed.data.extend_from_slice(&data.unwrap_or_default());
                    more.then_some(())
                })
            };
            passed.in_body = !content.is_end();
            match read {
                Ok(Some(())) => passed.bytes = come - buf.len(),
                Ok(None) => break,
                Err(error) => {
                    passed.violation = Some(error);
                    return passed;
                }
            }
        }
    }
    passed
}

pub fn check_of(run: &Run, data: &[u8]) -> Verdict {
    let whole = run(&[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    let thirds: Vec<&[u8]> = data.chunks(data.len() / 3 + 1).collect();
    for pieces in [&bytes, &thirds] {
        let again = run(pieces);
        hold!(
            again == whole,
            "at once {whole:?}, and in {} pieces {again:?}",
            pieces.len()
        );
    }
    if whole.http2 {
        return Ok(Seen::Accepted);
    }
    // Message by message.
    let mut at = 0;
    for number in 1..=whole.heads {
        let rest = &data[at..];
        let head = crate::request::real(&[rest]);
        let Ok(Some(head)) = head else {
            return Err(format!("request {number}, at byte {at}, is {head:?}"));
        };
        let last = number == whole.heads;
        at += head.length;
        let left = match head.framing {
            Framing::None => Some(0),
            Framing::Length(length) => usize::try_from(length)
                .ok()
                .filter(|length| at + length <= data.len()),
            Framing::Chunked => crate::chunked::real(&[&data[at..]]).ok().flatten(),
        };
        let Some(length) = left else {
            hold!(
                last && whole.in_body,
                "request {number} has no end, and more passes"
            );
            return Ok(Seen::Accepted);
        };
        at += length;
    }
    hold!(
        at == whole.bytes,
        "{} bytes pass, and {} requests have {at}",
        whole.bytes,
        whole.heads
    );
    Ok(if whole.heads > 0 {
        Seen::Accepted
    } else {
        Seen::Refused
    })
}
