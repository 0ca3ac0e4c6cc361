//! A request on its way out: its head, and its body as there is room for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Method;
use http_body::Body as _;

use crate::body::{RequestBody, UpstreamRequest};
use crate::http1::content::{Framing, content_length};
use crate::http1::names::{CONTENT_LENGTH, TRANSFER_ENCODING};
use crate::http1::{RequestHead, WriteQueue, title_line};
use crate::upstream::connect::SendError;

/// Room for a usual head and a short body.
const ROOM: usize = 2 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SendState {
    UnderWay,
    /// Everything is in the kernel.
    Whole,
    /// Nothing more of it is sent.
    Stopped,
}

/// A request that is being written.
pub(super) struct Outgoing {
    pub queue: WriteQueue,
    /// `None`: there is none, or it has been written. The drop of the body reports that.
    body: Option<RequestBody>,
    /// The body has ended.
    pub body_ended: bool,
    pub state: SendState,
}

impl Outgoing {
    pub(super) fn new(request: UpstreamRequest) -> Self {
        let UpstreamRequest { head, body, .. } = request;
        let mut queue = WriteQueue::default();
        queue.end().reserve(ROOM);
        let ended = body.is_end_stream();
        let length = if ended {
            Some(0)
        } else {
            body.size_hint().exact()
        };
        write_head(&head, length, &mut queue);
        Self {
            body_ended: ended && queue.framing == Framing::Length(0),
            queue,
            body: Some(body),
            state: SendState::UnderWay,
        }
    }

    /// Sends nothing more of it: everything is written, or the rest is not wanted.
    pub(super) fn end(&mut self, state: SendState) {
        if self.state == SendState::UnderWay {
            self.state = state;
        }
        self.body = None;
    }

    /// Queues the available body, up to one write.
    ///
    /// # Errors
    ///
    /// The body broke off, was cut, or is not as long as its head says.
    pub(super) fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), SendError> {
        while self.queue.has_room() && !self.body_ended {
            let Some(body) = &mut self.body else { break };
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) else {
                break;
            };
            let frame = frame.transpose().map_err(SendError::Body)?;
            self.body_ended = frame.is_none() || body.is_end_stream();
            let data = frame.and_then(|frame| frame.into_data().ok());
            let fits = data.is_none_or(|data| self.queue.push(data));
            if !fits || self.body_ended && !self.queue.push_end(None) {
                self.state = SendState::Stopped;
                let why = "the body is not as long as its Content-Length says";
                return Err(SendError::Broken(why.to_owned()));
            }
        }
        Ok(())
    }
}

/// Writes the head of a request. `length`: that of the body, where it is known; otherwise it goes in
/// chunks.
fn write_head(head: &RequestHead, length: Option<u64>, queue: &mut WriteQueue) {
    let out = queue.end();
    for part in [
        head.method.as_str(),
        " ",
        head.target.as_str(),
        " HTTP/1.1\r\n",
    ] {
        out.extend_from_slice(part.as_bytes());
    }
    head.fields.write_to(out);
    let announced = head.fields.get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| content_length(length).ok());
    // An empty POST says so (RFC 9110, 8.6: a sender should), since some servers answer 411 otherwise.
    let sends = matches!(head.method, Method::POST | Method::PUT | Method::PATCH);
    match length {
        _ if announced.is_some() => {}
        Some(0) if !sends => {}
        Some(length) => title_line(CONTENT_LENGTH, length.to_string().as_bytes(), out),
        None => title_line(TRANSFER_ENCODING, b"chunked", out),
    }
    out.extend_from_slice(b"\r\n");
    queue.framing = announced
        .or(length)
        .map_or(Framing::Chunked, Framing::Length);
}
