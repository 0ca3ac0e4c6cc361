//! Bodies on their way through: read up to a limit before admission, streamed beyond it.
//!
//! A body that fits in `body.buffer` is read whole before the request is judged, so that a client
//! which pauses halfway through its upload is judged by the mark as it is when the upload ends, and
//! holds nobody up. A longer one is admitted first and streamed behind what was read already.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::headers::trailers::TrailerRules;
use super::memory::{Memory, NoRoom, Pieces};
use super::pace::{Flow, Pace};
use super::rate::{LeastRate, Rate};
use super::received::Received;
use crate::config::BodySettings;
use crate::metrics::Limit;
use crate::wire::{
    self,
    head::{HeadError, HeadLimits},
};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// So much of a body that is known to be longer than `body.buffer` is read before admission. A client
/// that announces one and sends nothing holds up nobody.
const BEGINNING: u64 = 16 << 10;

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    #[error("the body did not arrive within {0:?}")]
    TooSlow(Duration),
    #[error("no byte of the body arrived for {0:?}")]
    Paused(Duration),
    #[error("on average less than {0} bytes of the body arrived in a second")]
    TooLow(u64),
    /// All places are taken, and this request's waits for its client.
    #[error("places were needed, and the client was behind with its body")]
    Crowded,
    #[error("there is no room for the body")]
    NoRoom,
    #[error("the body broke off: {0}")]
    Broken(BoxError),
    /// A limit of HTTP/2's trailers. Those of HTTP/1 have been read before.
    #[error("{0}")]
    Trailers(wire::chunked::BodyError),
    #[error("the exchange was cut")]
    Cut,
}

/// What holds for the body of one request.
#[derive(Clone)]
pub(crate) struct BodyRules {
    pub settings: BodySettings,
    pub memory: Arc<Memory>,
    /// Of a trailer section.
    pub trailers: HeadLimits,
    /// `limits.body_rate`, where it holds.
    pub least: Option<LeastRate>,
}

impl BodyRules {
    /// Counts a limit that was reached. Want of room is counted where it is found.
    fn count(&self, error: &BodyError) {
        let limit = match error {
            BodyError::TooLarge(_) => Limit::BodyMax,
            BodyError::TooSlow(_) => Limit::BodyTimeout,
            BodyError::Paused(_) => Limit::BodyProgress,
            BodyError::TooLow(_) => Limit::BodyRate,
            BodyError::Crowded => Limit::SlowClients,
            BodyError::Trailers(wire::chunked::BodyError::Trailer(HeadError::Fields(_))) => {
                Limit::HeaderCount
            }
            BodyError::Trailers(_) => Limit::HeaderBytes,
            BodyError::NoRoom | BodyError::Broken(_) | BodyError::Cut => return,
        };
        self.memory.metrics.limit(limit);
    }

    /// Refuses trailers that are over a limit.
    fn check(&self, frame: &Frame<Bytes>) -> Result<(), BodyError> {
        /// Of a line on HTTP/1: the colon, a space, and its end.
        const LINE: usize = 4;
        let Some(trailers) = frame.trailers_ref() else {
            return Ok(());
        };
        let lines = trailers.iter();
        let bytes = lines.map(|(name, value)| name.as_str().len() + value.len() + LINE);
        let limits = self.trailers;
        let error = if trailers.len() > limits.fields {
            HeadError::Fields(limits.fields)
        } else if bytes.sum::<usize>() > limits.bytes {
            HeadError::Bytes(limits.bytes)
        } else {
            return Ok(());
        };
        Err(BodyError::Trailers(wire::chunked::BodyError::Trailer(
            error,
        )))
    }

    /// Refuses a body that is known to be too long before it is read.
    pub(crate) fn admit(&self, incoming: &Received) -> Result<(), BodyError> {
        match self.settings.max {
            Some(max) if incoming.size_hint().lower() > max => Err(BodyError::TooLarge(max)),
            _ => Ok(()),
        }
    }
}

/// What was read of a request's body before admission, and the rest, if it is longer.
pub(crate) struct Upload {
    pieces: Pieces,
    /// `None`: the body has been read whole.
    rest: Option<Received>,
    /// The client sent a Content-Length, so the length is the header's business.
    sized: bool,
    /// `None` only where there is nothing they could hold for.
    rules: Option<BodyRules>,
}

