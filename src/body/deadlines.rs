//! The limits of a request's body. Deadlines hold before admission and while it is streamed: for the
//! upload as a whole, and between two bytes.
//!
//! Only waiting for the client counts. While the upstream takes nothing, the body is not asked for
//! more, and no clock that the client could lose against runs.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http_body::Body as _;
use tokio::time::{Instant, Sleep};

use super::UploadError;
use super::memory::BodyMemory;
use super::received::Received;
use crate::config::BodySettings;
use crate::deadline_timer::SpareTimer;
use crate::metrics::Limit;

/// The rules for the body of one request.
#[derive(Clone)]
pub(crate) struct BodyRules {
    pub settings: BodySettings,
    pub memory: Arc<BodyMemory>,
}

impl BodyRules {
    /// Counts a limit that was reached. Want of room is counted where it is found.
    pub(super) fn count(&self, error: &UploadError) {
        let limit = match error {
            UploadError::TooLarge(_) => Limit::BodyMax,
            UploadError::TooSlow(_) => Limit::BodyTimeout,
            UploadError::Paused(_) => Limit::BodyProgress,
            UploadError::NoRoom | UploadError::Broken(_) | UploadError::Cut => return,
        };
        self.memory.metrics.limit(limit);
    }

    /// The deadlines of an upload that begins now. `whole`: for all of it.
    pub(super) fn deadlines(&self, whole: Option<Duration>) -> UploadDeadlines {
        UploadDeadlines::new(whole, self.settings.progress_timeout)
    }

    /// Refuses a body that is known to be too long before it is read.
    pub(crate) fn admit(&self, incoming: &Received) -> Result<(), UploadError> {
        match self.settings.max {
            Some(max) if incoming.size_hint().lower() > max => Err(UploadError::TooLarge(max)),
            _ => Ok(()),
        }
    }
}

/// The clocks of one upload.
pub(crate) struct UploadDeadlines {
    /// `None`: it may take as long as it moves.
    whole: Option<(Duration, Pin<Box<Sleep>>)>,
    pause: Duration,
    /// Runs from the first time that the client was waited for in vain.
    paused: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl UploadDeadlines {
    pub(crate) fn new(whole: Option<Duration>, pause: Duration) -> Self {
        Self {
            whole: whole.map(|whole| (whole, Box::pin(tokio::time::sleep(whole)))),
            pause,
            paused: None,
            waiting: false,
        }
    }

    /// The client has sent something.
    pub(crate) fn moved(&mut self) {
        self.waiting = false;
    }

    /// The client is waited for. Ready when it has taken too long; a pause counts only if `counts`.
    pub(crate) fn wait(&mut self, cx: &mut Context<'_>, counts: bool) -> Poll<UploadError> {
        if let Some((within, deadline)) = &mut self.whole
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(UploadError::TooSlow(*within));
        }
        let pause = self.pause;
        let paused = self
            .paused
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
        if !self.waiting {
            self.waiting = true;
            paused.as_mut().reset(Instant::now() + pause);
        }
        while paused.as_mut().poll(cx).is_ready() {
            if counts {
                return Poll::Ready(UploadError::Paused(pause));
            }
            paused.as_mut().reset(Instant::now() + pause);
        }
        Poll::Pending
    }
}

/// The progress of an exchange, seen from both of its sides.
#[derive(Default)]
pub(crate) struct UploadProgress {
    /// Frames of the request that the upstream's side has taken.
    taken: AtomicU64,
    /// The client is waited for.
    waits: AtomicBool,
    /// The upstream is answering.
    answering: AtomicBool,
    /// Nothing more of the request will be sent.
    sent: AtomicBool,
    /// Woken by that.
    watcher: AtomicWaker,
    /// Why the client's part of it broke off.
    fault: Mutex<Option<UploadError>>,
}

impl UploadProgress {
    pub(crate) fn moved(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }

    pub(crate) fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Says if the client has to go on sending. It need not while it is being answered: it may wait
    /// for the answer first (bidirectional gRPC).
    pub(crate) fn client_is_due(&self) -> bool {
        !self.answering.load(Ordering::Relaxed)
    }

    /// The client's part of it broke off.
    pub(crate) fn failed(&self, error: UploadError) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Why the client's part of it broke off, if it did.
    pub(crate) fn fault(&self) -> Option<UploadError> {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.take()
    }

    /// The upstream has begun to answer; until what this yields is dropped.
    pub(crate) fn answering(self: &Arc<Self>) -> Answering {
        self.answering.store(true, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }

    /// Nothing more of the request will be sent: it has been, or was dropped.
    pub(crate) fn sent(&self) {
        self.sent.store(true, Ordering::Release);
        self.watcher.wake();
    }

    /// Ready when nothing more of the request will be sent.
    pub(crate) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.sent.load(Ordering::Acquire) {
            self.watcher.register(cx.waker());
            if !self.sent.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Resolves when the upstream has done nothing for `limit`: since the whole request was sent,
    /// or taken none of it though there was more (found within twice the time). A long upload that
    /// moves is not its fault.
    pub(crate) async fn silent(&self, limit: Duration) {
        let mut taken = self.taken.load(Ordering::Relaxed);
        let mut sent = false;
        let mut timer = SpareTimer::take();
        let mut deadline = Instant::now() + limit;
        poll_fn(|cx| {
            loop {
                if !sent && self.poll_sent(cx).is_ready() {
                    (sent, deadline) = (true, Instant::now() + limit);
                }
                ready!(timer.poll(cx, deadline));
                let before = std::mem::replace(&mut taken, self.taken.load(Ordering::Relaxed));
                if sent || (before == taken && !self.waits.load(Ordering::Relaxed)) {
                    return Poll::Ready(());
                }
                deadline = Instant::now() + limit;
            }
        })
        .await;
    }
}

/// The upstream is answering.
#[must_use]
pub(crate) struct Answering(Arc<UploadProgress>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.store(false, Ordering::Relaxed);
    }
}
