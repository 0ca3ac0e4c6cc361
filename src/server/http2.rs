//! HTTP/2 on the data port: what a client may ask for.
//!
//! HTTP/2 lets one connection ask for a great deal at once, so every number here is a bound on memory or on work
//! that one client can cause:
//!
//! - *Streams* (`limits.http2_streams`, `limits.in_flight_per_connection`): requests at work at once. Those that a client opens only to reset them
//!   (CVE-2023-44487, "rapid reset") never get past [`UNACCEPTED_RESETS`] before they reach a handler, and beyond
//!   that are counted by [`super::activity`]. Streams that this side resets because the client breaks the rules
//!   (CVE-2025-8671, "made you reset") are [`BROKEN_STREAMS`] at most, over the connection's whole life.
//! - *Received data*: [`CONNECTION_WINDOW`] for a connection, of which one stream takes [`STREAM_WINDOW`] at most,
//!   so that uploads that wait at the barrier do not stop the others beside them. A stream of 64 KiB to a round trip
//!   is plenty between neighbours, and every connection may have its window full.
//! - *Data to send*: [`SEND_BUFFER`] for each stream that its client does not read.
//! - *Heads*: `limits.header_bytes` with HTTP/2's own 32 bytes for each line (RFC 9113, 6.5.2), in as many
//!   CONTINUATION frames as that needs (CVE-2024-27316); HPACK's table has its 4,096 bytes.
//!
//! Extended CONNECT (RFC 8441) is off: it is a tunnel, and nothing here is there to look into one.
//!
//! Pings go out when a client has been silent, and one that does not answer is gone: TCP alone would not notice
//! for hours that a machine has vanished while its requests are at work.

use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;

use crate::config::LimitSettings;

const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;
const SEND_BUFFER: usize = 64 << 10;
/// The smallest that the protocol knows, and its default.
const FRAME: u32 = 16 << 10;
/// Streams that were reset before a handler saw them.
const UNACCEPTED_RESETS: usize = 32;
/// Streams of one connection that were reset for breaking the rules.
const BROKEN_STREAMS: usize = 128;
/// What HTTP/2 counts for a header line besides its bytes (RFC 9113, 6.5.2).
const LINE: usize = 32;
/// Lines that HTTP/1 would not count: the pseudo-fields.
const PSEUDO: usize = 4;

/// What a header list may have, as HTTP/2 counts (RFC 9113, 6.5.2).
pub(super) fn header_list(limits: &LimitSettings) -> usize {
    let lines = limits.header_count.saturating_add(PSEUDO);
    limits
        .header_bytes
        .saturating_add(lines.saturating_mul(LINE))
}

/// How many streams a client may have open at once. A client that is told so waits, or opens another
/// connection; without that its requests beyond the connection's share would be refused.
fn streams(limits: &LimitSettings) -> u32 {
    let share = u32::try_from(limits.in_flight_per_connection).unwrap_or(u32::MAX);
    limits.http2_streams.min(share)
}

/// Sets what a client may ask for.
pub(super) fn configure<E>(builder: &mut auto::Builder<E>, limits: &LimitSettings) {
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams(limits))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(header_list(limits)).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(UNACCEPTED_RESETS)
        .max_local_error_reset_streams(BROKEN_STREAMS)
        // Three times within the time after which a connection without requests is closed anyway.
        .keep_alive_interval(limits.idle_timeout / 3)
        .keep_alive_timeout(limits.head_timeout);
}
