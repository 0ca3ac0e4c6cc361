//! The limits of a request's body. Deadlines hold before admission and while it is streamed: for the
//! upload as a whole, and between two bytes.
//!
//! Only waiting for the client counts. While the upstream takes nothing, the body is not asked for
//! more, and no clock that the client could lose against runs.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::UploadError;
use super::memory::BodyMemory;
use super::received::Received;
use crate::config::BodySettings;
use crate::deadline_timer::{DeadlineTimer, SpareTimer};
use crate::metrics::Limit;

/// The rules for the body of one request.
#[derive(Clone)]
pub(crate) struct BodyRules {
    pub settings: BodySettings,
    pub memory: Arc<BodyMemory>,
}

impl BodyRules {
    /// The deadline for pauses. `total`: also for the upload as a whole.
    pub(super) fn deadlines(&self, total: bool) -> UploadDeadlines {
        let timeout = self.settings.timeout.0;
        UploadDeadlines {
            total: total.then_some((timeout, timeout)),
            pause: self.settings.progress_timeout.0,
            since: None,
            timer: DeadlineTimer::default(),
        }
    }

    /// Refuses a body that is known to be too long before it is read.
    pub(crate) fn admit(&self, incoming: &Received) -> Result<(), UploadError> {
        self.allow(incoming.left().unwrap_or_default())
    }

    /// Refuses a body of which this many bytes are known.
    pub(super) fn allow(&self, length: u64) -> Result<(), UploadError> {
        match self.settings.max.0 {
            Some(max) if length > max.0 => {
                self.memory.metrics.limit(Limit::BodyMax);
                Err(UploadError::TooLarge(max.0))
            }
            _ => Ok(()),
        }
    }
}

/// The clocks of one upload. They are read only while the client is waited for.
pub(super) struct UploadDeadlines {
    /// The time for the whole upload, and how much of it is left. `None`: it may take as long as it
    /// moves.
    total: Option<(Duration, Duration)>,
    /// Between two pieces.
    pause: Duration,
    /// Since when the client is waited for.
    since: Option<Instant>,
    timer: DeadlineTimer,
}

impl UploadDeadlines {
    /// The client has sent something.
    pub(super) fn moved(&mut self) {
        if let Some(since) = self.since.take()
            && let Some((_, left)) = &mut self.total
        {
            *left = left.saturating_sub(since.elapsed());
        }
    }

    /// The client is waited for. Ready when it has taken too long; a pause counts only if the
    /// client is `due`.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>, due: bool) -> Poll<(UploadError, Limit)> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let paused = due.then_some(since + self.pause);
        let total = self.total.map(|(_, left)| since + left);
        let Some(first) = paused.into_iter().chain(total).min() else {
            return Poll::Pending;
        };
        ready!(self.timer.poll(cx, first));
        Poll::Ready(match self.total {
            Some((limit, left)) if since + left == first => {
                (UploadError::TooSlow(limit), Limit::BodyTimeout)
            }
            _ => (UploadError::Paused(self.pause), Limit::BodyProgress),
        })
    }
}

/// The progress of an exchange, seen from both of its sides.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    /// Frames of the request that the upstream's side has taken.
    taken: AtomicU64,
    /// The client is waited for.
    waits: AtomicBool,
    /// The upstream has begun to answer an unfenced request.
    answered: AtomicBool,
    /// Nothing more of the request will be sent.
    is_sent: AtomicBool,
    sent: Notify,
}

impl UploadProgress {
    pub(super) fn moved(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
    }

    pub(super) fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Returns true if the exchange waits for its client.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Says if the client has to go on sending. Where newer tokens do not wait, it need not once it
    /// is being answered: it may wait for the answer first (bidirectional gRPC).
    pub(super) fn client_is_due(&self) -> bool {
        !self.answered.load(Ordering::Relaxed)
    }

    /// The upstream has begun to answer an unfenced request.
    pub(crate) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Nothing more of the request will be sent: it has been, or was dropped.
    pub(super) fn sent(&self) {
        self.waits.store(false, Ordering::Relaxed);
        self.is_sent.store(true, Ordering::Relaxed);
        self.sent.notify_one();
    }

    /// Returns true if a part of the request is still to be sent.
    pub(crate) fn is_uploading(&self) -> bool {
        !self.is_sent.load(Ordering::Relaxed)
    }

    /// Resolves when the upstream has done nothing for `limit`: since the whole request was sent,
    /// or taken none of it though there was more (found within twice the time). A long upload that
    /// moves is not its fault. `began`: just now, when the exchange did. `again`: the time has begun
    /// again.
    pub(crate) async fn silent(&self, began: Instant, limit: Duration, again: impl Fn(Instant)) {
        let mut taken = self.taken.load(Ordering::Relaxed);
        let mut timer = SpareTimer::take();
        let (mut deadline, mut sent) = (began + limit, false);
        loop {
            tokio::select! {
                biased;
                // Most requests have been sent at the first poll.
                () = self.sent.notified(), if !sent => sent = true,
                () = poll_fn(|cx| timer.poll(cx, deadline)) => {
                    let before = std::mem::replace(&mut taken, self.taken.load(Ordering::Relaxed));
                    if sent || before == taken && !self.is_waiting() {
                        return;
                    }
                }
            }
            let now = Instant::now();
            again(now);
            deadline = now + limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_time_that_the_client_takes_counts() {
        let second = Duration::from_secs(1);
        let mut deadlines = UploadDeadlines {
            total: Some((10 * second, 10 * second)),
            pause: 20 * second,
            since: None,
            timer: DeadlineTimer::default(),
        };
        for _ in 0..3 {
            let waited = tokio::time::timeout(3 * second, poll_fn(|cx| deadlines.wait(cx, true)));
            assert!(waited.await.is_err(), "there was time left");
            deadlines.moved();
            // The upstream takes its time.
            tokio::time::advance(60 * second).await;
        }
        let began = Instant::now();
        let (error, _) = poll_fn(|cx| deadlines.wait(cx, true)).await;
        assert!(matches!(error, UploadError::TooSlow(limit) if limit == 10 * second));
        assert!(began.elapsed().as_secs() <= 1);
    }
}
