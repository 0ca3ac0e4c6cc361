//! The body of a response on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::body::{Answering, BoxError};
use crate::metrics::ResponseTimer;
use crate::proxy::facts::ResponseWatch;
use crate::proxy::headers::TrailerRules;
use crate::proxy::limits::InFlightPermit;
use crate::proxy::log::AccessRecord;
use crate::traces::RequestSpanGuard;
use crate::upstream::ResponseBody;

/// The body that goes back to the client. It ends cleanly only if the upstream's did.
pub struct ClientBody {
    source: ReplySource,
    framing: AnswerFraming,
    /// Held until the body has been taken or dropped.
    kept: Option<(InFlightPermit, Option<Answering>)>,
    /// Ends when this has been taken or dropped. Most requests are neither logged nor traced.
    written: Option<Box<WrittenAtEnd>>,
    /// Stops when this has been taken or dropped.
    timer: Option<ResponseTimer>,
}

/// The log line and the span that end with an answer.
#[derive(Default)]
struct WrittenAtEnd {
    /// The line about the request, if it gets one.
    logged: Option<AccessRecord>,
    /// The request's span, if it is traced.
    span: Option<RequestSpanGuard>,
}

/// The framing of a body.
#[derive(Clone, Copy)]
pub(crate) struct AnswerFraming {
    over: bool,
    /// As it is at the start: a server asks once, to frame the response as the upstream did.
    hint: SizeHint,
}

enum ReplySource {
    /// All of it, or all that is left.
    Whole(Option<Frame<Bytes>>),
    /// An exchange that goes on without its client.
    Relayed(mpsc::Receiver<RelayedFrame>),
    /// An exchange that ends with its client.
    Passed(ResponseBody, TrailerRules, Option<ResponseWatch>),
}

/// One message from an exchange that goes on without its client.
pub(crate) enum RelayedFrame {
    Next(Frame<Bytes>),
    /// The response is whole with this frame; `None`: it was before.
    Last(Option<Frame<Bytes>>),
}

impl std::fmt::Debug for ClientBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBody").finish_non_exhaustive()
    }
}

impl AnswerFraming {
    /// Of an unread body.
    pub(crate) fn of(body: &impl Body) -> Self {
        Self {
            over: body.is_end_stream(),
            hint: body.size_hint(),
        }
    }
}

/// A body of known content.
#[must_use]
pub fn full(content: impl Into<Bytes>) -> ClientBody {
    let content = content.into();
    let framing = AnswerFraming {
        over: content.is_empty(),
        hint: SizeHint::with_exact(content.len() as u64),
    };
    ClientBody::whole(framing, Some(Frame::data(content)))
}

impl ClientBody {
    fn new(source: ReplySource, framing: AnswerFraming) -> Self {
        Self {
            source,
            framing,
            kept: None,
            written: None,
            timer: None,
        }
    }

    /// Of an exchange that is over: `frame` is all of it.
    pub(crate) fn whole(framing: AnswerFraming, frame: Option<Frame<Bytes>>) -> Self {
        Self::new(ReplySource::Whole(frame), framing)
    }

    /// Of an exchange that goes on without its client.
    pub(crate) fn relayed(framing: AnswerFraming, frames: mpsc::Receiver<RelayedFrame>) -> Self {
        Self::new(ReplySource::Relayed(frames), framing)
    }

    /// Of an exchange that ends with its client.
    pub(crate) fn passed(body: ResponseBody, rules: TrailerRules, watch: ResponseWatch) -> Self {
        let framing = AnswerFraming::of(&body);
        let watch = if framing.over {
            watch.end(true);
            None
        } else {
            Some(watch)
        };
        Self::new(ReplySource::Passed(body, rules, watch), framing)
    }

    /// Has the request logged when this has been taken or dropped.
    pub(crate) fn log(&mut self, record: AccessRecord) {
        self.written.get_or_insert_default().logged = Some(record);
        self.note(None);
    }

    /// Measures and traces the request until this has been taken or dropped.
    pub(crate) fn time(&mut self, timer: ResponseTimer, span: Option<RequestSpanGuard>) {
        if !self.framing.over {
            self.timer = Some(timer);
            if span.is_some() {
                self.written.get_or_insert_default().span = span;
            }
        }
    }

    /// Notes what the client has taken.
    fn note(&mut self, frame: Option<&Frame<Bytes>>) {
        let written = self.written.as_mut();
        if let Some(record) = written.and_then(|written| written.logged.as_mut()) {
            let data = frame.and_then(Frame::data_ref);
            record.bytes += data.map_or(0, |data| data.len() as u64);
            record.whole = self.framing.over;
        }
    }

    /// Keeps a request's permit until this has been taken or dropped.
    pub(crate) fn keep(&mut self, permit: InFlightPermit, answering: Option<Answering>) {
        if !self.framing.over {
            self.kept = Some((permit, answering));
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self {
            source, framing, ..
        } = &mut *self;
        if framing.over {
            return Poll::Ready(None);
        }
        let (frame, over) = match source {
            ReplySource::Whole(frame) => (frame.take().map(Ok), true),
            ReplySource::Relayed(frames) => match ready!(frames.poll_recv(cx)) {
                Some(RelayedFrame::Next(frame)) => (Some(Ok(frame)), false),
                Some(RelayedFrame::Last(frame)) => (frame.map(Ok), true),
                None => (
                    Some(Err("the upstream's response is incomplete".into())),
                    true,
                ),
            },
            ReplySource::Passed(body, rules, watch) => {
                let mut frame = ready!(Pin::new(&mut *body).poll_frame(cx));
                if let Some(Ok(frame)) = &mut frame
                    && let Some(trailers) = frame.trailers_mut()
                {
                    rules.strip(trailers);
                }
                let over = body.is_end_stream() || !matches!(frame, Some(Ok(_)));
                if over && let Some(watch) = watch.take() {
                    watch.end(frame.as_ref().is_none_or(Result::is_ok));
                }
                (frame, over)
            }
        };
        framing.over = over;
        let whole = frame.as_ref().is_none_or(Result::is_ok);
        if whole {
            self.note(frame.as_ref().and_then(|frame| frame.as_ref().ok()));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.framing.over
    }

    fn size_hint(&self) -> SizeHint {
        self.framing.hint
    }
}
