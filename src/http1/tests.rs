//! Tests of the readers, on requests of every form: acceptance, refusal, and that another reader
//! reads the same, in whatever pieces the bytes come.

mod chunked_bodies;
mod client_streams;
mod properties;
mod requests;

use super::chunked::{BodyError, Chunks};
use super::client_framing::{ClientFraming, ClientPart, Violation};
use super::head::HeadLimits;
use super::request::{RequestError, RequestReader, WholeHead};

const LIMITS: HeadLimits = HeadLimits {
    bytes: 512,
    fields: 8,
    target: 64,
};

fn read(head: &[u8]) -> Result<Option<WholeHead>, RequestError> {
    RequestReader::default().read(head, &LIMITS)
}

/// Takes all parts of these bytes: those that the last call did not release, and new ones. Returns
/// how many of them may be handed on, which holds beside a violation too.
fn feed(framing: &mut ClientFraming, bytes: &[u8]) -> (usize, Result<(), Violation>) {
    let mut released = 0;
    loop {
        match framing.next(&bytes[released..]) {
            Ok(ClientPart::None) => return (released, Ok(())),
            Ok(ClientPart::Head(head)) => released += head.length,
            Ok(ClientPart::Body(part)) => released += part.length(),
            Ok(ClientPart::Http2(length)) => released += length,
            Err(violation) => return (released, Err(violation)),
        }
    }
}

fn chunks(body: &[u8]) -> Result<(usize, bool), BodyError> {
    let mut chunks = Chunks::default();
    let taken = chunks.read(body, &LIMITS)?;
    Ok((taken, chunks.is_end()))
}
