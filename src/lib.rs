//! fencepost: checks fencing tokens for services that cannot.
pub mod barrier;
pub mod fence;
pub mod marks;
