//! fencepost: checks fencing tokens for services that cannot.

pub mod admin;
pub mod fence;
pub mod metrics;
pub mod rejections;
