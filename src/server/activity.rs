//! The requests of one connection, and when the connection has to go: at the stop of the process,
//! to make room for another ([`super::idle`]), and if its client opens requests only to cancel
//! them.
//!
//! All of it is atomics and one waker: a request changes one or two words that no other connection
//! touches, and wakes nobody.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Requests that a client may take back at once, however few it lets be answered.
const TAKEN_BACK: u64 = 256;
/// Taken back before this is at once; later it is a client that has waited for long enough.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What stands for the time of a head where there is none.
const NO_HEAD: u64 = u64::MAX;

/// The steps in which the process leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leave {
    /// It will stop: clients are told, and are still served.
    pub announced: CancellationToken,
    /// No new connection, and no new request on those there are.
    pub now: CancellationToken,
    /// Nothing more: what connections still have in hand is cut.
    pub cut: CancellationToken,
}

/// What a connection is told, as it is kept in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// As [`Leave::announced`].
    Announced = 1,
    /// As [`Leave::now`].
    Leave = 2,
    /// As [`Leave::cut`].
    Cut = 4,
    /// Make room for another connection.
    MakeRoom = 8,
}

/// What a connection has in hand.
pub(super) struct ConnectionActivity {
    born: Instant,
    /// Requests that have not been answered.
    open: AtomicUsize,
    /// A part of a request has come, or a part of an answer has not gone.
    under_way: AtomicBool,
    /// Since when that is nothing but a part of a head, in nanoseconds after `born`; [`NO_HEAD`]: it is
    /// not.
    head: AtomicU64,
    /// When the last request ended, in nanoseconds after `born`.
    since: AtomicU64,
    signals: AtomicU8,
    begun: AtomicU64,
    /// Taken back by the client at once.
    taken_back: AtomicU64,
    /// The connection's task.
    task: AtomicWaker,
}

