//! The request path. Read [`handle`] and [`fenced`] from top to bottom: the order of the phases is
//! the correctness argument.
//!
//! 1. [`classify`]: refuse what is malformed or ambiguous; find the route, parse the token.
//! 2. [`body`](crate::body): read the body up to `body.buffer`; derive the key.
//! 3. [`Fencing::admit`](crate::fencing::Fencing::admit): check the token, wait at the barrier. The
//!    result is a permit or a refusal.
//! 4. [`exchange`]: forward, in a future of its own that owns the permit and outlives the client.
//! 5. [`answer`]: count, log and remember the outcome. [`refusal`] maps every refusal to HTTP.

mod answer;
mod claim;
mod classify;
mod client;
mod client_body;
mod context;
mod destination;
mod exchange;
mod fenced;
mod handle;
pub mod headers;
mod idempotency;
pub mod jsonkey;
pub(crate) mod limits;
mod log;
mod notes;
mod observe;
mod operation;
mod recorder;
mod refusal;
mod routing_table;
mod setup;
mod tunnel;
mod unfenced;
mod upstream_request;

pub(crate) use self::classify::{Class, Fenced, classify, host_of};
pub(crate) use self::client::{Client, ClientNames};
pub use self::client_body::{ClientBody, full};
pub(crate) use self::handle::count_limit;
pub(crate) use self::headers::http2;
pub(crate) use self::limits::{ClientPermit, ClientShares};
pub use self::refusal::{AnswerStyle, Refusal, Retry, Subject, claimed};
pub(crate) use self::routing_table::RoutingTable;
pub use self::setup::{Proxy, ProxyError, reach};
