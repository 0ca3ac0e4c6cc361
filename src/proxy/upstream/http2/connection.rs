//! One HTTP/2 connection to the upstream: how many streams it has in use and may have, and the task
//! that drives it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use prometheus::IntGauge;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::confirm::Confirmations;
use super::transport::{OpenedStreams, Transport};
use super::{MAX_STREAMS, Shared, chain};
use crate::proxy::upstream::connect::UpstreamIo;
use crate::proxy::upstream::socket::ResetSwitch;

/// How long the upstream may take to confirm that it has read what was sent. It has nothing else to
/// do for that than to answer a PING, which RFC 9113, 6.7, asks to put before all else.
const CONFIRM: Duration = Duration::from_secs(1);

/// How many PINGs a connection takes without a part of a response between them. The Go library of gRPC
/// takes the fourth for abuse (`too_many_pings`), and ends the connection with all that is on it.
const MAX_PINGS: usize = 2;

/// What is held of one response that its client does not read.
const STREAM_WINDOW: u32 = 192 << 10;
/// As much for each stream: clients that do not read hold nobody else's response up.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;
/// Of the head or the trailers of a response.
pub(super) const HEADER_LIST: u32 = 16 << 10;
/// What is held of one body that the upstream does not take, beside the piece in hand.
const SEND_BUFFER: usize = 64 << 10;

/// What the pool, the exchanges and the driver of one connection share.
pub(super) struct SharedConnection {
    switch: ResetSwitch,
    opened: OpenedStreams,
    /// Changed under the pool's lock, but for [`Self::release`].
    used: AtomicUsize,
    /// As the upstream's SETTINGS have it now.
    limit: AtomicUsize,
    /// When its last stream was released. Short sections, never across an await.
    idle_since: Mutex<Instant>,
    /// Those that want to know whether all has been read.
    asking: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// PINGs since the last part of a response.
    pings: AtomicUsize,
    /// How often something has been read.
    heard: AtomicU64,
    /// A request was given up that the upstream was silent about.
    suspected: Notify,
    /// It takes no more streams.
    retired: CancellationToken,
}

impl SharedConnection {
    /// Takes one more stream, if the limit allows it.
    pub(super) fn reserve(&self) -> bool {
        let used = self.used.load(Ordering::Acquire);
        let free = used < self.limit() && !self.retired.is_cancelled();
        if free {
            self.used.fetch_add(1, Ordering::AcqRel);
        }
        free
    }

    pub(super) fn release(&self) {
        let mut idle_since = self
            .idle_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *idle_since = Instant::now();
        self.used.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn in_use(&self) -> bool {
        self.used.load(Ordering::Acquire) > 0
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Acquire)
    }

    pub(super) fn retire(&self) {
        self.retired.cancel();
    }

    /// Whether the upstream has read all that was sent of a stream that has been reset, see
    /// [`Confirmations`].
    pub(super) async fn confirms(&self, stream: u32) -> bool {
        if !self.opened.surely(stream) {
            // It waits inside the library, and the PING would overtake it.
            return false;
        }
        self.answers().await
    }

    /// Whether the upstream answers a PING.
    async fn answers(&self) -> bool {
        let (tx, rx) = oneshot::channel();
        if self.asking.send(tx).is_err() {
            return false;
        }
        let answered = tokio::time::timeout(CONFIRM, rx).await;
        answered.is_ok_and(|answered| answered.is_ok())
    }

    /// A part of a response has come.
    pub(super) fn answered(&self) {
        self.pings.store(0, Ordering::Release);
    }

    pub(super) fn pinged(&self) {
        self.pings.fetch_add(1, Ordering::AcqRel);
    }

    /// Something has been read.
    pub(super) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes whenever the upstream says something.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    /// Has the connection retired, unless its upstream answers.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Resolves when a request was given up, and its upstream answers nothing.
    async fn silent(&self) {
        loop {
            self.suspected.notified().await;
            if !self.answers().await {
                return;
            }
        }
    }

    /// Resets the connection. `false`: it has been before.
    pub(super) fn reset(&self) -> bool {
        self.switch.throw()
    }

    /// What has been written to the connection.
    pub(super) fn opened(&self) -> &OpenedStreams {
        &self.opened
    }
}

/// The connection's task.
pub(super) struct Driver {
    connection: Arc<SharedConnection>,
    h2: h2::client::Connection<Transport, Bytes>,
    /// Tells when it takes no more streams, and keeps it open meanwhile.
    probe: Option<SendRequest<Bytes>>,
    confirmations: Confirmations,
}

