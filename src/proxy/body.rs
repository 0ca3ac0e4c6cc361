//! Bodies on their way through: read up to a limit before admission, streamed beyond it.
//!
//! A body that fits in `body.buffer` is read whole before the request is judged, so that a client
//! which pauses halfway through its upload is judged by the mark as it is when the upload ends, and
//! holds nobody up. A longer one is admitted first and streamed behind what was read already.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::headers::trailers::TrailerRules;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// What goes back to the client.
pub(crate) type ClientBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body of known content.
pub(crate) fn full(content: impl Into<Bytes>) -> ClientBody {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    #[error("the body did not arrive within {0:?}")]
    TooSlow(Duration),
    #[error("the body broke off: {0}")]
    Broken(BoxError),
    #[error("the exchange was cut")]
    Cut,
}

/// What was read of a request's body before admission, and the rest, if it is longer.
pub(crate) struct Upload {
    frames: VecDeque<Frame<Bytes>>,
    /// Bytes in `frames`.
    read: u64,
    /// `None`: the body has been read whole.
    rest: Option<Incoming>,
    /// The client sent a Content-Length, so the length is the header's business.
    sized: bool,
}

impl Upload {
    /// Reads up to `buffer` bytes. `max`: the most a body may have; beyond it, too large.
    pub(crate) async fn read(
        mut incoming: Incoming,
        headers: &HeaderMap,
        buffer: u64,
        max: Option<u64>,
        within: Duration,
    ) -> Result<Self, BodyError> {
        let hint = incoming.size_hint();
        if let Some(max) = max
            && hint.lower() > max
        {
            return Err(BodyError::TooLarge(max));
        }
        let mut upload = Self {
            frames: VecDeque::new(),
            read: 0,
            rest: None,
            sized: headers.contains_key(http::header::CONTENT_LENGTH),
        };
        if hint.lower() > buffer {
            // Known to be longer: nothing is gained by reading a part of it first.
            upload.rest = Some(incoming);
            return Ok(upload);
        }
        let reading = async {
            while upload.read <= buffer {
                match incoming.frame().await {
                    None => return Ok(None),
                    Some(Ok(frame)) => {
                        upload.read += frame.data_ref().map_or(0, |data| data.len() as u64);
                        upload.frames.push_back(frame);
                    }
                    Some(Err(error)) => return Err(BodyError::Broken(error.into())),
                }
            }
            Ok(Some(incoming))
        };
        let rest = tokio::time::timeout(within, reading)
            .await
            .map_err(|_| BodyError::TooSlow(within))??;
        upload.rest = rest;
        if let Some(max) = max
            && upload.read > max
        {
            return Err(BodyError::TooLarge(max));
        }
        Ok(upload)
    }

    /// A body of which nothing is read beforehand.
    pub(crate) fn streamed(incoming: Incoming) -> Self {
        Self {
            frames: VecDeque::new(),
            read: 0,
            rest: (!incoming.is_end_stream()).then_some(incoming),
            sized: false,
        }
    }

    /// No body.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            frames: VecDeque::new(),
            read: 0,
            rest: None,
            sized: false,
        }
    }

    /// The whole body, if it has been read whole.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        if self.rest.is_some() {
            return None;
        }
        let mut data = self.frames.iter().filter_map(Frame::data_ref);
        match (data.next(), data.next()) {
            (None, _) => Some(Bytes::new()),
            (Some(only), None) => Some(only.clone()),
            _ => {
                let length = usize::try_from(self.read).unwrap_or(0);
                let mut whole = BytesMut::with_capacity(length);
                for data in self.frames.iter().filter_map(Frame::data_ref) {
                    whole.extend_from_slice(data);
                }
                Some(whole.freeze())
            }
        }
    }

    /// The body as it goes upstream. `over` is cancelled when nothing more of it will be sent: it has been
    /// handed over whole, or was dropped.
    pub(crate) fn send(
        self,
        trailers: TrailerRules,
        max: Option<u64>,
        within: Option<Duration>,
        over: CancellationToken,
    ) -> UpstreamBody {
        let within = within.filter(|_| self.rest.is_some());
        let deadline = within.map(|within| (within, Box::pin(tokio::time::sleep(within))));
        UpstreamBody {
            exact: (self.sized && self.rest.is_none()).then_some(self.read),
            ended: self.frames.is_empty() && self.rest.is_none(),
            frames: self.frames,
            rest: self.rest,
            passed: 0,
            trailers,
            max,
            deadline,
            over,
            cut: None,
        }
    }
}