impl Upload {
    /// Reads up to `body.buffer` bytes. `hold`: when that has passed, what has not come is left to be streamed.
    pub(crate) async fn read(
        incoming: Received,
        headers: &HeaderMap,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, BodyError> {
        let read = Self::read_within(incoming, headers, rules, hold).await;
        read.inspect_err(|error| rules.count(error))
    }

    async fn read_within(
        mut incoming: Received,
        headers: &HeaderMap,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, BodyError> {
        let limits = rules.settings;
        rules.admit(&incoming)?;
        let mut upload = Self {
            pieces: Pieces::new(Some(rules.memory.share())),
            rest: None,
            sized: headers.contains_key(http::header::CONTENT_LENGTH),
            rules: Some(rules.clone()),
        };
        if limits.buffer == 0 && !incoming.is_end_stream() {
            upload.rest = Some(incoming);
            return Ok(upload);
        }
        if let Some(content) = incoming.take_whole(limits.buffer) {
            // It has come with its head: there is nobody to wait for.
            let frame = Frame::data(content);
            if !is_empty(&frame) {
                upload
                    .pieces
                    .push(frame)
                    .map_err(|NoRoom| BodyError::NoRoom)?;
            }
            upload.pieces.seal();
            return Ok(upload);
        }
        let wanted = if incoming.size_hint().lower() > limits.buffer {
            BEGINNING.min(limits.buffer)
        } else {
            limits.buffer.saturating_add(1)
        };
        let began = Instant::now();
        let mut moved = began;
        let least = rules.least.as_ref();
        let mut rate = least.map(|least| Rate::new(least, limits.progress_timeout));
        let streamed_from = hold.map(|hold| began + hold);
        while upload.pieces.length() < wanted {
            let (whole, pause) = (began + limits.timeout, moved + limits.progress_timeout);
            let end = whole.min(pause);
            let until = streamed_from.map_or(end, |from| from.min(end));
            let sample = rate.as_ref().map(Rate::next).filter(|next| *next < until);
            let next = sample.unwrap_or(until);
            let crowded = rate.as_ref().and_then(Rate::crowded);
            let frame = tokio::time::timeout_at(next, incoming.frame());
            let frame = tokio::select! {
                biased;
                frame = frame => frame,
                () = cancelled(crowded) => return Err(BodyError::Crowded),
            };
            let frame = match frame {
                Ok(Some(frame)) => frame.map_err(BodyError::Broken)?,
                Ok(None) => {
                    upload.pieces.seal();
                    return Ok(upload);
                }
                Err(_) if sample.is_some() => {
                    if let Some(rate) = &mut rate
                        && !rate.sampled(true)
                    {
                        return Err(BodyError::TooLow(rate.least()));
                    }
                    continue;
                }
                Err(_) if until < end => break,
                Err(_) if pause < whole => return Err(BodyError::Paused(limits.progress_timeout)),
                Err(_) => return Err(BodyError::TooSlow(limits.timeout)),
            };
            if is_empty(&frame) {
                // An empty DATA frame of HTTP/2: no progress, and nothing to keep.
                continue;
            }
            moved = Instant::now();
            if let Some(rate) = &mut rate {
                rate.received(frame.data_ref().map_or(0, Bytes::len));
            }
            rules.check(&frame)?;
            upload
                .pieces
                .push(frame)
                .map_err(|NoRoom| BodyError::NoRoom)?;
            if let Some(max) = limits.max
                && upload.pieces.length() > max
            {
                return Err(BodyError::TooLarge(max));
            }
        }
        upload.pieces.seal();
        upload.rest = Some(incoming);
        Ok(upload)
    }

    /// A body of which nothing is read beforehand.
    pub(crate) fn streamed(incoming: Received, rules: &BodyRules) -> Result<Self, BodyError> {
        rules
            .admit(&incoming)
            .inspect_err(|error| rules.count(error))?;
        Ok(Self {
            pieces: Pieces::new(None),
            rest: (!incoming.is_end_stream()).then_some(incoming),
            sized: false,
            rules: Some(rules.clone()),
        })
    }

    /// A body of which nothing is read, and that may take as long as it likes.
    #[cfg(test)]
    pub(crate) fn unlimited(incoming: Received) -> Self {
        Self {
            rest: Some(incoming),
            ..Self::empty()
        }
    }

    /// No body.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            pieces: Pieces::new(None),
            rest: None,
            sized: false,
            rules: None,
        }
    }

    /// The whole body, if it has been read whole.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        self.rest.is_none().then(|| self.pieces.joined())
    }

    /// Its trailers, if they have come.
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.pieces.trailers()
    }

    /// The body of a fenced request as it goes upstream. `over` is cancelled when nothing more of it will be
    /// sent: it has been handed over whole, or was dropped. It has a deadline as a whole: a barrier is held.
    pub(crate) fn send(self, trailers: TrailerRules, over: CancellationToken) -> UpstreamBody {
        let pace = |rules: &BodyRules| {
            let limits = rules.settings;
            Pace::new(
                Some(limits.timeout),
                limits.progress_timeout,
                rules.least.as_ref(),
            )
        };
        self.send_at(trailers, pace, Some(over), None)
    }

    /// The body of a request that nobody judges. It holds nobody up, and a long upload that moves is none of
    /// the proxy's business (images, backups, gRPC streams): only a client that pauses is cut.
    pub(super) fn send_unfenced(self, trailers: TrailerRules, flow: Arc<Flow>) -> UpstreamBody {
        let pace = |rules: &BodyRules| {
            Pace::new(None, rules.settings.progress_timeout, rules.least.as_ref())
        };
        self.send_at(trailers, pace, None, Some(flow))
    }

    fn send_at(
        self,
        trailers: TrailerRules,
        pace: impl FnOnce(&BodyRules) -> Pace,
        over: Option<CancellationToken>,
        flow: Option<Arc<Flow>>,
    ) -> UpstreamBody {
        let streamed = self.rules.filter(|_| self.rest.is_some());
        UpstreamBody {
            exact: (self.sized && self.rest.is_none()).then_some(self.pieces.length()),
            ended: self.pieces.is_empty() && self.rest.is_none(),
            pieces: self.pieces,
            rest: self.rest,
            passed: 0,
            trailers,
            pace: streamed.map(|rules| Box::new((pace(&rules), rules))),
            over,
            flow,
            cut: None,
        }
    }
}

