//! The request path. Read [`handle`] and [`fenced`] from top to bottom: the order of the phases is the
//! correctness argument.
//!
//! 1. [`classify`]: refuse what is malformed or ambiguous; find the route, parse the token.
//! 2. [`body`]: read the body up to `body.buffer`; derive the key.
//! 3. [`admit`]: ask the marks, wait at the barrier: a permit, or a refusal.
//! 4. [`forward`]: one exchange, in a future of its own that owns the permit and outlives its client.
//! 5. [`respond`]: the one place that maps what became of it to HTTP.

mod access_log;
mod admit;
mod body;
mod body_refusal;
mod claim;
mod classify;
mod conclusion;
mod core;
mod counting;
mod derive;
mod fenced;
mod forward;
pub(crate) mod frames;
mod handle;
pub mod headers;
mod http2;
pub mod idempotency;
pub mod jsonkey;
mod memory;
mod observe;
mod pace;
mod pass;
mod peer;
mod places;
mod rate;
mod received;
mod refusal;
mod refusal_throttles;
mod reply;
mod request_context;
mod respond;
mod shares;
pub(crate) mod slow;
pub(crate) mod spare;
mod switch;
mod table;
mod tunnel;
mod upstream;

pub(crate) use self::body::BoxError;
pub(crate) use self::core::ProxySetup;
pub use self::core::{Proxy, ProxyError};
pub(crate) use self::handle::limit_of;
pub(crate) use self::peer::{Peer, PeerNames};
pub(crate) use self::received::{Feed, Received, Wish, streamed};
pub(crate) use self::reply::ClientBody;
pub(crate) use self::shares::{ConnectionPlaces, Network};
pub(crate) use self::switch::{Handover, handover};
pub(crate) use self::tunnel::keep_alive;
pub use self::upstream::UpstreamError;