/// A request's body on its way upstream. Ends with an error (which resets the upstream exchange) when
/// the client breaks off, takes too long, or sends more than it may.
pub(crate) struct UpstreamBody {
    frames: VecDeque<Frame<Bytes>>,
    rest: Option<Incoming>,
    /// Left to send, where the whole body is here and had a Content-Length.
    exact: Option<u64>,
    ended: bool,
    passed: u64,
    trailers: TrailerRules,
    max: Option<u64>,
    deadline: Option<(Duration, Pin<Box<Sleep>>)>,
    /// Cancelled when nothing more of this body will be sent.
    over: CancellationToken,
    /// The exchange was cut: nothing more may be sent. The future is there while there may be something to
    /// wait for.
    cut: Option<(CancellationToken, Option<Cancelled>)>,
}

type Cancelled = Pin<Box<WaitForCancellationFutureOwned>>;

impl UpstreamBody {
    /// Breaks off once `cut` is cancelled. Dropping the response is not enough: an upstream may have
    /// answered whole before the upload's end, and hyper goes on with the upload then.
    pub(crate) fn cut_by(mut self, cut: CancellationToken) -> Self {
        let waited = self.rest.is_some();
        let waited = waited.then(|| Box::pin(cut.clone().cancelled_owned()));
        self.cut = Some((cut, waited));
        self
    }

    /// Whether the exchange was cut. If not, and more of the body has to be waited for, `cx` is woken by it.
    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.cut {
            None => false,
            Some((_, Some(waited))) => waited.as_mut().poll(cx).is_ready(),
            Some((cut, None)) => cut.is_cancelled(),
        }
    }

    /// What may not stand in its trailers.
    pub(crate) fn trailers(&self) -> &TrailerRules {
        &self.trailers
    }

    fn finish(&mut self) {
        self.ended = true;
        self.over.cancel();
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.ended {
            this.finish();
            return Poll::Ready(None);
        }
        if this.is_cut(cx) {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        if let Some(mut frame) = this.frames.pop_front() {
            if let Some(data) = frame.data_ref() {
                let length = data.len() as u64;
                this.passed += length;
                this.exact = this.exact.map(|left| left.saturating_sub(length));
            }
            if let Some(trailers) = frame.trailers_mut() {
                this.trailers.strip(trailers);
            }
            if this.frames.is_empty() && this.rest.is_none() {
                this.finish();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(rest) = &mut this.rest else {
            this.finish();
            return Poll::Ready(None);
        };
        match Pin::new(rest).poll_frame(cx) {
            Poll::Ready(None) => {
                this.rest = None;
                this.finish();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                this.passed += frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Some(max) = this.max
                    && this.passed > max
                {
                    return Poll::Ready(Some(Err(BodyError::TooLarge(max))));
                }
                if let Some(trailers) = frame.trailers_mut() {
                    this.trailers.strip(trailers);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(BodyError::Broken(error.into()))))
            }
            Poll::Pending => {
                if let Some((within, deadline)) = &mut this.deadline {
                    ready!(deadline.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(BodyError::TooSlow(*within))));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.frames.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        match (self.exact, self.ended) {
            (_, true) => SizeHint::with_exact(0),
            (Some(left), false) => SizeHint::with_exact(left),
            (None, false) => match &self.rest {
                Some(rest) if self.frames.is_empty() => rest.size_hint(),
                _ => SizeHint::default(),
            },
        }
    }
}
