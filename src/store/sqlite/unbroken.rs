//! [`Unbroken`]: work that starts in its caller's task, and continues in its own task when the
//! caller leaves. Starting in its own task would cost a batch of requests two switches between
//! threads.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// Set when the work has begun. From then on it runs to its end.
#[derive(Debug, Default)]
pub(super) struct WorkBegun(AtomicBool);

impl WorkBegun {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// See the module's documentation.
#[must_use]
pub(super) struct Unbroken<T: Send + 'static> {
    /// `None`: it has ended, or panicked.
    work: Option<BoxFuture<'static, T>>,
    begun: Arc<WorkBegun>,
}

impl<T: Send + 'static> Unbroken<T> {
    pub(super) fn new<F>(work: impl FnOnce(Arc<WorkBegun>) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let begun = Arc::new(WorkBegun::default());
        Self {
            work: Some(Box::pin(work(Arc::clone(&begun)))),
            begun,
        }
    }
}

impl<T: Send + 'static> Future for Unbroken<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(mut work) = self.work.take() else {
            return Poll::Pending;
        };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Unbroken<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else {
            return;
        };
        if self.begun.0.load(Ordering::Acquire)
            && let Ok(runtime) = Handle::try_current()
        {
            // The result is not read, but the work is done.
            drop(runtime.spawn(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::sync::oneshot;

    /// Polls once, and leaves.
    fn leave<T: Send + 'static>(mut work: Unbroken<T>) {
        let polled = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }

    #[tokio::test]
    async fn runs_to_its_end_when_its_caller_leaves() {
        let (go, gone) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        leave(Unbroken::new(|begun| async move {
            begun.set();
            let _ = gone.await;
            let _ = end.send(());
        }));
        go.send(()).expect("the work still runs");
        ended.await.expect("the work ended");
    }

    #[tokio::test]
    async fn is_not_begun_when_its_caller_left_before_its_turn() {
        let (go, turn) = oneshot::channel::<()>();
        leave(Unbroken::new(|begun| async move {
            let _ = turn.await;
            begun.set();
        }));
        assert!(go.send(()).is_err(), "nobody waits for the turn any more");
    }
}
