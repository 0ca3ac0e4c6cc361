//! The sending of a request: its head, and its body as the socket takes it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;

use super::connection::Http1UpstreamConnection;
use super::head::{self, RequestFraming};
use crate::body::UpstreamRequest;
use crate::body::{RequestBody, UploadError};
use crate::http1::WriteQueue;

/// Room for a usual head and a short body.
const ROOM: usize = 2 << 10;

/// Why a request cannot be written whole.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// Its body broke off, or was cut.
    Body(UploadError),
    /// Its body is not as long as its head says.
    Length,
    Socket(io::Error),
}

/// A request that is being written.
pub(super) struct Outgoing {
    queue: WriteQueue,
    framing: RequestFraming,
    /// `None`: there is none, or it has been written. The drop of the body reports that.
    body: Option<RequestBody>,
    /// The body has ended.
    body_ended: bool,
    /// Everything is in the kernel.
    whole: bool,
    /// A connection has taken a part of the request.
    begun: bool,
}

impl Outgoing {
    pub(super) fn new(request: UpstreamRequest) -> Self {
        let UpstreamRequest { head, body, .. } = request;
        let mut out = Vec::with_capacity(ROOM);
        let ended = body.is_end_stream();
        let framing = head::write(&head, ended, body.size_hint().exact(), &mut out);
        Self {
            queue: WriteQueue::new(out),
            framing,
            body_ended: ended && framing == RequestFraming::Length(0),
            body: Some(body),
            whole: false,
            begun: false,
        }
    }

    /// Keeps the request so that it can be sent again. False if it has content to come.
    pub(super) fn keep(&mut self) -> bool {
        if self.body_ended {
            self.queue.keep();
        }
        self.body_ended
    }

    /// Begins again with a request that was kept.
    pub(super) fn rewind(&mut self) {
        self.queue.rewind();
        (self.whole, self.begun) = (false, false);
    }

    /// Whether all of it is in the kernel.
    pub(super) const fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether no connection has taken a byte, so that another one may carry the request.
    pub(super) const fn is_untouched(&self) -> bool {
        !self.begun
    }

    /// Sends nothing more of it.
    pub(super) fn discard(&mut self) {
        self.body = None;
    }

    /// Whether it waits for the socket, and not for the client.
    pub(super) fn is_stuck(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Writes as much as possible. Ready when everything is in the kernel.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1UpstreamConnection,
    ) -> Poll<Result<(), Unwritten>> {
        while !self.is_whole() {
            // First, so that head and available body go out in one system call.
            self.gather(cx)?;
            if self.is_stuck() {
                let wrote = connection.poll_write(cx, &mut self.queue);
                ready!(wrote).map_err(Unwritten::Socket)?;
                self.begun = true;
                continue;
            }
            ready!(connection.poll_flush(cx)).map_err(Unwritten::Socket)?;
            if !self.body_ended {
                // The body was polled above and wakes this task.
                return Poll::Pending;
            }
            self.body = None;
            self.whole = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Queues the available body, up to one write.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), Unwritten> {
        while self.queue.has_room() && !self.body_ended {
            let Some(body) = &mut self.body else { break };
            let frame = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(frame) => frame.transpose().map_err(Unwritten::Body)?,
            };
            let last = frame.is_none() || body.is_end_stream();
            if let Some(data) = frame.and_then(|frame| frame.into_data().ok()) {
                self.take(data)?;
            }
            if last {
                self.end()?;
            }
        }
        Ok(())
    }

    fn take(&mut self, data: Bytes) -> Result<(), Unwritten> {
        if let RequestFraming::Length(left) = &mut self.framing {
            let length = data.len() as u64;
            *left = left.checked_sub(length).ok_or(Unwritten::Length)?;
        }
        self.queue
            .push(data, self.framing == RequestFraming::Chunked);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Unwritten> {
        match self.framing {
            RequestFraming::Length(0) => {}
            RequestFraming::Length(_) => return Err(Unwritten::Length),
            RequestFraming::Chunked => self.queue.push_last_chunk(std::iter::empty()),
        }
        self.body_ended = true;
        Ok(())
    }
}
