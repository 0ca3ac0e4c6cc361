//! The sending of a request: its head, and its body as the socket takes it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Method;
use http_body::Body as _;
use tokio::io::AsyncWrite as _;

use super::connection::Http1UpstreamConnection;
use crate::body::{RequestBody, UpstreamRequest};
use crate::http1::content::{Framing, content_length};
use crate::http1::names::{CONTENT_LENGTH, TRANSFER_ENCODING};
use crate::http1::{RequestHead, WriteQueue, title_line};
use crate::upstream::connect::SendError;

/// Room for a usual head and a short body.
const ROOM: usize = 2 << 10;

/// Why a request cannot be written whole.
pub(super) enum Unwritten {
    /// Its body broke off, was cut, or is not as long as its head says.
    Body(SendError),
    Socket(io::Error),
}

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
    queue: WriteQueue,
    /// `None`: there is none, or it has been written. The drop of the body reports that.
    body: Option<RequestBody>,
    /// The body has ended.
    body_ended: bool,
    pub state: SendState,
    /// A connection has taken a part of the request: no other one may carry it.
    pub begun: bool,
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
            begun: false,
        }
    }

    /// Sends nothing more of it.
    pub(super) fn stop(&mut self) {
        if self.state == SendState::UnderWay {
            self.state = SendState::Stopped;
        }
        self.body = None;
    }

    /// Writes as much as possible. Ready when everything is in the kernel.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1UpstreamConnection,
    ) -> Poll<Result<(), Unwritten>> {
        while self.state == SendState::UnderWay {
            // First, so that head and available body go out in one system call.
            self.gather(cx).map_err(Unwritten::Body)?;
            if !self.queue.is_empty() {
                let wrote = self.queue.poll_write(&mut connection.io, cx);
                ready!(wrote).map_err(Unwritten::Socket)?;
                self.begun = true;
                continue;
            }
            let flushed = Pin::new(&mut connection.io).poll_flush(cx);
            ready!(flushed).map_err(Unwritten::Socket)?;
            if !self.body_ended {
                // The body was polled above and wakes this task.
                return Poll::Pending;
            }
            self.body = None;
            self.state = SendState::Whole;
        }
        Poll::Ready(Ok(()))
    }

    /// Queues the available body, up to one write.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), SendError> {
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
