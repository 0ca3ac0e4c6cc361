//! HTTP/2 to the upstream: [connections](connection), each with the streams that its upstream
//! allows, and the [exchanges](exchange) on them.
//!
//! hyper's and h2's own way is to queue a request inside the library where the upstream allows no
//! more streams. There it outlives its caller, its permit and even its settling, and goes upstream
//! once a stream is free. So a stream is [reserved](Http2Pool::reserve) first, per connection,
//! against the limit that this connection's SETTINGS say. Where none is free another connection is
//! opened, up to `upstream.http2_connections`. A request that waits for a stream has not been
//! handed to anybody.

mod connection;
mod driver;
mod exchange;
mod opened_streams;
mod ping_confirmations;
mod pool;
mod transport;
mod upload;

pub(super) use self::exchange::{Http2Body, Http2Exchange, Http2Response};
pub(super) use self::pool::{Http2Pool, Http2PoolSettings, Reservation};
