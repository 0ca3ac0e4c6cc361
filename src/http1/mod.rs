//! HTTP/1 messages, read strictly: heads, requests, responses, chunked bodies, and where one
//! message ends and the next begins; their fields, kept as the bytes that came; and the bytes that
//! wait for a socket. A message of HTTP/2 has a head of the same type. No sockets.
//!
//! Request smuggling only needs two readers of one stream that disagree on where a message ends. So
//! this accepts the narrow part of RFC 9112 on which no two readers differ, and refuses everything
//! that a library would repair, skip or guess. Bytes are never changed: accepted bytes go on as
//! they were sent.
//!
//! A head is read when its empty line has come. The bytes of a body are handed on as they come: a
//! malformed body breaks off and never ends.
//!
//! HTTP/2 has its own framing, and one reader, which is the library.

pub mod content;
mod fields;
pub mod head;
mod message;
pub mod names;
pub mod request;
pub mod response;
mod write_queue;

#[cfg(test)]
mod tests;

pub(crate) use self::fields::title_line;
pub use self::fields::{Fields, connection_has, members};
pub use self::head::MessageError;
pub(crate) use self::message::ClientSocket;
pub use self::message::{RequestHead, Response, ResponseHead, Target};
pub(crate) use self::write_queue::WriteQueue;
