//! A Postgres primary and its standby: a commit counts when the standby has it, and what a failover
//! cannot lose it does not lose; what an asynchronous one loses is found, refused, and mended from
//! memory.

mod losses;
pub mod switches;
mod waits;
mod warnings;
