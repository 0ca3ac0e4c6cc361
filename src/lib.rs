//! fencepost: checks fencing tokens for services that cannot.

pub mod cli;
pub mod config;
pub mod fence;
