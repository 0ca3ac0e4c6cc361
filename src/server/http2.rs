//! HTTP/2 on the data port: the limits of one connection.
//!
//! One connection can ask for a great deal at once, so every number here bounds the memory or the
//! work that one client can cause:
//!
//! - *Streams* (`limits.http2_streams`, `limits.in_flight_per_connection`): requests at once. A
//!   client may open streams only to reset them (CVE-2023-44487, "rapid reset"). At most
//!   [`UNACCEPTED_RESETS`] of them may be reset before a handler sees them; later ones are counted
//!   by [`super::connection_state`]. At most [`BROKEN_STREAMS`] streams of a connection may be
//!   reset for breaking the rules (CVE-2025-8671, "made you reset").
//! - *Received data*: [`CONNECTION_WINDOW`] for a connection, of which one stream takes at most
//!   [`STREAM_WINDOW`]. So uploads that wait at the barrier do not stop the others beside them. 64
//!   KiB a round trip is plenty between neighbours, and every connection may have its window full.
//! - *Data to send*: [`SEND_BUFFER`] for each stream that its client does not read.
//! - *Heads*: `limits.header_bytes`, and 32 bytes more for each line (RFC 9113, 6.5.2), in as many
//!   CONTINUATION frames as that needs (CVE-2024-27316). HPACK's table has its 4,096 bytes.
//!
//! Extended CONNECT (RFC 8441) is off: it is a tunnel, and the proxy could not look into it.
//!
//! A silent client gets pings, and its connection is closed if it does not answer. TCP alone would
//! not notice for hours that a machine has vanished in the middle of a request.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connection_state::{ActiveStream, ConnectionState};
use super::deadline_timer::DeadlineTimer;
use super::idle_connections::Presence;
use super::signals::Signal;
use super::stalled_streams::{StreamExecutor, TrackedBody};
use super::tls::ClientIo;
use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};
use crate::proxy::{Client, Proxy, Received};
use crate::wire::request::RequestError;

/// A client has this long to close a connection that makes room.
const GOODBYE: Duration = Duration::from_secs(1);
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;
const SEND_BUFFER: usize = 64 << 10;
/// The smallest frame size that the protocol allows, and its default.
const FRAME: u32 = 16 << 10;
/// Streams that were reset before a handler saw them.
const UNACCEPTED_RESETS: usize = 32;
/// Streams of one connection that were reset for breaking the rules.
const BROKEN_STREAMS: usize = 128;
/// HTTP/2 counts so much for a header line besides its bytes (RFC 9113, 6.5.2).
const LINE: usize = 32;
/// Lines that HTTP/1 would not count: the pseudo-fields.
const PSEUDO: usize = 4;

/// The largest header list, as HTTP/2 counts it (RFC 9113, 6.5.2).
fn header_list(limits: &LimitSettings) -> usize {
    let lines = limits.header_count.saturating_add(PSEUDO);
    limits
        .header_bytes
        .saturating_add(lines.saturating_mul(LINE))
}

/// How many streams a client may have open at once. A client that knows the number waits, or opens
/// another connection. Otherwise its requests beyond the connection's share would be refused.
fn most_streams(limits: &LimitSettings) -> u32 {
    let share = u32::try_from(limits.in_flight_per_connection).unwrap_or(u32::MAX);
    limits.http2_streams.min(share)
}

/// The settings of a connection.
fn builder(limits: &LimitSettings, streams: StreamExecutor) -> Builder<StreamExecutor> {
    let mut builder = Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(most_streams(limits))
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
    builder
}

/// HTTP/2 for all connections of the data port.
pub(super) struct Http2 {
    limits: LimitSettings,
    metrics: Arc<Metrics>,
}

