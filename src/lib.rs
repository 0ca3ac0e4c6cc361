//! fencepost: checks fencing tokens for services that cannot.

pub mod fence;
pub mod metrics;
pub mod rejections;
