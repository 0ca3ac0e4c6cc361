//! The body of a request on its way upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::deadlines::{UploadDeadlines, UploadProgress};
use super::error::UploadError;
use super::memory::BufferedBody;
use super::received::Received;
use super::rules::BodyRules;

/// A request's body on its way upstream. Ends with an error (which resets the upstream exchange)
/// when the client breaks off, takes too long, or sends more than it may.
pub(crate) struct UpstreamBody {
    pieces: BufferedBody,
    rest: Option<Received>,
    /// Left to send, where the whole body is here and had a Content-Length.
    exact: Option<u64>,
    ended: bool,
    passed: u64,
    /// `None`: the whole body is here.
    deadlines: Option<Box<(UploadDeadlines, BodyRules)>>,
    /// Told of the drop, too: nothing more of this body will be sent.
    progress: Arc<UploadProgress>,
    /// The client has to go on sending, whatever the upstream does.
    fenced: bool,
}

impl UpstreamBody {
    /// The part that was read beforehand goes first, then `rest`.
    pub(super) fn new(
        (pieces, rest): (BufferedBody, Option<Received>),
        sized: bool,
        deadlines: Option<(UploadDeadlines, BodyRules)>,
        (progress, fenced): (Arc<UploadProgress>, bool),
    ) -> Self {
        Self {
            exact: (sized && rest.is_none()).then_some(pieces.length()),
            ended: pieces.is_empty() && rest.is_none(),
            pieces,
            rest,
            passed: 0,
            deadlines: deadlines.map(Box::new),
            progress,
            fenced,
        }
    }

    /// Breaks off: the client has, or has reached a limit.
    fn fail(&self, error: UploadError) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        if let Some((_, rules)) = self.deadlines.as_deref() {
            rules.count(&error);
        }
        if self.fenced {
            return Poll::Ready(Some(Err(error)));
        }
        self.progress.failed(error);
        Poll::Ready(Some(Err(UploadError::Cut)))
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        self.progress.sent();
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(data) = this.pieces.pop() {
            let length = data.len() as u64;
            this.passed += length;
            this.exact = this.exact.map(|left| left.saturating_sub(length));
            this.progress.moved();
            if this.pieces.is_empty() && this.rest.is_none() {
                // It is not sent before it has been written: the drop says so.
                this.ended = true;
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
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
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                this.passed += length as u64;
                if let Some((deadlines, rules)) = this.deadlines.as_deref_mut() {
                    if !is_empty(&frame) {
                        deadlines.moved();
                    }
                    if let Some(max) = rules.settings.max
                        && this.passed > max
                    {
                        return this.fail(UploadError::TooLarge(max));
                    }
                }
                this.progress.moved();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => this.fail(UploadError::Broken(error)),
            Poll::Pending => {
                this.progress.waits();
                let due = this.fenced || this.progress.client_is_due();
                let Some((deadlines, _)) = this.deadlines.as_deref_mut() else {
                    return Poll::Pending;
                };
                let error = ready!(deadlines.wait(cx, due));
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

/// Says if it is an empty DATA frame.
fn is_empty(frame: &Frame<Bytes>) -> bool {
    frame.data_ref().is_some_and(Bytes::is_empty)
}
