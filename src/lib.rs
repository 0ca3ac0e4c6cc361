//! fencepost: checks fencing tokens for services that cannot.

pub mod config;
pub mod fence;
