//! fencepost: checks fencing tokens for services that cannot.

pub mod admin;
pub mod config;
pub mod fence;
pub mod metrics;
pub mod rejections;
