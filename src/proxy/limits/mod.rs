//! Limits over all requests: how many are in flight, what one client may have of them, and which
//! slow clients make room.

pub(crate) mod body_rate;
pub(crate) mod in_flight;
pub(crate) mod network;
pub(crate) mod slow_clients;
