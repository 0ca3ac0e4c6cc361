//! HTTP/1 syntax, read strictly: heads, requests, chunked bodies, and where one message ends and
//! the next begins. Pure: bytes in, a verdict out.
//!
//! Request smuggling only needs two readers of one stream that disagree on where a message ends. So
//! this accepts the narrow part of RFC 9112 on which no two readers differ, and refuses everything
//! that a library would repair, skip or guess. Bytes are never changed: accepted bytes go on as
//! they were sent.
//!
//! HTTP/2 has its own framing, and one reader, which is the library.

pub mod chunked;
pub mod client_framing;
pub mod content;
pub mod head;
pub mod request;
pub mod response;
pub mod upstream_framing;

#[cfg(test)]
mod tests;
