//! The body of a response on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::body::BoxError;
use crate::proxy::exchange::reply::{RelayedFrame, Reply};
use crate::proxy::limits::InFlightPermit;
use crate::proxy::log::AnswerRecord;

/// The body that goes back to the client. It ends cleanly only if the upstream's did.
pub struct ClientBody {
    source: ReplySource,
    over: bool,
    /// As it is at the start: a server asks once, to frame the response as the upstream did.
    length: Option<u64>,
    /// Held until the body has been taken or dropped.
    permit: Option<InFlightPermit>,
    /// Ends when this has been taken or dropped.
    record: Option<Box<AnswerRecord>>,
}

/// Where the bytes of a body come from.
pub(super) enum ReplySource {
    /// An exchange that is over.
    Whole(Bytes),
    /// An exchange that goes on without its client.
    Relayed(mpsc::Receiver<RelayedFrame>),
    /// An exchange that ends with its client.
    Passed(Box<Reply>),
}

/// A body of known content.
pub fn full(content: impl Into<Bytes>) -> ClientBody {
    let content = content.into();
    let length = Some(content.len() as u64);
    ClientBody::new(ReplySource::Whole(content), length)
}

impl ClientBody {
    /// `length`: as the upstream has said it.
    pub(super) fn new(source: ReplySource, length: Option<u64>) -> Self {
        Self {
            over: length == Some(0),
            source,
            length,
            permit: None,
            record: None,
        }
    }

    /// Keeps the record of the answer until this has been taken or dropped.
    pub(super) fn record(&mut self, mut record: AnswerRecord) {
        record.whole = self.over;
        if !self.over {
            self.record = Some(Box::new(record));
        }
    }

    /// Keeps a request's permit until this has been taken or dropped.
    pub(super) fn keep(&mut self, permit: InFlightPermit) {
        if !self.over {
            self.permit = Some(permit);
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
        if self.over {
            return Poll::Ready(None);
        }
        let (frame, over) = match &mut self.source {
            ReplySource::Whole(content) => {
                let content = std::mem::take(content);
                let frame = (!content.is_empty()).then(|| Ok(Frame::data(content)));
                (frame, true)
            }
            ReplySource::Relayed(frames) => match ready!(frames.poll_recv(cx)) {
                Some(RelayedFrame::Next(frame)) => (Some(Ok(frame)), false),
                Some(RelayedFrame::Last { frame, .. }) => (frame.map(Ok), true),
                None => (
                    Some(Err("the upstream's response is incomplete".into())),
                    true,
                ),
            },
            ReplySource::Passed(reply) => {
                let frame = ready!(reply.poll_frame(cx));
                let over = reply.is_end() || !matches!(frame, Some(Ok(_)));
                (frame, over)
            }
        };
        self.over = over;
        // A body that broke off is not whole.
        if let Some(record) = &mut self.record
            && !matches!(frame, Some(Err(_)))
        {
            let data = frame
                .as_ref()
                .and_then(|frame| frame.as_ref().ok()?.data_ref());
            record.bytes += data.map_or(0, |data| data.len() as u64);
            record.whole = over;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
