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

use super::activity::{ActiveStream, ConnectionActivity, Signal};
use super::clock::Clock;
use super::idle::Presence;
use super::streams::{Streams, StreamsTold};
use super::tls::TlsIo;
use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};
use crate::proxy::frames::FrameFilter;
use crate::proxy::slow::SlowClients;
use crate::proxy::{Network, Peer, Proxy, Received};
use crate::wire::request::RequestError;

/// How long a client has to close a connection that makes room.
const GOODBYE: Duration = Duration::from_secs(1);
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
fn header_list(limits: &LimitSettings) -> usize {
    let lines = limits.header_count.saturating_add(PSEUDO);
    limits
        .header_bytes
        .saturating_add(lines.saturating_mul(LINE))
}

/// How many streams a client may have open at once. A client that is told so waits, or opens another
/// connection; without that its requests beyond the connection's share would be refused.
fn most_streams(limits: &LimitSettings) -> u32 {
    let share = u32::try_from(limits.in_flight_per_connection).unwrap_or(u32::MAX);
    limits.http2_streams.min(share)
}

/// What a client may ask for.
fn builder(limits: &LimitSettings, streams: Streams) -> Builder<Streams> {
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
    slow: Arc<SlowClients>,
    metrics: Arc<Metrics>,
}

impl Http2 {
    pub(super) fn new(
        limits: &LimitSettings,
        slow: Arc<SlowClients>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            limits: *limits,
            slow,
            metrics,
        }
    }

    /// Serves a connection to its end. `begun`: its first bytes. `spoken`: the client may speak
    /// HTTP/2 here.
    pub(super) async fn serve<S: TlsIo + 'static>(
        &self,
        (stream, begun): (S, BytesMut),
        proxy: Arc<Proxy>,
        peer: Arc<Peer>,
        presence: &Presence,
        spoken: bool,
    ) {
        let stream = FramedTransport {
            stream,
            frames: FrameFilter::of_client(begun, header_list(&self.limits)),
            activity: Arc::clone(&presence.activity),
        };
        let streams = Streams {
            limit: self.limits.write_timeout,
            slow: Arc::clone(&self.slow),
            network: peer.ip.map(Network::of),
            metrics: Arc::clone(&self.metrics),
        };
        let activity = Arc::clone(&presence.activity);
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), Arc::clone(&peer));
            let mut stream = ActiveStream::begin(&activity);
            async move {
                let response = if spoken {
                    proxy.handle(request.map(Received::Http2), &peer).await
                } else {
                    proxy.refuse(RequestError::Version, &peer)
                };
                stream.answered();
                Ok::<_, Infallible>(response.map(|body| StreamsTold::new(body, stream)))
            }
        });
        let builder = builder(&self.limits, streams);
        let serving = builder.serve_connection(TokioIo::new(stream), service);
        let mut serving = pin!(serving);
        let mut end = Http2ConnectionEnd::None;
        let mut clock = Clock::default();
        std::future::poll_fn(|cx| {
            loop {
                // What has come is read first: a request that has begun is served.
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

    /// Whether the connection has to go.
    fn poll_end(
        &self,
        end: &mut Http2ConnectionEnd,
        clock: &mut Clock,
        presence: &Presence,
        cx: &mut Context<'_>,
    ) -> Poll<Http2Due> {
        let activity = &presence.activity;
        if activity.takes_back() {
            // At once: a GOAWAY with patience would wait for what such a client does not send.
            self.metrics.limit(Limit::StreamResets);
            return Poll::Ready(Http2Due::Now);
        }
        match end {
            Http2ConnectionEnd::Leaving => return Poll::Pending,
            Http2ConnectionEnd::Goodbye(patience, until) => {
                ready!(clock.poll(cx, *until));
                if activity.without_request_since().is_some() {
                    return Poll::Ready(Http2Due::Now);
                }
                *until = Instant::now() + *patience;
                return Poll::Ready(Http2Due::Again);
            }
            Http2ConnectionEnd::None => {}
        }
        // GOAWAY comes first and the end later, so it can go out while clients are still served.
        if activity.is(Signal::Leave) || activity.is(Signal::Announced) {
            *end = Http2ConnectionEnd::Leaving;
            return Poll::Ready(Http2Due::Goodbye);
        }
        let patience = if activity.is(Signal::MakeRoom) {
            if activity.is_busy() {
                presence.stays();
                return Poll::Ready(Http2Due::Again);
            }
            self.metrics.limit(Limit::IdleClosed);
            tracing::debug!("an idle connection is closed to make room for a new one");
            GOODBYE
        } else {
            let Some(since) = activity.without_request_since() else {
                return Poll::Pending;
            };
            ready!(clock.poll(cx, since + self.limits.idle_timeout));
            self.metrics.limit(Limit::IdleTimeout);
            self.limits.head_timeout
        };
        *end = Http2ConnectionEnd::Goodbye(patience, Instant::now() + patience);
        Poll::Ready(Http2Due::Goodbye)
    }
}

/// How far the end of a connection has come.
enum Http2ConnectionEnd {
    None,
    /// It has been told to end, and what is in hand is waited for.
    Leaving,
    /// Nothing was in hand. HTTP/2 ends in two steps, and waits for the client in between: for so
    /// long, and for the end of requests that came meanwhile.
    Goodbye(Duration, Instant),
}

enum Http2Due {
    /// The client is to be told.
    Goodbye,
    Again,
    Now,
}

/// A client's connection, of which malformed trailers do not pass.
struct FramedTransport<S> {
    stream: S,
    frames: FrameFilter,
    activity: Arc<ConnectionActivity>,
}

impl<S: TlsIo> FramedTransport<S> {
    /// What a write has come to.
    fn written<T>(&self, written: Poll<T>) -> Poll<T> {
        self.activity.set_under_way(written.is_pending());
        written
    }
}

impl<S: TlsIo> AsyncRead for FramedTransport<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.frames.poll_read(&mut this.stream, cx, buf)
    }
}

impl<S: TlsIo> AsyncWrite for FramedTransport<S> {
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
