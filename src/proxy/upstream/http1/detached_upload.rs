//! An upload that outlives the head of its answer. It goes on in a task of its own, while the
//! caller reads the response at another pace. Both share the connection.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::connection::Http1UpstreamConnection;
use super::pool::Http1Pool;
use super::upload::{Outgoing, Unwritten};
use crate::proxy::upstream::socket::LAPSED;

/// A connection that two tasks use.
struct SplitConnection {
    /// Short sections, never across an await.
    halves: Mutex<Halves>,
    pool: Arc<Http1Pool>,
}

struct Halves {
    /// `None`: it was given up, or both have finished.
    connection: Option<Http1UpstreamConnection>,
    /// `None`: the upload goes on. Otherwise, whether the request was written whole.
    written: Option<bool>,
    /// `None`: the answer is not whole. Otherwise, whether the connection may carry another
    /// request.
    answered: Option<bool>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Halves {
    /// Takes the connection away from both, and resets it if it is fenced.
    fn give_up(&mut self) {
        drop(self.connection.take());
        for waker in [self.reader.take(), self.writer.take()] {
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Releases the connection when both have finished. It goes back to the pool if it may.
    fn settle(&mut self, pool: &Arc<Http1Pool>) {
        let (Some(written), Some(keeps)) = (self.written, self.answered) else {
            return;
        };
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if written {
            connection.release();
            if keeps {
                pool.put(connection);
            }
        }
    }
}

impl SplitConnection {
    fn new(connection: Http1UpstreamConnection, pool: &Arc<Http1Pool>) -> Self {
        Self {
            halves: Mutex::new(Halves {
                connection: Some(connection),
                written: None,
                answered: None,
                reader: None,
                writer: None,
            }),
            pool: Arc::clone(pool),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Halves> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the rest of the request. The body is dropped behind the reset of the connection.
    async fn finish(self: Arc<Self>, mut outgoing: Outgoing) {
        let timeout = self.pool.options.upload_timeout;
        let mut stall = UploadStall::new(timeout);
        poll_fn(|cx| {
            let mut halves = self.lock();
            let halves = &mut *halves;
            let Some(connection) = &mut halves.connection else {
                return Poll::Ready(());
            };
            match outgoing.poll(cx, connection) {
                Poll::Pending => {
                    let counts = halves.answered.is_some() && outgoing.is_stuck();
                    if stall.is_over(cx, counts, connection.written()) {
                        halves.give_up();
                        return Poll::Ready(());
                    }
                    halves.writer = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => halves.written = Some(true),
                // The upstream takes no more: its answer stands.
                Poll::Ready(Err(Unwritten::Socket(error))) if error.kind() != LAPSED => {
                    halves.written = Some(false);
                }
                Poll::Ready(Err(_)) => halves.give_up(),
            }
            halves.settle(&self.pool);
            Poll::Ready(())
        })
        .await;
    }
}

/// The reader's side. Dropping it before the answer's end drops the connection.
pub(super) struct ReadHalf(Arc<SplitConnection>);

impl ReadHalf {
    /// Has a task write the rest of the request.
    pub(super) fn of(
        connection: Http1UpstreamConnection,
        outgoing: Outgoing,
        pool: &Arc<Http1Pool>,
    ) -> Self {
        let shared = Arc::new(SplitConnection::new(connection, pool));
        tokio::spawn(Arc::clone(&shared).finish(outgoing));
        Self(shared)
    }

    /// Uses the connection. `None`: it was given up.
    pub(super) fn read<T>(
        &self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Context<'_>, &mut Http1UpstreamConnection) -> Poll<T>,
    ) -> Option<Poll<T>> {
        let mut halves = self.0.lock();
        let polled = read(cx, halves.connection.as_mut()?);
        if polled.is_pending() {
            halves.reader = Some(cx.waker().clone());
        }
        Some(polled)
    }

    /// The answer is whole; `keeps`: whether the connection may carry another one.
    pub(super) fn answered(self, keeps: impl FnOnce(&Http1UpstreamConnection) -> bool) {
        let mut halves = self.0.lock();
        halves.answered = Some(halves.connection.as_ref().is_some_and(keeps));
        halves.settle(&self.0.pool);
        if let Some(writer) = halves.writer.take() {
            // The timeout of a stalled upload begins now.
            writer.wake();
        }
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        let mut halves = self.0.lock();
        if halves.answered.is_none() {
            halves.give_up();
        }
    }
}

/// The timeout of an upload that stalls after its answer is whole.
struct UploadStall {
    /// `None`: no timeout here; the exchange has its own.
    timeout: Option<Duration>,
    timer: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
    written: u64,
}

impl UploadStall {
    const fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            timer: None,
            written: 0,
        }
    }

    /// Whether the timeout has passed. `counts`: the upload waits for the upstream alone.
    fn is_over(&mut self, cx: &mut Context<'_>, counts: bool, written: u64) -> bool {
        let Some(timeout) = self.timeout else {
            return false;
        };
        let moved = std::mem::replace(&mut self.written, written) != written;
        if moved || !counts {
            self.timer = None;
        }
        if !counts {
            return false;
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        timer.as_mut().poll(cx).is_ready()
    }
}
