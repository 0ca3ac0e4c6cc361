//! A connection of requests: each begins where a reader that goes message by message has it, and
//! what passes does not depend on the pieces in which it comes.

use fencepost::http1::client_framing::{ClientFraming, ClientPart, Violation};
use fencepost::http1::head::Framing;
use fencepost::http1::request::RequestReader;

use crate::request::LIMITS;
use crate::{Seen, Verdict, hold, target};

target!("stream", &real);

/// The parts of a connection that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub bytes: usize,
    pub heads: u64,
    pub violation: Option<Violation>,
    /// It stands inside a body.
    pub in_body: bool,
    /// It is HTTP/2.
    pub http2: bool,
}

/// The function under test: a connection in these pieces.
pub type Run = dyn Fn(&[&[u8]]) -> Passed;

/// The bytes that the proxy lets pass.
#[must_use]
pub fn real(pieces: &[&[u8]]) -> Passed {
    let mut framing = ClientFraming::new(LIMITS);
    let mut waiting = Vec::new();
    let mut passed = Passed::default();
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let length = match framing.next(&waiting) {
                Ok(ClientPart::None) => break,
                Ok(ClientPart::Head(head)) => {
                    passed.heads += 1;
                    head.length
                }
                Ok(ClientPart::Body(part)) => part.length(),
                Ok(ClientPart::Http2(length)) => {
                    passed.http2 = true;
                    length
                }
                Err(violation) => {
                    let again = framing.next(&waiting);
                    assert_eq!(
                        again,
                        Ok(ClientPart::None),
                        "more passes behind a violation"
                    );
                    passed.violation = Some(violation);
                    passed.in_body = framing.is_in_body();
                    return passed;
                }
            };
            waiting.drain(..length);
            passed.bytes += length;
        }
    }
    passed.in_body = framing.is_in_body();
    passed
}

pub fn check_of(run: &Run, data: &[u8]) -> Verdict {
    let whole = run(&[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    let thirds: Vec<&[u8]> = data.chunks(data.len() / 3 + 1).collect();
    for pieces in [&bytes, &thirds] {
        let mut again = run(pieces);
        // Parts of a body before it broke may have gone on.
        if matches!(whole.violation, Some(Violation::Body(_))) {
            hold!(again.bytes >= whole.bytes, "less passes in pieces");
            again.bytes = whole.bytes;
        }
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
        let head = RequestReader::default().read(rest, &LIMITS);
        let Ok(Some(head)) = head else {
            return Err(format!("request {number}, at byte {at}, is {head:?}"));
        };
        let last = number == whole.heads;
        hold!(
            last || !head.upgrade,
            "request {number} asks to leave HTTP, and more passes behind it"
        );
        at += head.length;
        let left = match head.framing {
            Framing::None => Some(0),
            Framing::Length(length) => usize::try_from(length)
                .ok()
                .filter(|length| at + length <= data.len()),
            Framing::Chunked => crate::chunked::real(&[&data[at..]]).ok().flatten(),
        };
        let Some(length) = left else {
            let open = whole.in_body || matches!(whole.violation, Some(Violation::Body(_)));
            hold!(last && open, "request {number} has no end, and more passes");
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
