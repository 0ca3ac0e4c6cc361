//! A timeout for HTTP/2 streams whose client takes nothing.
//!
//! The socket does not show that a stream's window stays closed, since the client takes the other
//! streams. hyper waits for the window without polling the response's body, so the body cannot end
//! the stream. But both run in the stream's own task, which can see it: a frame was handed out and
//! the next one not asked for. At the end of the [`WriteTimeout`] the task is dropped, and h2 resets
//! the stream. The last frame is not watched: its stream stays until the connection ends.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;

use super::connection_state::ActiveStream;
use crate::metrics::{Limit, Metrics};
use crate::proxy::{BoxError, ClientBody};
use crate::write_timeout::WriteTimeout;

tokio::task_local! {
    /// The stream that the current task serves.
    static STREAM: Arc<StreamProgress>;
}

/// Counts the frames of a response. Even: the stream asks for the next frame, or for none yet. Odd:
/// the last frame waits for the client. Only one task uses it; the compiler demands the atomic.
#[derive(Default)]
struct StreamProgress(AtomicU64);

impl StreamProgress {
    fn asked(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now + now % 2, Ordering::Relaxed);
    }

    fn handed(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// While a frame waits for the client: a number that changes with each frame.
    fn waits(&self) -> Option<u64> {
        let now = self.0.load(Ordering::Relaxed);
        (now % 2 == 1).then_some(now)
    }
}

/// Runs each HTTP/2 stream in a task of its own, which ends if the client takes nothing.
#[derive(Clone)]
pub(super) struct StreamExecutor {
    pub limit: Duration,
    pub metrics: Arc<Metrics>,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let timeout = WriteTimeout::new(self.limit);
        let metrics = Arc::clone(&self.metrics);
        tokio::spawn(async move {
            let taken = Arc::new(StreamProgress::default());
            let stream = pin!(STREAM.scope(Arc::clone(&taken), stream));
            if !run_stream(stream, &taken, timeout).await {
                metrics.limit(Limit::WriteTimeout);
                tracing::debug!("a client took nothing of its answer: its stream is reset");
            }
        });
    }
}

/// Runs a stream to its end, or to the end of the timeout; then returns `false`.
async fn run_stream(
    mut stream: Pin<&mut impl Future>,
    taken: &StreamProgress,
    mut timeout: WriteTimeout,
) -> bool {
    let mut since = None;
    std::future::poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        let waits = taken.waits();
        if waits != since {
            since = waits;
            timeout.progressed();
        }
        if waits.is_none() {
            return Poll::Pending;
        }
        timeout.poll_expired(cx).map(|()| false)
    })
    .await
}

/// Longer data is handed out in parts of this length, the default frame size (RFC 9113, 4.2), so
/// that a slow client shows progress.
const PART: usize = 16 << 10;

/// A response's body that tells its stream's task how far its client has taken it.
pub(super) struct TrackedBody {
    body: ClientBody,
    taken: Arc<StreamProgress>,
    /// The rest of a frame that is handed out in parts.
    rest: Bytes,
    /// The request is in progress until this is dropped.
    _request: ActiveStream,
}

impl TrackedBody {
    /// Must be called in the request's own future.
    pub(super) fn new(body: ClientBody, request: ActiveStream) -> Self {
        let taken = STREAM.try_with(Arc::clone);
        Self {
            body,
            taken: taken.unwrap_or_default(),
            rest: Bytes::new(),
            _request: request,
        }
    }

    fn part(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PART);
        self.taken.handed();
        Frame::data(self.rest.split_to(length))
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.taken.asked();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        Poll::Ready(Some(Ok(self.part())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_once_a_frame_has_waited_for_its_client() {
        let taken = StreamProgress::default();
        let began = Instant::now();
        taken.asked();
        taken.handed();
        let stream = pin!(std::future::pending::<()>());
        let timeout = WriteTimeout::new(LIMIT);
        let ended = run_stream(stream, &taken, timeout).await;
        assert_eq!((ended, began.elapsed()), (false, LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_upstream_is_not_the_clients_doing() {
        let taken = StreamProgress::default();
        let stream = async {
            for _ in 0..3 {
                taken.asked();
                tokio::time::sleep(LIMIT * 5).await;
                taken.handed();
                tokio::time::sleep(LIMIT * 9 / 10).await;
            }
        };
        let timeout = WriteTimeout::new(LIMIT);
        assert!(run_stream(pin!(stream), &taken, timeout).await);
    }
}
