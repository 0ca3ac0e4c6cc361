//! The body of a response on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::body::BoxError;
use super::forward::Followed;
use super::headers::trailers::TrailerRules;
use super::pace::Answering;
use super::places::InFlightPlace;
use super::upstream::ResponseBody;
use crate::metrics::ResponseTimer;

/// What goes back to the client.
pub(crate) struct ClientBody {
    content: ReplyContent,
    /// Held until it has been taken or dropped.
    kept: Option<(InFlightPlace, Option<Answering>)>,
}

enum ReplyContent {
    /// It is here; empty: there is none, or no more of it.
    Full(Bytes),
    /// Of an exchange that goes on without its client.
    Followed(Followed),
    /// Of one that does not.
    Passed(Passed),
}

/// The response of an exchange that ends with its client.
struct Passed {
    body: ResponseBody,
    rules: TrailerRules,
    /// `None`: it has ended.
    timer: Option<ResponseTimer>,
}

impl std::fmt::Debug for ClientBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBody").finish_non_exhaustive()
    }
}

impl From<ReplyContent> for ClientBody {
    fn from(content: ReplyContent) -> Self {
        Self {
            content,
            kept: None,
        }
    }
}

/// A body of known content.
pub(crate) fn full(content: impl Into<Bytes>) -> ClientBody {
    ReplyContent::Full(content.into()).into()
}

impl ClientBody {
    pub(super) fn followed(body: Followed) -> Self {
        ReplyContent::Followed(body).into()
    }

    pub(super) fn passed(body: ResponseBody, rules: TrailerRules, timer: ResponseTimer) -> Self {
        let timer = (!body.is_end_stream()).then_some(timer);
        ReplyContent::Passed(Passed { body, rules, timer }).into()
    }

    /// Keeps a request's place until this has been taken or dropped.
    pub(super) fn keep(&mut self, place: InFlightPlace, answering: Option<Answering>) {
        if !self.is_end_stream() {
            self.kept = Some((place, answering));
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().content {
            ReplyContent::Full(content) if content.is_empty() => Poll::Ready(None),
            ReplyContent::Full(content) => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(content)))))
            }
            ReplyContent::Followed(body) => Pin::new(body).poll_frame(cx),
            ReplyContent::Passed(passed) => {
                let Passed { body, rules, timer } = passed;
                let mut frame = Pin::new(&mut *body).poll_frame(cx);
                match &mut frame {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(trailers) = frame.trailers_mut() {
                            rules.strip(trailers);
                        }
                        if body.is_end_stream() {
                            *timer = None;
                        }
                    }
                    Poll::Ready(Some(Err(_)) | None) => *timer = None,
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            ReplyContent::Full(content) => content.is_empty(),
            ReplyContent::Followed(body) => body.is_end_stream(),
            ReplyContent::Passed(passed) => passed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            ReplyContent::Full(content) => SizeHint::with_exact(content.len() as u64),
            ReplyContent::Followed(body) => body.size_hint(),
            ReplyContent::Passed(passed) => passed.body.size_hint(),
        }
    }
}