async fn cancelled(token: Option<CancellationToken>) {
    match token {
        Some(token) => token.cancelled_owned().await,
        None => std::future::pending().await,
    }
}

fn is_empty(frame: &Frame<Bytes>) -> bool {
    frame.data_ref().is_some_and(Bytes::is_empty)
}

/// A request's body on its way upstream. Ends with an error (which resets the upstream exchange) when
/// the client breaks off, takes too long, or sends more than it may.
pub(crate) struct UpstreamBody {
    pieces: Pieces,
    rest: Option<Received>,
    /// Left to send, where the whole body is here and had a Content-Length.
    exact: Option<u64>,
    ended: bool,
    passed: u64,
    trailers: TrailerRules,
    /// `None`: the whole body is here.
    pace: Option<Box<(Pace, BodyRules)>>,
    /// Cancelled by the drop: nothing more of this body will be sent. `None`: not fenced.
    over: Option<CancellationToken>,
    /// Told of the drop, too. `None`: fenced.
    flow: Option<Arc<Flow>>,
    /// The exchange was cut: nothing more may be sent. The future is there while there may be something to
    /// wait for.
    cut: Option<(CancellationToken, Option<Cancelled>)>,
}

type Cancelled = Pin<Box<WaitForCancellationFutureOwned>>;

impl UpstreamBody {
    /// Breaks off once `cut` is cancelled. Dropping the response is not enough: an upstream may have
    /// answered whole before the upload's end, and the upload goes on then.
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

    /// Breaks off by an own limit.
    fn fail(&self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some((_, rules)) = self.pace.as_deref() {
            rules.count(&error);
        }
        Poll::Ready(Some(Err(error)))
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        if let Some(over) = &self.over {
            over.cancel();
        }
        if let Some(flow) = &self.flow {
            flow.sent();
        }
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
            return Poll::Ready(None);
        }
        if this.is_cut(cx) {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        if let Some(mut frame) = this.pieces.pop() {
            if let Some(data) = frame.data_ref() {
                let length = data.len() as u64;
                this.passed += length;
                this.exact = this.exact.map(|left| left.saturating_sub(length));
            }
            if let Some(trailers) = frame.trailers_mut() {
                this.trailers.strip(trailers);
            }
            if let Some(flow) = &this.flow {
                flow.moved();
            }
            if this.pieces.is_empty() && this.rest.is_none() {
                // It is not sent before it has been written: the drop says so.
                this.ended = true;
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(rest) = &mut this.rest else {
            this.ended = true;
            return Poll::Ready(None);
        };
        match Pin::new(rest).poll_frame(cx) {
            Poll::Ready(None) => {
                this.rest = None;
                this.ended = true;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                this.passed += length as u64;
                if let Some((pace, rules)) = this.pace.as_deref_mut() {
                    if !is_empty(&frame) {
                        pace.moved(length);
                    }
                    if let Err(error) = rules.check(&frame) {
                        return this.fail(error);
                    }
                    if let Some(max) = rules.settings.max
                        && this.passed > max
                    {
                        return this.fail(BodyError::TooLarge(max));
                    }
                }
                if let Some(flow) = &this.flow {
                    flow.moved();
                }
                if let Some(trailers) = frame.trailers_mut() {
                    this.trailers.strip(trailers);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(BodyError::Broken(error)))),
            Poll::Pending => {
                let due = this.flow.as_ref().is_none_or(|flow| {
                    flow.waits();
                    flow.client_is_due()
                });
                let Some((pace, _)) = this.pace.as_deref_mut() else {
                    return Poll::Pending;
                };
                let error = ready!(pace.wait(cx, due));
                this.fail(error)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.pieces.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        match (self.exact, self.ended) {
            (_, true) => SizeHint::with_exact(0),
            (Some(left), false) => SizeHint::with_exact(left),
            (None, false) => match &self.rest {
                Some(rest) if self.pieces.is_empty() => rest.size_hint(),
                _ => SizeHint::default(),
            },
        }
    }
}
