//! fencepost: checks fencing tokens for services that cannot.
pub mod demo;
