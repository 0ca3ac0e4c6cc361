//! HTTP/2 to the upstream. A request has its [connection](connection) to itself until its
//! [exchange](exchange) has ended; a fenced one from before its permit begins. Its own task polls
//! the connection. So giving it up hurts no other request, and nothing of it waits in h2's queue for
//! another task to send it. Idle connections are pooled, as over HTTP/1.

mod connection;
mod exchange;
#[cfg(test)]
mod tests;

use super::pool::Pool;

pub(crate) use self::connection::Http2Connection;
pub(crate) use self::exchange::{Http2Body, exchange};

/// Connections of one kind over HTTP/2.
pub(crate) type Http2Pool = Pool<Http2Connection>;
