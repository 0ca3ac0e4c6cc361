//! One timer for all deadlines of a connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is only reset for an earlier deadline. Most deadlines move on before they are
/// reached. Then the timer fires once and finds a later deadline.
#[derive(Default)]
pub(crate) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Ready once `deadline` has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

thread_local! {
    /// Timers that nobody uses, each with its runtime.
    static SPARE: RefCell<Vec<(Id, DeadlineTimer)>> = const { RefCell::new(Vec::new()) };
}

/// The most spare timers of a thread.
const MAX_SPARE: usize = 256;

/// A timer for a single wait. Most waits end long before their deadline, so timers are used again:
/// then a wait costs the runtime nothing.
pub(crate) struct SpareTimer {
    runtime: Id,
    timer: DeadlineTimer,
}

impl SpareTimer {
    /// Call it within a runtime.
    pub(crate) fn take() -> Self {
        let runtime = Handle::current().id();
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let timer = spare.filter(|(of, _)| *of == runtime);
        Self {
            runtime,
            timer: timer.map(|(_, timer)| timer).unwrap_or_default(),
        }
    }

    /// As [`DeadlineTimer::poll`].
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        self.timer.poll(cx, deadline)
    }
}

impl Drop for SpareTimer {
    fn drop(&mut self) {
        let spare = (self.runtime, std::mem::take(&mut self.timer));
        let unwanted = SPARE.with_borrow_mut(|all| {
            if all.len() < MAX_SPARE {
                all.push(spare);
                return None;
            }
            Some(spare)
        });
        drop(unwanted);
    }
}

/// Awaits a future for this long at most. `None`: it has taken longer.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = SpareTimer::take();
    let deadline = Instant::now() + limit;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => timer.poll(cx, deadline).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_the_latest_deadline_that_it_was_polled_for() {
        let second = Duration::from_secs(1);
        let mut timer = DeadlineTimer::default();
        let began = Instant::now();
        for deadline in [began + second * 2, began + second * 3] {
            let polled = poll_fn(|cx| Poll::Ready(timer.poll(cx, deadline)));
            assert!(polled.await.is_pending());
        }
        poll_fn(|cx| timer.poll(cx, began + second * 3)).await;
        assert_eq!(began.elapsed(), second * 3);
        let mut timer = DeadlineTimer::default();
        let later = poll_fn(|cx| Poll::Ready(timer.poll(cx, began + second * 60)));
        assert!(later.await.is_pending());
        poll_fn(|cx| timer.poll(cx, began + second * 4)).await;
        assert_eq!(began.elapsed(), second * 4, "an earlier one resets it");
    }
}
