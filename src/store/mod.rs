//! The durable state: the marks, and the instances that may have requests in flight.
//!
//! Everything a proxy must agree on with the other replicas, or with its own next run, goes through
//! [`MarkStore`]. Two stores implement it, [`sqlite`] and [`postgres`], and one contract suite
//! tests both (`tests/suite/store/contract.rs`). [`fencing`](crate::fencing) decides what an
//! instance *remembers* of the store, and for how long it may trust that.
//!
//! This module names no HTTP type.

mod administration;
pub(crate) mod engine;
mod instances;
mod mark_store;
mod operations;
mod place;
pub mod postgres;
pub mod reckoning;
mod records;
pub mod routes;
mod rows;
pub mod sqlite;

pub use self::administration::Administration;
pub use self::instances::Instances;
pub use self::mark_store::MarkStore;
pub use self::operations::{
    Attempt, AttemptEnd, AttemptKey, Operation, OperationState, Operations, UnknownCount,
    UnknownOperation,
};
pub use self::records::*;
