//! HTTP/1 messages in the types of the `http` crate: the part that the client's side and the
//! upstream's side have in common. [`crate::wire`] decides what is well-formed; nothing is checked
//! twice here.

mod content;
pub(crate) mod fields;
mod write_queue;

pub(crate) use self::content::take_data;
pub(crate) use self::write_queue::WriteQueue;
