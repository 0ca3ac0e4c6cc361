//! [`Reply`]: the upstream's answer as it is read, and the channel to a client that reads it at its
//! own pace.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as _, Frame};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::conclusion::Conclusion;
use crate::body::{BoxError, MemoryShare};
use crate::metrics::ResponseTimer;
use crate::proxy::context::Context as RequestContext;
use crate::proxy::headers::TrailerRules;
use crate::proxy::recorder::Recorder;
use crate::proxy::refusal::Refusal;
use crate::traces::UpstreamSpan;
use crate::upstream::{ResponseBody, upload};

/// The bytes kept for a client that has stalled while a newer token waits. Beyond that, the
/// client's response is cut, so that the newer token is not delayed.
const KEPT_FOR_STALLED: usize = 1 << 20;

/// The most frames between the upstream and a client that reads. A frame is what one read from the
/// upstream returned.
const WINDOW: usize = 2;

/// The most frames that are kept for a client that has stalled.
const CAPACITY: usize = 1024;

/// A response of the upstream that has begun. Dropped without [`Self::whole`], it was incomplete.
#[must_use = "the response ends where this is dropped"]
#[derive(Debug)]
pub(crate) struct ResponseWatch {
    _timer: ResponseTimer,
    span: Option<UpstreamSpan>,
}

impl ResponseWatch {
    /// The head of the response has arrived, for a request that was sent at `sent`.
    pub(in crate::proxy) fn begin(
        sent: Instant,
        status: StatusCode,
        context: &RequestContext,
        mut span: Option<UpstreamSpan>,
    ) -> Self {
        let _ = context.upstream.set(sent.elapsed());
        if let Some(span) = &mut span {
            span.answered(status.as_u16());
        }
        Self {
            _timer: context.metrics().upstream(sent, status.as_u16()),
            span,
        }
    }

    /// The response has ended whole.
    pub(crate) fn whole(mut self) {
        if let Some(span) = &mut self.span {
            span.whole();
        }
    }
}

/// The body of an answer that is being read.
pub(in crate::proxy) struct Reply {
    pub body: ResponseBody,
    /// Read already.
    first: Option<Frame<Bytes>>,
    rules: TrailerRules,
    pub conclusion: Conclusion,
    /// Keeps the parts of the answer that are to be remembered.
    pub recorder: Option<Box<Recorder>>,
    /// `None`: the answer is whole.
    watch: Option<ResponseWatch>,
}

impl Reply {
    pub(in crate::proxy) fn new(
        body: ResponseBody,
        rules: TrailerRules,
        conclusion: Conclusion,
        watch: ResponseWatch,
    ) -> Self {
        Self {
            body,
            first: None,
            rules,
            conclusion,
            recorder: None,
            watch: Some(watch),
        }
    }

    /// All of an answer that has come whole with its head. `None`: there is more to come.
    ///
    /// # Errors
    /// It broke off before the client got anything.
    pub(in crate::proxy) async fn at_once(&mut self) -> Result<Option<Bytes>, Refusal> {
        match poll_fn(|cx| Poll::Ready(self.poll_frame(cx))).await {
            Poll::Pending => Ok(None),
            Poll::Ready(None) => Ok(Some(Bytes::new())),
            Poll::Ready(Some(frame)) => match frame.map_err(|error| broken(&error))?.into_data() {
                Ok(data) if self.is_end() => Ok(Some(data)),
                more => {
                    self.first = Some(more.map_or_else(|frame| frame, Frame::data));
                    Ok(None)
                }
            },
        }
    }

