//! HTTP/2 on the data port: the limits of one connection.
//!
//! One connection can ask for a great deal at once, so every number here bounds the memory or the
//! work that one client can cause:
//!
//! - *Streams* (`limits.http2_streams`, `limits.in_flight_per_connection`): requests at once. A
//!   client may open streams only to reset them (CVE-2023-44487, "rapid reset"). At most
//!   [`UNACCEPTED_RESETS`] of them may be reset before a handler sees them; later ones hold
//!   permits. At most [`BROKEN_STREAMS`] streams of a connection may be reset for breaking the
//!   rules (CVE-2025-8671, "made you reset").
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
//!
//! *A client that takes nothing of one stream* does not show at the socket, since it takes the other
//! streams. hyper waits for the stream's window without polling the response's body, so the body
//! cannot end the stream. Both run in the stream's own task, which sees that a piece was handed out
//! and the next one not asked for. After `limits.write_timeout` the task is dropped, and h2 resets
//! the stream. The last piece is not watched: its stream stays until the connection ends.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, sleep};

use super::connection_state::{ActiveStream, ClientIo, ConnectionState, Signal, Site};
use crate::body::{BoxError, Received};
use crate::deadline_timer::DeadlineTimer;
use crate::metrics::{Limit, Metrics};
use crate::proxy::{ClientBody, http2};
use crate::socket::rewound;

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

/// Serves a connection to its end. `begun`: its first bytes.
pub(super) async fn serve(stream: ClientIo, begun: BytesMut, site: &Site<'_>) {
    let stream = rewound(stream, begun);
    let Site { proxy, peer, state } = site;
    let service = service_fn(|request: Request<Incoming>| {
        let (proxy, peer) = (Arc::clone(proxy), Arc::clone(peer));
        let stream = ActiveStream::begin(state);
        let read = http2::read(&request, &proxy.limits);
        async move {
            let response = match read {
                Ok(head) => {
                    let body = Received::Http2(request.into_body());
                    proxy.handle(head, body, &peer).await
                }
                Err(error) => proxy.refuse(error, &peer),
            };
            let response = response.map(|body| WatchedBody {
                body,
                _request: stream,
            });
            Ok::<http::Response<_>, Infallible>(response.into())
        }
    });
    let limits = &proxy.limits;
    // A client that knows the number waits, or opens another connection. Otherwise its requests
    // beyond the connection's share would be refused.
    let share = limits.in_flight_per_connection();
    let streams = share.min(limits.http2_streams.get());
    let header_list = limits.header_bytes.bytes() + (limits.header_count.get() + PSEUDO) * LINE;
    let mut builder = Builder::new(StreamExecutor {
        limit: limits.write_timeout.0,
        metrics: Arc::clone(&proxy.metrics),
    });
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(u32::try_from(streams).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(header_list).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(UNACCEPTED_RESETS)
        .max_local_error_reset_streams(BROKEN_STREAMS)
        // Three times within the time after which a connection without requests is closed anyway.
        .keep_alive_interval(limits.idle_timeout.0 / 3)
        .keep_alive_timeout(limits.head_timeout.0);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        biased;
        // Reads first, so that a request that has begun is served.
        served = &mut serving => served,
        () = due(site) => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                served = &mut serving => served,
                () = without_request(state, proxy.limits.head_timeout.0) => return,
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Resolves when GOAWAY must be sent. The client may then keep the connection open without a request
/// for `limits.head_timeout`: HTTP/2 ends in two steps, and waits for the client in between.
async fn due(site: &Site<'_>) {
    let Site { state, proxy, .. } = site;
    let (mut timer, mut idle_since) = (DeadlineTimer::default(), None);
    poll_fn(|cx| {
        // GOAWAY precedes the end, so it can go out while clients are still served.
        if state.is(Signal::Announced) {
            return Poll::Ready(());
        }
        if !state.is_idle() {
            idle_since = None;
            return Poll::Pending;
        }
        let since = *idle_since.get_or_insert_with(Instant::now);
        ready!(timer.poll(cx, since + proxy.limits.idle_timeout.0));
        proxy.metrics.limit(Limit::IdleTimeout);
        Poll::Ready(())
    })
    .await;
}

/// Resolves when the connection has no request after `patience`, or a multiple of it.
async fn without_request(state: &ConnectionState, patience: Duration) {
    loop {
        sleep(patience).await;
        if state.is_idle() {
            return;
        }
    }
}

tokio::task_local! {
    /// Since when a piece of the current task's stream waits for the client.
    static WAITS_SINCE: Cell<Option<Instant>>;
}

/// Runs each stream in a task of its own, which ends if the client takes nothing.
#[derive(Clone)]
struct StreamExecutor {
    limit: Duration,
    metrics: Arc<Metrics>,
}

impl<F: Future + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let Self { limit, metrics } = self.clone();
        tokio::spawn(WAITS_SINCE.scope(Cell::new(None), async move {
            if stalls(stream, limit).await {
                metrics.limit(Limit::WriteTimeout);
                tracing::debug!("a client took nothing of its answer: its stream is reset");
            }
        }));
    }
}

/// Runs a stream to its end. `true`: its client has taken nothing for too long.
async fn stalls(stream: impl Future, limit: Duration) -> bool {
    let mut stream = pin!(stream);
    let mut timer = DeadlineTimer::default();
    poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        match WAITS_SINCE.with(Cell::get) {
            Some(since) => timer.poll(cx, since + limit).map(|()| true),
            None => Poll::Pending,
        }
    })
    .await
}

/// A response's body that notes when a piece waits for the client. Polled by the stream's own task.
struct WatchedBody {
    body: ClientBody,
    /// The request is in progress until this is dropped.
    _request: ActiveStream,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        WAITS_SINCE.with(|since| since.set(None));
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        WAITS_SINCE.with(|since| since.set(Some(Instant::now())));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn waits(since: Option<Instant>) {
        WAITS_SINCE.with(|cell| cell.set(since));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_once_a_piece_has_waited_for_its_client() {
        let began = Instant::now();
        let stream = std::future::pending::<()>();
        let stalled = WAITS_SINCE.scope(Cell::new(Some(began)), stalls(stream, LIMIT));
        assert!(stalled.await);
        assert_eq!(began.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_upstream_is_not_the_clients_doing() {
        let stream = async {
            for _ in 0..3 {
                waits(None);
                sleep(LIMIT * 5).await;
                waits(Some(Instant::now()));
                sleep(LIMIT * 9 / 10).await;
            }
        };
        let stalled = WAITS_SINCE.scope(Cell::new(None), stalls(stream, LIMIT));
        assert!(!stalled.await);
    }
}
