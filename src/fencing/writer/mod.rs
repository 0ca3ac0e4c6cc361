//! The writer: one task that brings what many requests want to the store in shared statements.
//!
//! While one batch commits, the next one gathers; nothing is waited for when the writer is idle (*group
//! commit*). A batch names each resource once: requests for the same resource fold into the
//! highest of their tokens. One task owns the order of things: an answer is entered in the
//! [`EpochTable`](crate::fencing::epochs::EpochTable) before the next statement is sent, so an opening is always either unanswered (and known
//! here as such), registered, or nobody's.
//!
//! What can go wrong stays with those it went wrong for: an error answers exactly the requests whose
//! statement it was; a batch that runs into a row lock is taken apart and each resource asked in a
//! statement of its own, beside the writer, so that one locked row stops nobody else.

mod answers;
mod aside;
mod batch;
mod bounds;
mod closes;
mod command;
mod enter;
mod handle;
mod judge;
mod meters;
mod own;
mod repairs;
mod request;
mod said;
mod state;
mod task;
#[cfg(test)]
mod tests;
mod upkeep;
mod waiter;
mod wishes;

pub use self::handle::WriterHandle;
pub use self::meters::{Meters, Trouble};
pub use self::request::{Answer, Caller, Want, WriterError};
pub use self::state::{Writer, WriterSetup};
