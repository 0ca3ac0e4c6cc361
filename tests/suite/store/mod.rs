//! The stores: one contract, and what each engine can do wrong.

pub mod commits;
pub mod contract;
pub mod disk;
pub mod failover;
pub mod file;
pub mod full_disk;
pub mod grants;
pub mod many_epochs;
pub mod secrets;
pub mod store_down;
