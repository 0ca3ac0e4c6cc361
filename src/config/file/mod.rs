//! Checks of routes against each other, and TLS files.

pub(in crate::config) mod lints;
pub(in crate::config) mod shared_keys;
pub(in crate::config) mod tls;