    /// The next frame, without the trailers that the client must not get.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            self.conclusion.read(trailers);
            self.rules.strip(trailers);
        }
        if let (Some(recorder), Some(Ok(frame))) = (&mut self.recorder, &frame)
            && let Some(data) = frame.data_ref()
        {
            recorder.feed(data);
        }
        let goes_on = |frame: &Result<_, _>| frame.is_err() || !self.body.is_end_stream();
        if !frame.as_ref().is_some_and(goes_on)
            && let Some(watch) = self.watch.take()
        {
            watch.whole();
        }
        Poll::Ready(frame)
    }

    /// Says if the answer is whole.
    pub(in crate::proxy) fn is_end(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    /// Reads the answer to its end, and hands it to the client. The last frame is returned.
    ///
    /// # Errors
    /// It broke off, or was cut.
    pub(in crate::proxy) async fn relay(
        &mut self,
        client: &mut ClientSender,
        superseded: &CancellationToken,
        cut: impl Future<Output = Refusal>,
    ) -> Result<Option<Frame<Bytes>>, Refusal> {
        let mut cut = pin!(cut);
        loop {
            let frame = tokio::select! {
                frame = poll_fn(|cx| self.poll_frame(cx)) => frame,
                cut = &mut cut => return Err(cut),
            };
            let frame = frame.transpose().map_err(|error| broken(&error))?;
            let frame = match frame {
                // Once it is whole, the rest is between the proxy and its client.
                Some(frame) if !self.is_end() => frame,
                last => return Ok(last),
            };
            tokio::select! {
                () = client.give(frame, superseded) => {}
                // The client may read no more before it has sent all.
                error = upload(&mut self.body) => return Err(broken(&error)),
                cut = &mut cut => return Err(cut),
            }
        }
    }
}

fn broken(error: &BoxError) -> Refusal {
    Refusal::Broken(format!("the answer broke off: {error}"))
}

/// One message to a client whose answer is relayed.
pub(in crate::proxy) enum RelayedFrame {
    Next(Frame<Bytes>),
    /// The response is whole with this frame; `None`: it was before.
    Last {
        frame: Option<Frame<Bytes>>,
        /// Charged until the client has taken what was kept for it.
        _memory: MemoryShare,
    },
}

/// Hands an answer to its client. The client gets it at its own pace, until a newer token waits.
/// From then on it is read at the upstream's pace. Dropped before [`Self::finish`], the answer is
/// incomplete.
pub(in crate::proxy) struct ClientSender {
    /// `None`: the client has left, or its response was cut.
    frames: Option<mpsc::Sender<RelayedFrame>>,
    /// The budget that is charged for a client that has stalled.
    memory: MemoryShare,
}

impl ClientSender {
    /// The sender, and what the client's body reads.
    pub(in crate::proxy) fn new(memory: MemoryShare) -> (Self, mpsc::Receiver<RelayedFrame>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let frames = Some(sender);
        (Self { frames, memory }, receiver)
    }

    /// Resolves when the client has left.
    pub(in crate::proxy) fn left(&self) -> impl Future<Output = Refusal> + use<> {
        let frames = self.frames.clone();
        async move {
            if let Some(frames) = frames {
                frames.closed().await;
            }
            Refusal::Broken("the client has left".into())
        }
    }

    /// Hands over a frame. Waits for the client, unless a newer token waits.
    async fn give(&mut self, frame: Frame<Bytes>, superseded: &CancellationToken) {
        let Some(frames) = &self.frames else {
            return;
        };
        let given = tokio::select! {
            biased;
            places = frames.reserve_many(CAPACITY - WINDOW + 1) => {
                // The client keeps up.
                self.memory.give(self.memory.bytes());
                let place = places.ok().and_then(|mut places| places.next());
                place.map(|place| place.send(RelayedFrame::Next(frame))).is_some()
            }
            () = superseded.cancelled() => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                self.memory.grow(length)
                    && self.memory.bytes() <= KEPT_FOR_STALLED
                    // The end needs a place too.
                    && frames.capacity() > 1
                    && frames.try_send(RelayedFrame::Next(frame)).is_ok()
            }
        };
        if !given {
            self.frames = None;
        }
    }

    /// Hands over the end of an answer. A client that has stalled so far is cut.
    pub(in crate::proxy) fn finish(self, last: Option<Frame<Bytes>>) {
        if let Some(frames) = self.frames {
            let _ = frames.try_send(RelayedFrame::Last {
                frame: last,
                _memory: self.memory,
            });
        }
    }
}
