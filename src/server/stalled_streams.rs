//! A timeout for HTTP/2 streams whose client takes nothing.
//!
//! The socket does not show that a stream's window stays closed, since the client takes the other
//! streams. hyper waits for the window without polling the response's body, so the body cannot end
//! the stream. But both run in the stream's own task, which can see it: a frame was handed out and
//! the next one not asked for, or data has not left h2. At the end of the [`WriteTimeout`] the task
//! is dropped, and h2 resets the stream.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
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
    /// Data that h2 still has.
    sent: Arc<UnsentData>,
    /// The rest of a frame that is handed out in parts.
    rest: Bytes,
    end: StreamEnd,
    begun: bool,
    /// The request is in progress until this is dropped.
    _request: ActiveStream,
}

/// How a body ends. h2 learns it only when all data has left. It would take the end together with
/// data that waits for the window: the stream's task would end, and the data would stay.
enum StreamEnd {
    Unknown,
    Known,
    Trailers(Frame<Bytes>),
}

/// Counts the pieces of data that h2 has, and wakes the task that waits for them to leave.
#[derive(Default)]
struct UnsentData {
    pieces: AtomicU64,
    waiter: AtomicWaker,
}

/// A piece of data, counted until h2 drops it.
struct UnsentPiece {
    data: Bytes,
    sent: Arc<UnsentData>,
}

impl UnsentPiece {
    fn of(data: Bytes, sent: &Arc<UnsentData>) -> Bytes {
        sent.pieces.fetch_add(1, Ordering::AcqRel);
        let sent = Arc::clone(sent);
        Bytes::from_owner(Self { data, sent })
    }
}

impl AsRef<[u8]> for UnsentPiece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for UnsentPiece {
    fn drop(&mut self) {
        self.sent.pieces.fetch_sub(1, Ordering::AcqRel);
        self.sent.waiter.wake();
    }
}

impl UnsentData {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Registered first: a piece that leaves after the load wakes the task.
        self.waiter.register(cx.waker());
        if self.pieces.load(Ordering::Acquire) == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl TrackedBody {
    /// Must be called in the request's own future.
    pub(super) fn new(body: ClientBody, request: ActiveStream) -> Self {
        let taken = STREAM.try_with(Arc::clone);
        Self {
            body,
            taken: taken.unwrap_or_default(),
            sent: Arc::default(),
            rest: Bytes::new(),
            end: StreamEnd::Unknown,
            begun: false,
            _request: request,
        }
    }

    fn part(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PART);
        let part = self.rest.split_to(length);
        self.taken.handed();
        Frame::data(UnsentPiece::of(part, &self.sent))
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.begun = true;
        if matches!(this.end, StreamEnd::Unknown) {
            this.taken.asked();
            if !this.rest.is_empty() {
                return Poll::Ready(Some(Ok(this.part())));
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        this.rest = data;
                        return Poll::Ready(Some(Ok(this.part())));
                    }
                    Err(trailers) => this.end = StreamEnd::Trailers(trailers),
                },
                None => this.end = StreamEnd::Known,
            }
            // As if it were handed out, since it waits for the client.
            this.taken.handed();
        }
        ready!(this.sent.poll_gone(cx));
        Poll::Ready(match std::mem::replace(&mut this.end, StreamEnd::Known) {
            StreamEnd::Trailers(trailers) => Some(Ok(trailers)),
            StreamEnd::Known | StreamEnd::Unknown => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.begun && self.body.is_end_stream()
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
