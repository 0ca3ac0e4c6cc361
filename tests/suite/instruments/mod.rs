//! The suite's own instruments: they must see what the tests rely on.

pub mod harness;
mod http2;
pub mod path;
pub mod relay;