impl ConnectionActivity {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            open: AtomicUsize::new(0),
            under_way: AtomicBool::new(false),
            head: AtomicU64::new(NO_HEAD),
            since: AtomicU64::new(0),
            signals: AtomicU8::new(0),
            begun: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            task: AtomicWaker::new(),
        }
    }

    /// Says something to the connection, whose task looks then.
    pub(super) fn signal(&self, signal: Signal) {
        self.signals.fetch_or(signal as u8, Ordering::AcqRel);
        self.task.wake();
    }

    /// The connection has been told.
    pub(super) fn is(&self, signal: Signal) -> bool {
        self.signals.load(Ordering::Acquire) & signal as u8 != 0
    }

    /// It does not make room: a request has begun meanwhile.
    pub(super) fn stays(&self) {
        let told = Signal::MakeRoom as u8;
        self.signals.fetch_and(!told, Ordering::AcqRel);
    }

    /// Notes the connection's task: before it looks at anything here.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// A part of a request has come, or a part of an answer has not gone; or neither any more.
    pub(super) fn set_under_way(&self, under_way: bool) {
        self.head.store(NO_HEAD, Ordering::Release);
        self.under_way.store(under_way, Ordering::Release);
    }

    /// A part of a head has come, and nothing else is under way. It began at that time.
    pub(super) fn set_in_head(&self, began: Instant) {
        self.head.store(self.nanos(began), Ordering::Release);
        self.under_way.store(true, Ordering::Release);
    }

    /// Since when nothing but a part of a head is in hand; `None`: something else is, or nothing.
    pub(super) fn head_since(&self) -> Option<Instant> {
        let head = self.head.load(Ordering::Acquire);
        let in_head = head != NO_HEAD && !self.is_open();
        in_head.then(|| self.born + Duration::from_nanos(head))
    }

    /// A request is over.
    pub(super) fn note_end(&self, now: Instant) {
        self.since.store(self.nanos(now), Ordering::Relaxed);
    }

    fn nanos(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.born).as_nanos();
        u64::try_from(since).unwrap_or(NO_HEAD - 1).min(NO_HEAD - 1)
    }

    /// Whether a request is in hand, or a part of one.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) || self.is_open()
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Since when nothing is in hand, or nothing but a part of a head; `None`: something else is, or the
    /// connection is to go anyway.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        if self.is(Signal::MakeRoom) {
            return None;
        }
        let head = self.head_since();
        head.or_else(|| (!self.is_busy()).then(|| self.latest()))
    }

    /// Resolves when the connection is to make room. Its own task has to ask.
    pub(super) async fn told(&self) {
        std::future::poll_fn(|cx| {
            self.register(cx);
            if self.is(Signal::MakeRoom) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// When the last request ended, or the connection began.
    pub(super) fn latest(&self) -> Instant {
        self.born + Duration::from_nanos(self.since.load(Ordering::Relaxed))
    }

    /// The client has taken back more requests than it may.
    pub(super) fn takes_back(&self) -> bool {
        let taken_back = self.taken_back.load(Ordering::Relaxed);
        taken_back > TAKEN_BACK && taken_back * 2 > self.begun.load(Ordering::Relaxed)
    }

    /// Since when an HTTP/2 connection has had no request; `None`: it has one.
    pub(super) fn without_request_since(&self) -> Option<Instant> {
        (!self.is_open()).then(|| self.latest())
    }
}

/// A request of an HTTP/2 connection. It is in hand until its answer has been handed over, or dropped.
#[must_use]
pub(super) struct ActiveStream {
    activity: Arc<ConnectionActivity>,
    began: Instant,
    answered: bool,
}

impl ActiveStream {
    /// A request has arrived.
    pub(super) fn begin(activity: &Arc<ConnectionActivity>) -> Self {
        activity.open.fetch_add(1, Ordering::AcqRel);
        activity.begun.fetch_add(1, Ordering::Relaxed);
        Self {
            activity: Arc::clone(activity),
            began: Instant::now(),
            answered: false,
        }
    }

    /// There is an answer.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        let now = Instant::now();
        let activity = &self.activity;
        activity.note_end(now);
        if !self.answered && now - self.began < AT_ONCE {
            activity.taken_back.fetch_add(1, Ordering::Relaxed);
        }
        if activity.open.fetch_sub(1, Ordering::AcqRel) == 1 || activity.takes_back() {
            activity.task.wake();
        }
    }
}

/// Runs a connection until it ends, or is cut.
pub(super) async fn until_cut(activity: &ConnectionActivity, connection: impl Future<Output = ()>) {
    let mut connection = pin!(connection);
    std::future::poll_fn(|cx| {
        activity.register(cx);
        if activity.is(Signal::Cut) {
            return Poll::Ready(());
        }
        connection.as_mut().poll(cx)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_request_is_not_idle() {
        let activity = Arc::new(ConnectionActivity::new());
        let began = Instant::now();
        assert_eq!(activity.idle_since(), Some(began));
        let mut stream = ActiveStream::begin(&activity);
        assert_eq!(activity.idle_since(), None);
        stream.answered();
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(stream);
        assert_eq!(activity.idle_since(), Some(Instant::now()));
        activity.set_under_way(true);
        assert_eq!(activity.idle_since(), None);
        tokio::time::sleep(Duration::from_secs(3)).await;
        activity.note_end(Instant::now());
        activity.set_under_way(false);
        assert_eq!(activity.idle_since(), Some(Instant::now()));
        activity.signal(Signal::MakeRoom);
        assert_eq!(activity.idle_since(), None);
        activity.stays();
        assert_eq!(activity.idle_since(), Some(Instant::now()));
        let began = Instant::now();
        activity.set_in_head(began);
        assert!(activity.is_busy());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(activity.idle_since(), Some(began));
        activity.set_under_way(true);
        assert_eq!((activity.head_since(), activity.idle_since()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_only_takes_back_is_known_and_one_that_does_it_now_and_then_is_not() {
        let activity = Arc::new(ConnectionActivity::new());
        let answer = || ActiveStream::begin(&activity).answered();
        for _ in 0..TAKEN_BACK * 2 {
            drop(ActiveStream::begin(&activity));
            answer();
        }
        assert!(!activity.takes_back());
        let slow = ActiveStream::begin(&activity);
        tokio::time::sleep(AT_ONCE).await;
        drop(slow);
        answer();
        assert!(!activity.takes_back(), "it had waited");
        drop(ActiveStream::begin(&activity));
        drop(ActiveStream::begin(&activity));
        drop(ActiveStream::begin(&activity));
        assert!(activity.takes_back());
    }
}
