//! The task of one HTTP/2 connection to the upstream. It opens the connection, keeps its stream
//! limit up to date, and tells the pool when it takes no more streams.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use prometheus::IntGauge;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::connection::{MAX_STREAMS, SharedConnection, TRAILER_LIST};
use super::ping_confirmations::PingConfirmations;
use super::transport::Transport;
use crate::proxy::upstream::connect::{Connecting, MAX_AGE, UpstreamIo, socket_of};
use crate::proxy::upstream::errors::chain;

/// How many PINGs may be sent without a part of a response between them. The Go library of gRPC
/// treats the fourth as abuse (`too_many_pings`), and ends the connection with all its streams.
const MAX_PINGS: usize = 2;

/// The most bytes held of one response that its client does not read.
const STREAM_WINDOW: u32 = 192 << 10;
/// As much for each stream, so that clients that do not read delay no other response.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;
/// The most bytes held of one body that the upstream does not take, besides the current piece.
const SEND_BUFFER: usize = 64 << 10;

/// The pool of a connection, as its driver sees it.
pub(super) trait ConnectionOwner {
    /// The upstream allows more streams than before.
    fn more_streams(&self);

    /// The connection takes no more streams. Its open streams may end.
    fn retire(&self, connection: &Arc<SharedConnection>);

    /// As [`Self::retire`], if the connection is idle.
    fn retire_idle(&self, connection: &Arc<SharedConnection>);

    /// How long a connection may be idle.
    fn idle_timeout(&self) -> Duration;
}

/// The connection's task.
pub(super) struct Driver {
    connection: Arc<SharedConnection>,
    h2: h2::client::Connection<Transport, Bytes>,
    /// Shows when the connection takes no more streams, and keeps it open until then.
    probe: Option<SendRequest<Bytes>>,
    confirmations: PingConfirmations,
}

/// Opens a connection, up to the upstream's first SETTINGS.
///
/// # Errors
///
/// With the causes, in one line.
pub(super) async fn open(
    connecting: &Connecting,
    connect_timeout: Duration,
) -> Result<(Driver, SendRequest<Bytes>), String> {
    let stream = connecting.open().await?;
    let handshake =
        tokio::time::timeout(connect_timeout, handshake(stream, connecting.header_bytes));
    handshake.await.unwrap_or_else(|_| {
        Err(format!(
            "it has not said within {connect_timeout:?} that it takes HTTP/2 requests (SETTINGS)"
        ))
    })
}

