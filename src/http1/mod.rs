//! HTTP/1 messages: the part that the client's side and the upstream's side have in common.
//! [`crate::wire`] decides what is well-formed; nothing is checked twice here.

mod content;
mod fields;
pub mod names;
mod write_queue;

pub(crate) use self::content::{read_trailers, take_data};
pub use self::fields::Fields;
pub(crate) use self::fields::title_line;
pub(crate) use self::write_queue::WriteQueue;