impl Http2 {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        Self {
            limits: *limits,
            metrics,
        }
    }

    /// Serves a connection to its end. `begun`: its first bytes. `spoken`: HTTP/2 is allowed on it.
    pub(super) async fn serve(
        &self,
        (stream, begun): (ClientIo, BytesMut),
        proxy: Arc<Proxy>,
        peer: Arc<Client>,
        presence: &Presence,
        spoken: bool,
    ) {
        let stream = BegunTransport {
            stream,
            begun,
            state: Arc::clone(&presence.state),
        };
        let streams = StreamExecutor {
            limit: self.limits.write_timeout,
            metrics: Arc::clone(&self.metrics),
        };
        let state = Arc::clone(&presence.state);
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), Arc::clone(&peer));
            let mut stream = ActiveStream::begin(&state);
            async move {
                let response = if spoken {
                    proxy.handle(request.map(Received::Http2), &peer).await
                } else {
                    proxy.refuse(RequestError::Version, &peer)
                };
                stream.answered();
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, stream)))
            }
        });
        let builder = builder(&self.limits, streams);
        let serving = builder.serve_connection(TokioIo::new(stream), service);
        let mut serving = pin!(serving);
        let mut end = Http2ConnectionEnd::None;
        let mut clock = DeadlineTimer::default();
        std::future::poll_fn(|cx| {
            loop {
                // Reads first, so that a request that has begun is served.
                if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                    if let Err(error) = served {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    return Poll::Ready(());
                }
                match ready!(self.poll_end(&mut end, &mut clock, presence, cx)) {
                    Http2Due::Goodbye => serving.as_mut().graceful_shutdown(),
                    Http2Due::Again => {}
                    Http2Due::Now => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    /// True if the connection has to close.
    fn poll_end(
        &self,
        end: &mut Http2ConnectionEnd,
        clock: &mut DeadlineTimer,
        presence: &Presence,
        cx: &mut Context<'_>,
    ) -> Poll<Http2Due> {
        let state = &presence.state;
        if state.cancels_too_much() {
            // At once: a graceful GOAWAY would wait for an answer that such a client does not send.
            self.metrics.limit(Limit::StreamResets);
            return Poll::Ready(Http2Due::Now);
        }
        match end {
            Http2ConnectionEnd::Leaving => return Poll::Pending,
            Http2ConnectionEnd::Goodbye(timeout, until) => {
                ready!(clock.poll(cx, *until));
                if state.without_request_since().is_some() {
                    return Poll::Ready(Http2Due::Now);
                }
                *until = Instant::now() + *timeout;
                return Poll::Ready(Http2Due::Again);
            }
            Http2ConnectionEnd::None => {}
        }
        // GOAWAY precedes the end, so it can go out while clients are still served.
        if state.is(Signal::Leave) || state.is(Signal::Announced) {
            *end = Http2ConnectionEnd::Leaving;
            return Poll::Ready(Http2Due::Goodbye);
        }
        let timeout = if state.is(Signal::MakeRoom) {
            self.metrics.limit(Limit::IdleClosed);
            tracing::debug!("an idle connection is closed to make room for a new one");
            GOODBYE
        } else {
            let Some(since) = state.without_request_since() else {
                return Poll::Pending;
            };
            ready!(clock.poll(cx, since + self.limits.idle_timeout));
            self.metrics.limit(Limit::IdleTimeout);
            self.limits.head_timeout
        };
        *end = Http2ConnectionEnd::Goodbye(timeout, Instant::now() + timeout);
        Poll::Ready(Http2Due::Goodbye)
    }
}

/// The state of a connection's end.
enum Http2ConnectionEnd {
    None,
    /// GOAWAY has been sent, and the open streams may end.
    Leaving,
    /// GOAWAY has been sent without an open stream. HTTP/2 ends in two steps, and waits for the
    /// client in between: for this long, and for the end of streams that came meanwhile.
    Goodbye(Duration, Instant),
}

enum Http2Due {
    /// GOAWAY must be sent.
    Goodbye,
    Again,
    Now,
}

/// A client's connection whose first bytes have been read.
struct BegunTransport {
    stream: ClientIo,
    begun: BytesMut,
    state: Arc<ConnectionState>,
}

impl BegunTransport {
    /// Notes whether a write waits for the client.
    fn written<T>(&self, written: Poll<T>) -> Poll<T> {
        self.state.set_under_way(written.is_pending());
        written
    }
}

impl AsyncRead for BegunTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.begun.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let now = this.begun.len().min(buf.remaining());
        buf.put_slice(&this.begun.split_to(now));
        if this.begun.is_empty() {
            this.begun = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BegunTransport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