async fn handshake(
    stream: UpstreamIo,
    header_bytes: usize,
) -> Result<(Driver, SendRequest<Bytes>), String> {
    let switch = socket_of(&stream).switch().clone();
    let header_list = header_bytes.max(4 * TRAILER_LIST);
    let (tx, asking) = mpsc::unbounded_channel();
    let connection = Arc::new(SharedConnection::new(switch, tx));
    let transport = Transport::new(stream, Arc::clone(&connection));
    let built = h2::client::Builder::new()
        // None before its SETTINGS have come: they may allow fewer than the default.
        .initial_max_send_streams(0)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(16 << 10)
        .max_header_list_size(u32::try_from(header_list).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .enable_push(false)
        .handshake(transport)
        .await;
    let (mut sender, mut h2) = built.map_err(|error| chain(&error))?;
    let Some(ping_pong) = h2.ping_pong() else {
        unreachable!("it is taken once")
    };
    let mut driver = Driver {
        connection,
        h2,
        probe: Some(sender.clone()),
        confirmations: PingConfirmations::new(ping_pong, asking),
    };
    poll_fn(|cx| match driver.poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err("it has closed the connection".to_owned())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(chain(&error))),
        Poll::Pending if driver.connection.limit() > 0 => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    // The upstream may have sent GOAWAY already.
    match poll_fn(|cx| Poll::Ready(sender.poll_ready(cx))).await {
        Poll::Ready(Err(error)) => Err(chain(&error)),
        Poll::Ready(Ok(())) | Poll::Pending => Ok((driver, sender)),
    }
}

impl Driver {
    pub(super) fn connection(&self) -> &Arc<SharedConnection> {
        &self.connection
    }

    /// Polls the connection, and records the limit that its upstream has set.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let polled = Pin::new(&mut self.h2).poll(cx);
        let limit = self.h2.max_concurrent_send_streams();
        let limit = limit.min(MAX_STREAMS as usize);
        self.connection.limit.store(limit, Ordering::Release);
        polled
    }

    /// Drives the connection to its end.
    pub(super) async fn run(mut self, pool: &impl ConnectionOwner, gauge: IntGauge) {
        let _counted = CountedConnection::new(gauge);
        let connection = Arc::clone(&self.connection);
        // A panic in the library must not leave a connection among those that take streams.
        let _retires = Retires(pool, &connection);
        let mut silent = std::pin::pin!(connection.silent());
        let mut old = std::pin::pin!(tokio::time::sleep(MAX_AGE));
        let mut limit = connection.limit();
        loop {
            let open = self.probe.is_some();
            tokio::select! {
                ended = poll_fn(|cx| self.poll_changes(cx, &mut limit)) => match ended {
                    ConnectionChange::Limit => pool.more_streams(),
                    ConnectionChange::NoMoreStreams => pool.retire(&connection),
                    ConnectionChange::Ended(ended) => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "an HTTP/2 connection to the upstream broke");
                        }
                        break;
                    }
                },
                () = connection.retired.cancelled(), if open => self.probe = None,
                () = idle(&connection, pool), if open => pool.retire_idle(&connection),
                () = &mut silent, if open => {
                    tracing::debug!("an HTTP/2 connection to the upstream answers nothing");
                    self.probe = None;
                    pool.retire(&connection);
                }
                () = &mut old, if open => {
                    self.probe = None;
                    pool.retire(&connection);
                }
            }
        }
    }

    fn poll_changes(&mut self, cx: &mut Context<'_>, limit: &mut usize) -> Poll<ConnectionChange> {
        loop {
            // First, so that the poll writes what they have queued.
            self.confirmations.collect(cx);
            if let Poll::Ready(ended) = self.poll(cx) {
                return Poll::Ready(ConnectionChange::Ended(ended));
            }
            let written = !self.connection.opened.is_blocked();
            if !self.confirmations.proceed(cx, written) {
                break;
            }
            self.connection.pinged();
        }
        // An error after a GOAWAY, or when the stream numbers are used up.
        if let Some(probe) = &mut self.probe
            && (self.connection.pings.load(Ordering::Acquire) >= MAX_PINGS
                || matches!(probe.poll_ready(cx), Poll::Ready(Err(_))))
        {
            self.probe = None;
            return Poll::Ready(ConnectionChange::NoMoreStreams);
        }
        let now = self.connection.limit();
        if std::mem::replace(limit, now) < now {
            return Poll::Ready(ConnectionChange::Limit);
        }
        Poll::Pending
    }
}

/// Takes a connection out of the pool when its driver ends.
struct Retires<'a, P: ConnectionOwner>(&'a P, &'a Arc<SharedConnection>);

impl<P: ConnectionOwner> Drop for Retires<'_, P> {
    fn drop(&mut self) {
        self.0.retire(self.1);
    }
}

/// A change that concerns the pool.
enum ConnectionChange {
    /// More streams are allowed than before.
    Limit,
    NoMoreStreams,
    Ended(Result<(), h2::Error>),
}

/// Resolves when no stream has been in use for the pool's idle timeout.
async fn idle(connection: &SharedConnection, pool: &impl ConnectionOwner) {
    loop {
        let timeout = pool.idle_timeout();
        let since = {
            let since = connection.idle_since.lock();
            *since.unwrap_or_else(PoisonError::into_inner)
        };
        let now = Instant::now();
        if connection.in_use() {
            tokio::time::sleep(timeout.max(Duration::from_secs(1))).await;
        } else if since + timeout > now {
            tokio::time::sleep_until(since + timeout).await;
        } else {
            return;
        }
    }
}

/// An open connection in the metrics.
struct CountedConnection(IntGauge);

impl CountedConnection {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
