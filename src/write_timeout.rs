//! The timeout of a client that reads nothing of its answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The timeout of one client.
pub(crate) struct WriteTimeout {
    limit: Duration,
    /// It has read nothing since the clock was set.
    waits: bool,
    clock: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(crate) const fn new(limit: Duration) -> Self {
        Self {
            limit,
            waits: false,
            clock: None,
        }
    }

    /// Stops the timeout: the client has read something, or nothing waits for it.
    pub(crate) fn progressed(&mut self) {
        self.waits = false;
    }

    /// Starts the timeout if it does not run. Ready at its end.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let clock = self
            .clock
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !self.waits {
            self.waits = true;
            clock.as_mut().reset(Instant::now() + limit);
        }
        clock.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_the_limit() {
        let mut timeout = WriteTimeout::new(LIMIT);
        let began = Instant::now();
        poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert_eq!(began.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_begins_it_again() {
        let mut timeout = WriteTimeout::new(LIMIT);
        for _ in 0..3 {
            let wait = poll_fn(|cx| timeout.poll_expired(cx));
            let waited = tokio::time::timeout(LIMIT / 2, wait).await;
            assert!(waited.is_err());
            timeout.progressed();
        }
    }
}
