//! HTTP/2 streams whose client takes nothing.
//!
//! A stream whose window stays closed is not seen at the socket: the client takes the other streams. hyper
//! waits for the window without asking the response's body for more, so the body cannot end it; but both run in
//! the stream's own task, and there it shows: a frame was handed out and the next one not asked for. After
//! `limits.write_timeout` of that the task is dropped, and h2 resets the stream.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::Instant;

use crate::metrics::{Limit, Metrics};
use crate::proxy::ClientBody;

tokio::task_local! {
    /// The stream whose task this is.
    static STREAM: Arc<Taken>;
}

/// How many frames of its response a stream has been handed; even: it asks for the next, or for none yet; odd:
/// the latest waits for the client. All in one task: the atomic is for the compiler only.
#[derive(Default)]
struct Taken(AtomicU64);

impl Taken {
    fn asked(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now + now % 2, Ordering::Relaxed);
    }

    fn handed(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes with each frame, while one waits for the client.
    fn waits(&self) -> Option<u64> {
        let now = self.0.load(Ordering::Relaxed);
        (now % 2 == 1).then_some(now)
    }
}

/// Runs the streams of HTTP/2 connections, each in a task that ends when its client takes nothing.
#[derive(Clone)]
pub(super) struct Streams {
    pub limit: Duration,
    pub metrics: Arc<Metrics>,
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let (limit, metrics) = (self.limit, Arc::clone(&self.metrics));
        tokio::spawn(async move {
            let taken = Arc::new(Taken::default());
            let stream = pin!(STREAM.scope(Arc::clone(&taken), stream));
            if !taking(stream, &taken, limit).await {
                metrics.limit(Limit::WriteTimeout);
                tracing::debug!(
                    "a client took nothing for limits.write_timeout: its stream is reset"
                );
            }
        });
    }
}

/// Runs a stream to its end; `false` if its client took nothing for `limit`.
async fn taking(mut stream: Pin<&mut impl Future>, taken: &Taken, limit: Duration) -> bool {
    let mut clock = pin!(tokio::time::sleep(limit));
    let mut since = None;
    std::future::poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        let waits = taken.waits();
        if waits.is_none() {
            since = None;
            return Poll::Pending;
        }
        if waits != since {
            since = waits;
            clock.as_mut().reset(Instant::now() + limit);
        }
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(false)
    })
    .await
}

/// A response's body that tells its stream what was asked for. On HTTP/1 there is no stream: the socket tells.
pub(super) struct Told {
    body: ClientBody,
    taken: Option<Arc<Taken>>,
}

impl Told {
    /// To be called in the request's own future.
    pub(super) fn new(body: ClientBody) -> Self {
        let taken = STREAM.try_with(Arc::clone).ok();
        Self { body, taken }
    }
}

impl Body for Told {
    type Data = Bytes;
    type Error = <ClientBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(taken) = &self.taken {
            taken.asked();
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(taken) = &self.taken {
            taken.handed();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_once_a_frame_has_waited_for_its_client() {
        let taken = Taken::default();
        let began = Instant::now();
        taken.asked();
        taken.handed();
        let stream = pin!(std::future::pending::<()>());
        assert!(!taking(stream, &taken, LIMIT).await);
        assert_eq!(began.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_upstream_is_not_the_clients_doing() {
        let taken = Taken::default();
        let stream = async {
            for _ in 0..3 {
                taken.asked();
                tokio::time::sleep(LIMIT * 5).await;
                taken.handed();
                tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
            }
        };
        assert!(taking(pin!(stream), &taken, LIMIT).await);
    }
}
