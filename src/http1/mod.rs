//! HTTP/1 messages, read strictly: heads, requests, responses, chunked bodies, and where one
//! message ends and the next begins; their fields, kept as the bytes that came; and the bytes that
//! wait for a socket. A message of HTTP/2 has a head of the same type. No sockets.
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
mod data;
mod fields;
mod handover;
pub mod head;
mod message;
pub mod names;
pub mod request;
pub mod response;
pub mod upstream_framing;
mod write_queue;

#[cfg(test)]
mod tests;

pub(crate) use self::data::{read_trailers, take_data};
pub use self::fields::Fields;
pub(crate) use self::fields::title_line;
pub use self::fields::{connection_has, members};
pub(crate) use self::handover::{ClientSocket, Handover, PendingSocket, handover};
pub use self::message::{RequestHead, Response, ResponseHead, Target};
pub(crate) use self::write_queue::WriteQueue;
