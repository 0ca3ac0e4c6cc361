//! HTTP/1 syntax, read to the letter: heads, requests, chunked bodies, and where one message ends and
//! the next begins. Pure: bytes in, a verdict out.
//!
//! Two readers of one stream that disagree on where a message ends are all that request smuggling
//! needs. So what is accepted here is the narrow part of RFC 9112 on which no two readers differ, and
//! whatever else a library would mend, skip or guess at is refused. Bytes are never changed: what
//! passes is what was sent.
//!
//! HTTP/2 has its own framing, and one reader. Of it only trailers are looked at ([`frames`]), which
//! that reader takes though they are malformed.

pub mod answers;
pub mod chunked;
pub mod follow;
pub mod frames;
pub mod head;
pub mod hpack;
mod huffman;
pub mod request;
pub mod response;
pub mod spelling;

#[cfg(test)]
mod tests;
