//! The suite's own instruments: they must see what the tests rely on, where no test that uses them
//! would notice that they do not.

pub mod harness;
pub mod path;
pub mod relay;
