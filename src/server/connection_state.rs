//! The state of one connection: its requests, and the [signals](Signal) that it has got. It also
//! shows whether the client opens requests only to cancel them.
//!
//! Everything is an atomic, and there is one waker. A request changes one or two words that no
//! other connection touches, and wakes no task.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::signals::Signal;

/// Requests that a client may cancel at once, however few it waits for.
const MAX_CANCELLED: u64 = 256;
/// A request that is cancelled later than this does not count: its client has waited long enough.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The requests and signals of a connection.
pub(super) struct ConnectionState {
    born: Instant,
    /// Requests that have not been answered.
    open: AtomicUsize,
    /// A part of a request has come, or a part of an answer has not gone.
    under_way: AtomicBool,
    /// The end of the last request, in nanoseconds after `born`.
    since: AtomicU64,
    signals: AtomicU8,
    begun: AtomicU64,
    /// Requests that the client has cancelled at once.
    cancelled: AtomicU64,
    /// The connection's task.
    task: AtomicWaker,
}

impl ConnectionState {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            open: AtomicUsize::new(0),
            under_way: AtomicBool::new(false),
            since: AtomicU64::new(0),
            signals: AtomicU8::new(0),
            begun: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            task: AtomicWaker::new(),
        }
    }

    /// Sends a signal to the connection, and wakes its task.
    pub(super) fn signal(&self, signal: Signal) {
        self.signals.fetch_or(signal as u8, Ordering::AcqRel);
        self.task.wake();
    }

    /// True if the connection has got this signal.
    pub(super) fn is(&self, signal: Signal) -> bool {
        self.signals.load(Ordering::Acquire) & signal as u8 != 0
    }

    /// Registers the connection's task, before the task reads anything here.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// Sets whether a part of a request has come, or a part of an answer has not gone.
    pub(super) fn set_under_way(&self, under_way: bool) {
        self.under_way.store(under_way, Ordering::Release);
    }

    /// A request is over.
    pub(super) fn note_end(&self, now: Instant) {
        let since = now.saturating_duration_since(self.born).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.since.store(since, Ordering::Relaxed);
    }

    /// True if a request is in progress, or a part of one.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) || self.is_open()
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Since when no request is in progress. `None`: one is, or the connection closes anyway.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let idle = !self.is(Signal::MakeRoom) && !self.is_busy();
        idle.then(|| self.latest())
    }

    /// Resolves at [`Signal::MakeRoom`]. Only the connection's own task may await it.
    pub(super) async fn asked_to_make_room(&self) {
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

    /// The end of the last request, or the beginning of the connection.
    pub(super) fn latest(&self) -> Instant {
        self.born + Duration::from_nanos(self.since.load(Ordering::Relaxed))
    }

    /// True if the client has cancelled more requests than it may.
    pub(super) fn cancels_too_much(&self) -> bool {
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        cancelled > MAX_CANCELLED && cancelled * 2 > self.begun.load(Ordering::Relaxed)
    }

    /// Since when an HTTP/2 connection has had no request. `None`: it has one.
    pub(super) fn without_request_since(&self) -> Option<Instant> {
        (!self.is_open()).then(|| self.latest())
    }
}

/// A request of an HTTP/2 connection, until its answer has been handed over or dropped.
#[must_use]
pub(super) struct ActiveStream {
    state: Arc<ConnectionState>,
    began: Instant,
    answered: bool,
}

impl ActiveStream {
    /// A request has arrived.
    pub(super) fn begin(state: &Arc<ConnectionState>) -> Self {
        state.open.fetch_add(1, Ordering::AcqRel);
        state.begun.fetch_add(1, Ordering::Relaxed);
        Self {
            state: Arc::clone(state),
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
        let state = &self.state;
        state.note_end(now);
        if !self.answered && now - self.began < AT_ONCE {
            state.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        if state.open.fetch_sub(1, Ordering::AcqRel) == 1 || state.cancels_too_much() {
            state.task.wake();
        }
    }
}

/// Runs a connection until it ends, or until [`Signal::Cut`].
pub(super) async fn until_cut(state: &ConnectionState, connection: impl Future<Output = ()>) {
    let mut connection = pin!(connection);
    std::future::poll_fn(|cx| {
        state.register(cx);
        if state.is(Signal::Cut) {
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
        let state = Arc::new(ConnectionState::new());
        let began = Instant::now();
        assert_eq!(state.idle_since(), Some(began));
        let mut stream = ActiveStream::begin(&state);
        assert_eq!(state.idle_since(), None);
        stream.answered();
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(stream);
        assert_eq!(state.idle_since(), Some(Instant::now()));
        state.set_under_way(true);
        assert_eq!(state.idle_since(), None);
        tokio::time::sleep(Duration::from_secs(3)).await;
        state.note_end(Instant::now());
        state.set_under_way(false);
        assert_eq!(state.idle_since(), Some(Instant::now()));
        state.signal(Signal::MakeRoom);
        assert_eq!(state.idle_since(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_only_takes_back_is_known_and_one_that_does_it_now_and_then_is_not() {
        let state = Arc::new(ConnectionState::new());
        let answer = || ActiveStream::begin(&state).answered();
        for _ in 0..MAX_CANCELLED * 2 {
            drop(ActiveStream::begin(&state));
            answer();
        }
        assert!(!state.cancels_too_much());
        let slow = ActiveStream::begin(&state);
        tokio::time::sleep(AT_ONCE).await;
        drop(slow);
        answer();
        assert!(!state.cancels_too_much(), "it had waited");
        drop(ActiveStream::begin(&state));
        drop(ActiveStream::begin(&state));
        drop(ActiveStream::begin(&state));
        assert!(state.cancels_too_much());
    }
}
