//! Tests of the readers, on requests of every form: acceptance, refusal, and that another reader
//! reads the same, in whatever pieces the bytes come.

mod chunked_bodies;
mod client_streams;
mod properties;
mod requests;

use super::chunked::{BodyError, Chunks};
use super::head::HeadLimits;
use super::request::{RequestError, RequestHead, RequestReader};

const LIMITS: HeadLimits = HeadLimits {
    bytes: 512,
    fields: 8,
    target: 64,
};

fn read(head: &[u8]) -> Result<Option<RequestHead>, RequestError> {
    RequestReader::default().read(head, &LIMITS)
}

fn chunks(body: &[u8]) -> Result<(usize, bool), BodyError> {
    let mut chunks = Chunks::default();
    let taken = chunks.read(body, &LIMITS)?;
    Ok((taken, chunks.is_end()))
}
