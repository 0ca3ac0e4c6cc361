//! HTTP/2 to the upstream. Any request has a [stream](exchange), of which it has the response.
//!
//! A fenced request has its [connection](connection) to itself, from before its permit begins until
//! the exchange has ended. Its own task polls the connection. So giving it up is a reset that hurts
//! no other request, and nothing of it waits in h2's queue for another task to send it. Idle
//! connections are pooled, as over HTTP/1.
//!
//! Other requests [share](shared) connections, each of which is driven by a task.

mod connection;
mod exchange;
mod shared;
#[cfg(test)]
mod tests;

use super::pool::Pool;

pub(crate) use self::connection::Http2Connection;
pub(crate) use self::exchange::{Http2Body, fenced, plain};
pub(super) use self::shared::SharedConnections;

/// Connections for one fenced request at a time.
pub(crate) type Http2Pool = Pool<Http2Connection>;
