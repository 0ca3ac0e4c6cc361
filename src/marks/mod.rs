//! The durable side of fencing: which marks there are, and who may have requests in flight.
//!
//! Everything a proxy must agree on with its peers, or with its own next run, goes through
//! [`MarkStore`]. Two embodiments exist, [`sqlite`] and [`postgres`], with one contract suite over
//! both (`tests/suite/store/contract.rs`). What an instance *remembers* lives in [`ledger`]; how requests
//! share one transaction lives in [`lane`]; how long an instance may trust itself lives in
//! [`lease`], how it learns that another one is dead in [`watch`], and how long it waits for the dead
//! in [`reckoning`].
//!
//! No HTTP type is named in this module.

#[cfg(test)]
pub(crate) mod double;
pub mod growth;
pub mod keeper;
pub mod lane;
pub mod lease;
pub mod ledger;
pub mod postgres;
pub mod reckoning;
pub mod routes;
mod rows;
pub mod sqlite;
pub mod store;
pub mod watch;

pub use store::*;