/// Opens a connection, up to the upstream's first SETTINGS.
///
/// # Errors
///
/// With the causes, in one line.
pub(super) async fn open(shared: &Shared) -> Result<(Driver, SendRequest<Bytes>), String> {
    let settings = &shared.settings;
    let stream = settings.connecting.open().await;
    let stream = stream.map_err(|error| chain(&*error))?;
    let handshake = tokio::time::timeout(settings.connect_timeout, handshake(stream));
    handshake.await.unwrap_or_else(|_| {
        Err(format!(
            "it has not said within {:?} that it takes HTTP/2 requests (SETTINGS)",
            settings.connect_timeout
        ))
    })
}

async fn handshake(stream: UpstreamIo) -> Result<(Driver, SendRequest<Bytes>), String> {
    let switch = stream.switch().clone();
    let (tx, asking) = mpsc::unbounded_channel();
    let connection = Arc::new(SharedConnection {
        switch,
        opened: OpenedStreams::default(),
        used: AtomicUsize::new(0),
        limit: AtomicUsize::new(0),
        idle_since: Mutex::new(Instant::now()),
        asking: tx,
        pings: AtomicUsize::new(0),
        heard: AtomicU64::new(0),
        suspected: Notify::new(),
        retired: CancellationToken::new(),
    });
    let transport = Transport::new(stream, Arc::clone(&connection));
    let built = h2::client::Builder::new()
        // None before its SETTINGS have come: they may allow fewer than are assumed otherwise.
        .initial_max_send_streams(0)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(16 << 10)
        .max_header_list_size(HEADER_LIST)
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
        confirmations: Confirmations::new(ping_pong, asking),
    };
    poll_fn(|cx| match driver.poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err("it has closed the connection".to_owned())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(chain(&error))),
        Poll::Pending if driver.connection.limit() > 0 => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    // One that has said goodbye already is none.
    match poll_fn(|cx| Poll::Ready(sender.poll_ready(cx))).await {
        Poll::Ready(Err(error)) => Err(chain(&error)),
        Poll::Ready(Ok(())) | Poll::Pending => Ok((driver, sender)),
    }
}

impl Driver {
    pub(super) fn connection(&self) -> &Arc<SharedConnection> {
        &self.connection
    }

    /// Advances the connection, and notes the limit that its upstream has set.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let polled = Pin::new(&mut self.h2).poll(cx);
        let limit = self.h2.max_concurrent_send_streams();
        let limit = limit.min(MAX_STREAMS as usize);
        self.connection.limit.store(limit, Ordering::Release);
        polled
    }

    /// Drives the connection to its end.
    pub(super) async fn run(mut self, pool: &Arc<Shared>) {
        let _counted = Counted::new(pool.settings.metrics.upstream_http2_connections());
        let connection = Arc::clone(&self.connection);
        // A panic in the library must not leave a connection among those that take streams.
        let _retires = Retires(pool, &connection);
        let mut silent = std::pin::pin!(connection.silent());
        let mut limit = connection.limit();
        loop {
            let open = self.probe.is_some();
            tokio::select! {
                ended = poll_fn(|cx| self.poll_changes(cx, &mut limit)) => match ended {
                    Change::Limit => pool.serve(),
                    Change::NoMoreStreams => pool.retire(&connection),
                    Change::Ended(ended) => {
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
            }
        }
    }

    fn poll_changes(&mut self, cx: &mut Context<'_>, limit: &mut usize) -> Poll<Change> {
        loop {
            // First: what they have queued is written then.
            self.confirmations.collect(cx);
            if let Poll::Ready(ended) = self.poll(cx) {
                return Poll::Ready(Change::Ended(ended));
            }
            let written = !self.connection.opened.is_blocked();
            if !self.confirmations.proceed(cx, written) {
                break;
            }
            self.connection.pinged();
        }
        // An error after a GOAWAY, or when its numbers are used up.
        if let Some(probe) = &mut self.probe
            && (self.connection.pings.load(Ordering::Acquire) >= MAX_PINGS
                || matches!(probe.poll_ready(cx), Poll::Ready(Err(_))))
        {
            self.probe = None;
            return Poll::Ready(Change::NoMoreStreams);
        }
        let now = self.connection.limit();
        if std::mem::replace(limit, now) < now {
            return Poll::Ready(Change::Limit);
        }
        Poll::Pending
    }
}

/// Takes a connection out of the pool when it is not driven any more.
struct Retires<'a>(&'a Arc<Shared>, &'a Arc<SharedConnection>);

impl Drop for Retires<'_> {
    fn drop(&mut self) {
        self.0.retire(self.1);
    }
}

/// What the pool has to know of.
enum Change {
    /// More streams are allowed than before.
    Limit,
    NoMoreStreams,
    Ended(Result<(), h2::Error>),
}

/// Resolves when no stream has been in use for the pool's idle timeout.
async fn idle(connection: &SharedConnection, pool: &Shared) {
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
struct Counted(IntGauge);

impl Counted {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
