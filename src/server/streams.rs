//! HTTP/2 streams whose client takes nothing.
//!
//! A stream whose window stays closed is not seen at the socket: the client takes the other streams. hyper
//! waits for the window without asking the response's body for more, so the body cannot end it; but both run in
//! the stream's own task, and there it shows: a frame was handed out and the next one not asked for, or data has not
//! left h2. When the [`Patience`] with that ends, the task is dropped, and h2 resets the stream.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;

use super::activity;
use super::patience::Patience;
use crate::metrics::{Limit, Metrics};
use crate::proxy::Network;
use crate::proxy::slow::SlowClients;
use crate::proxy::{BoxError, ClientBody};

tokio::task_local! {
    /// The stream whose task this is.
    static STREAM: Arc<TakenStream>;
}

/// How many frames of its response a stream has been handed; even: it asks for the next, or for none yet; odd:
/// the latest waits for the client. All in one task: the atomic is for the compiler only.
#[derive(Default)]
struct TakenStream(AtomicU64);

impl TakenStream {
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
    pub slow: Arc<SlowClients>,
    /// Where the connection's client is; `None`: at a Unix socket.
    pub network: Option<Network>,
    pub metrics: Arc<Metrics>,
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let patience = Patience::new(self.limit, Arc::clone(&self.slow), self.network);
        let metrics = Arc::clone(&self.metrics);
        tokio::spawn(async move {
            let taken = Arc::new(TakenStream::default());
            let stream = pin!(STREAM.scope(Arc::clone(&taken), stream));
            if let Err(limit) = taking(stream, &taken, patience).await {
                metrics.limit(limit);
                tracing::debug!(
                    limit = limit.as_str(),
                    "a client took nothing of its answer: its stream is reset"
                );
            }
        });
    }
}

/// Runs a stream to its end, or to that of the patience with its client.
async fn taking(
    mut stream: Pin<&mut impl Future>,
    taken: &TakenStream,
    mut patience: Patience,
) -> Result<(), Limit> {
    let mut since = None;
    std::future::poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let waits = taken.waits();
        if waits != since {
            since = waits;
            patience.taken();
        }
        if waits.is_none() {
            return Poll::Pending;
        }
        patience.wait(cx).map(Err)
    })
    .await
}

/// Longer data is handed out in parts of this length (the default frame of RFC 9113, 4.2): a slow client is
/// seen to take one.
const PART: usize = 16 << 10;

/// A response's body that tells its stream what was asked for.
pub(super) struct StreamsTold {
    body: ClientBody,
    stream: Option<Box<ServedStream>>,
    /// The request is in hand for as long.
    _request: activity::ActiveStream,
}

/// What there is to know of a response on HTTP/2.
struct ServedStream {
    taken: Arc<TakenStream>,
    /// Data on its way, somewhere in h2.
    sent: Arc<SentAnswer>,
    /// What is left of a frame that is handed out in parts.
    rest: Bytes,
    end: StreamEnd,
    begun: bool,
}

/// How a body ends; told only when all data has gone. h2 takes the end together with data that no window is open
/// for, and keeps it: the stream's task would be over, and the data there.
enum StreamEnd {
    Unknown,
    Known,
    Trailers(Frame<Bytes>),
}

/// Data that h2 holds: how many pieces, and who waits for them to go.
#[derive(Default)]
struct SentAnswer {
    pieces: AtomicU64,
    waiter: AtomicWaker,
}

/// One of them.
struct AnswerPieces {
    data: Bytes,
    sent: Arc<SentAnswer>,
}

impl AnswerPieces {
    fn of(data: Bytes, sent: &Arc<SentAnswer>) -> Bytes {
        sent.pieces.fetch_add(1, Ordering::AcqRel);
        let sent = Arc::clone(sent);
        Bytes::from_owner(Self { data, sent })
    }
}

impl AsRef<[u8]> for AnswerPieces {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for AnswerPieces {
    fn drop(&mut self) {
        self.sent.pieces.fetch_sub(1, Ordering::AcqRel);
        self.sent.waiter.wake();
    }
}

impl SentAnswer {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Registered before the look: a piece that goes after it wakes.
        self.waiter.register(cx.waker());
        if self.pieces.load(Ordering::Acquire) == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl StreamsTold {
    /// To be called in the request's own future.
    pub(super) fn new(body: ClientBody, request: activity::ActiveStream) -> Self {
        let stream = STREAM.try_with(|taken| {
            Box::new(ServedStream {
                taken: Arc::clone(taken),
                sent: Arc::default(),
                rest: Bytes::new(),
                end: StreamEnd::Unknown,
                begun: false,
            })
        });
        Self {
            body,
            stream: stream.ok(),
            _request: request,
        }
    }
}

impl ServedStream {
    fn part(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PART);
        let part = self.rest.split_to(length);
        self.taken.handed();
        Frame::data(AnswerPieces::of(part, &self.sent))
    }

    fn poll_frame(
        &mut self,
        body: &mut ClientBody,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.begun = true;
        if matches!(self.end, StreamEnd::Unknown) {
            self.taken.asked();
            if !self.rest.is_empty() {
                return Poll::Ready(Some(Ok(self.part())));
            }
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.rest = data;
                        return Poll::Ready(Some(Ok(self.part())));
                    }
                    Err(trailers) => self.end = StreamEnd::Trailers(trailers),
                },
                None => self.end = StreamEnd::Known,
            }
            // As if it were handed out: what it waits for is the client.
            self.taken.handed();
        }
        ready!(self.sent.poll_gone(cx));
        Poll::Ready(match std::mem::replace(&mut self.end, StreamEnd::Known) {
            StreamEnd::Trailers(trailers) => Some(Ok(trailers)),
            StreamEnd::Known | StreamEnd::Unknown => None,
        })
    }
}

impl Body for StreamsTold {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match &mut this.stream {
            None => Pin::new(&mut this.body).poll_frame(cx),
            Some(stream) => stream.poll_frame(&mut this.body, cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        let begun = self.stream.as_ref().is_some_and(|stream| stream.begun);
        !begun && self.body.is_end_stream()
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
        let taken = TakenStream::default();
        let began = Instant::now();
        taken.asked();
        taken.handed();
        let stream = pin!(std::future::pending::<()>());
        let patience = Patience::new(LIMIT, Arc::default(), None);
        let ended = taking(stream, &taken, patience).await;
        assert_eq!((ended, began.elapsed()), (Err(Limit::WriteTimeout), LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_upstream_is_not_the_clients_doing() {
        let taken = TakenStream::default();
        let stream = async {
            for _ in 0..3 {
                taken.asked();
                tokio::time::sleep(LIMIT * 5).await;
                taken.handed();
                tokio::time::sleep(LIMIT * 9 / 10).await;
            }
        };
        let patience = Patience::new(LIMIT, Arc::default(), None);
        assert_eq!(taking(pin!(stream), &taken, patience).await, Ok(()));
    }
}
