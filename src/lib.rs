//! fencepost: checks fencing tokens for services that cannot.

pub mod admin;
pub mod app;
pub mod barrier;
pub mod config;
pub mod fence;
pub mod marks;
pub mod metrics;
pub mod proxy;
pub mod rejections;
pub mod server;
