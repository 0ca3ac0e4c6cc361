//! The group-commit writer: one task that writes many requests to the store in shared statements.
//!
//! While one batch commits, the next one gathers. An idle writer sends a batch at once. A batch
//! names each resource once: requests for the same resource fold into the highest of their tokens.
//! One task owns the order of events: it enters an answer in the
//! [`EpochTable`](crate::fencing::epochs::EpochTable) before it sends the next statement. So between
//! two statements every opening is registered or unused.
//!
//! An error answers only the requests of the statement that failed. A batch that meets a row lock
//! is sent again without the rows that are locked.

mod answers;
mod batch;
mod closes;
mod command;
mod context;
mod enter;
mod handle;
mod judge;
mod own;
mod queue;
mod repairs;
mod request;
mod rereads;
mod row_locks;
mod state;
mod task;
#[cfg(test)]
mod tests;
mod throttles;
mod upkeep;
mod waiter;
mod walk_requests;
mod write_back;

pub use self::handle::WriterHandle;
pub use self::request::{Want, WriterError};
pub use self::state::{Writer, WriterSetup};
