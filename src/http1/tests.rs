//! Tests of the readers, on messages of every form: acceptance, refusal, and that another reader
//! reads the same, in whatever pieces the bytes come.

mod chunked_bodies;
mod client_streams;
mod properties;
mod requests;
mod responses;

use bytes::BytesMut;

use super::MessageError;
use super::content::{ContentReader, Framing};
use super::head::HeadLimits;
use super::request::{NextHead, RequestReader};

const LIMITS: HeadLimits = HeadLimits {
    bytes: 512,
    fields: 8,
    target: 64,
};

/// The properties of a head that the end of its request depends on.
#[derive(Debug, PartialEq, Eq)]
struct Whole {
    length: usize,
    framing: Framing,
    upgrade: bool,
}

fn read(head: &[u8]) -> Result<Option<Whole>, MessageError> {
    let mut buf = BytesMut::from(head);
    let read = RequestReader::default().read(&mut buf, &LIMITS)?;
    Ok(match read {
        NextHead::Request(request) => Some(Whole {
            length: head.len() - buf.len(),
            framing: request.framing,
            upgrade: request.upgrade,
        }),
        NextHead::None | NextHead::Http2 => None,
    })
}

/// A connection of a client, read as the server reads it.
#[derive(Debug)]
struct Client {
    heads: RequestReader,
    content: ContentReader,
    buf: BytesMut,
    /// The targets of the requests, and the data of their bodies.
    seen: Vec<(String, Vec<u8>)>,
    http2: bool,
}

impl Client {
    fn new() -> Self {
        Self {
            heads: RequestReader::default(),
            content: ContentReader::NONE,
            buf: BytesMut::new(),
            seen: Vec::new(),
            http2: false,
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.buf.extend_from_slice(bytes);
        loop {
            while let Some(data) = self.content.take(&mut self.buf, &LIMITS)? {
                let (_, body) = self.seen.last_mut().expect("a request");
                body.extend_from_slice(&data);
            }
            if !self.content.is_end() {
                return Ok(());
            }
            let request = match self.heads.read(&mut self.buf, &LIMITS)? {
                NextHead::Request(request) => request,
                NextHead::None => return Ok(()),
                NextHead::Http2 => {
                    self.http2 = true;
                    return Ok(());
                }
            };
            self.content = ContentReader::of_request(request.framing);
            let target = request.head.target.as_str().to_owned();
            self.seen.push((target, Vec::new()));
        }
    }
}

/// How many of these bytes belong to a chunked body as far as it has come, and if it is whole.
fn chunks(body: &[u8]) -> Result<(usize, bool), MessageError> {
    let mut content = ContentReader::of_request(Framing::Chunked);
    let mut buf = BytesMut::from(body);
    while content.take(&mut buf, &LIMITS)?.is_some() {}
    Ok((body.len() - buf.len(), content.is_end()))
}
