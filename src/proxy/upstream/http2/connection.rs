//! The shared state of one HTTP/2 connection to the upstream: the streams in use, their limit, and
//! whether the upstream answers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::opened_streams::OpenedStreams;
use crate::proxy::upstream::socket::ResetSwitch;

/// The most streams of one connection, where the upstream allows more. A connection is one task,
/// and so one core's work, and a reset ends all its streams. RFC 9113, 6.5.2, asks servers to allow
/// no fewer.
pub(super) const MAX_STREAMS: u32 = 100;

/// The size from which trailers break the exchange. h2 does not report that they reach
/// its own limit, which is four times this one at least: it silently drops the field that does, and
/// all behind it, with them perhaps a second `grpc-status`. So only a single field as long as the
/// difference could be dropped unnoticed.
pub(super) const TRAILER_LIST: usize = 64 << 10;

/// How long the upstream may take to confirm that it has read everything. It only has to answer a
/// PING, to which RFC 9113, 6.7, gives priority.
const CONFIRM: Duration = Duration::from_secs(1);

/// The state that the pool, the exchanges and the driver of one connection share.
pub(super) struct SharedConnection {
    switch: ResetSwitch,
    pub(super) opened: OpenedStreams,
    /// Changed under the pool's lock, except in [`Self::release`].
    used: AtomicUsize,
    /// The stream limit in the upstream's current SETTINGS.
    pub(super) limit: AtomicUsize,
    /// When its last stream was released. Short sections, never across an await.
    pub(super) idle_since: Mutex<Instant>,
    /// Requests to confirm that everything has been read.
    asking: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// PINGs since the last part of a response.
    pub(super) pings: AtomicUsize,
    /// How often something has been read.
    heard: AtomicU64,
    /// A request was given up, and the upstream had been silent since it was sent.
    suspected: Notify,
    /// It takes no more streams.
    pub(super) retired: CancellationToken,
}

impl SharedConnection {
    /// A connection without streams. `asking` takes the requests for confirmations.
    pub(super) fn new(
        switch: ResetSwitch,
        asking: mpsc::UnboundedSender<oneshot::Sender<()>>,
    ) -> Self {
        Self {
            switch,
            opened: OpenedStreams::default(),
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            asking,
            pings: AtomicUsize::new(0),
            heard: AtomicU64::new(0),
            suspected: Notify::new(),
            retired: CancellationToken::new(),
        }
    }

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
    /// [`PingConfirmations`](super::ping_confirmations::PingConfirmations).
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

    /// A number that changes whenever something is read.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    /// Has the connection retired, unless its upstream answers a PING.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Resolves when a request was given up and the upstream answers no PING.
    pub(super) async fn silent(&self) {
        loop {
            self.suspected.notified().await;
            if !self.answers().await {
                return;
            }
        }
    }

    /// Resets the connection. `false`: it was reset before.
    pub(super) fn reset(&self) -> bool {
        self.switch.throw()
    }

    /// The streams that have been opened on the connection.
    pub(super) fn opened(&self) -> &OpenedStreams {
        &self.opened
    }
}
