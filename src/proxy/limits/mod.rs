//! Limits over all requests: how many are in flight, and what one client may have of
//! them.

pub(crate) mod in_flight;
pub(crate) mod network;
