//! A request on its way out: its head, and its body as the socket takes it.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, Request};
use http_body::Body as _;

use super::connection::Http1UpstreamConnection;
use super::head::{self, RequestFraming};
use crate::proxy::body::{UploadError, UpstreamBody};
use crate::proxy::spare;

/// A piece of a body that is no longer is copied behind what goes before it.
const COPIED: usize = 8 << 10;
/// No more is gathered before it is written.
const GATHERED: usize = 16 << 10;

/// Why a request cannot be written whole.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// Its body broke off, or was cut.
    Body(UploadError),
    /// Its body is not as long as its head says.
    Length,
    Socket(io::Error),
}

/// A request on its way out.
pub(super) struct Outgoing {
    /// What comes first, and how much of it has been written.
    out: Vec<u8>,
    at: usize,
    /// What comes behind it, and behind that.
    data: Bytes,
    behind: Vec<u8>,
    framing: RequestFraming,
    /// `None`: all has been written. Dropped only then: its drop says so.
    body: Option<UpstreamBody>,
    /// Nothing more comes of it.
    body_ended: bool,
    /// A connection has taken a part.
    begun: bool,
}

impl Outgoing {
    pub(super) fn new(request: Request<UpstreamBody>) -> Self {
        let (head, body) = request.into_parts();
        let mut out = spare::buffer();
        let ended = body.is_end_stream();
        let framing = head::write(&head, ended, body.size_hint().exact(), &mut out);
        spare::keep_map(head.headers);
        Self {
            out,
            at: 0,
            data: Bytes::new(),
            behind: Vec::new(),
            framing,
            body_ended: ended && framing == RequestFraming::Length(0),
            body: Some(body),
            begun: false,
        }
    }

    /// Whether all of it is in the kernel.
    pub(super) const fn is_whole(&self) -> bool {
        self.body.is_none()
    }

    /// Whether no connection has taken any of it: it may go over another one.
    pub(super) const fn is_untouched(&self) -> bool {
        !self.begun
    }

    /// Whether there is something to write: it waits for the socket, and not for the client.
    pub(super) fn is_stuck(&self) -> bool {
        self.at < self.out.len() || !self.data.is_empty()
    }

    /// Writes what can be written. Ready when all of it is in the kernel.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1UpstreamConnection,
    ) -> Poll<Result<(), Unwritten>> {
        while !self.is_whole() {
            // First: what is there of the body goes with the head, in one system call.
            self.gather(cx)?;
            if self.is_stuck() {
                let wrote = connection.poll_write(cx, &self.out[self.at..], &self.data);
                let count = ready!(wrote).map_err(Unwritten::Socket)?;
                self.begun = true;
                let of_out = count.min(self.out.len() - self.at);
                self.at += of_out;
                self.data.advance(count - of_out);
                continue;
            }
            ready!(connection.poll_flush(cx)).map_err(Unwritten::Socket)?;
            if !self.body_ended {
                // It has been asked for more.
                return Poll::Pending;
            }
            self.body = None;
            self.at = 0;
            spare::keep_buffer(std::mem::take(&mut self.out));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes of the body what is there, up to what is written at once.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), Unwritten> {
        if !self.is_stuck() {
            self.out.clear();
            self.at = 0;
            std::mem::swap(&mut self.out, &mut self.behind);
        }
        while self.data.is_empty() && self.out.len() < GATHERED && !self.body_ended {
            let Some(body) = &mut self.body else { break };
            let frame = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(frame) => frame.transpose().map_err(Unwritten::Body)?,
            };
            let last = body.is_end_stream();
            let mut trailers = None;
            if let Some(frame) = frame {
                match frame.into_data() {
                    Ok(data) => self.take(data)?,
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
                if !last && trailers.is_none() {
                    continue;
                }
            }
            self.end(trailers.as_ref())?;
        }
        Ok(())
    }

    /// Where what comes next goes.
    const fn end_of_queue(&mut self) -> &mut Vec<u8> {
        if self.data.is_empty() {
            &mut self.out
        } else {
            &mut self.behind
        }
    }

    fn take(&mut self, data: Bytes) -> Result<(), Unwritten> {
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.framing {
            RequestFraming::Length(left) => {
                let length = data.len() as u64;
                *left = left.checked_sub(length).ok_or(Unwritten::Length)?;
            }
            RequestFraming::Chunked => {
                // Into memory.
                let _ = write!(self.out, "{:x}\r\n", data.len());
            }
        }
        if data.len() <= COPIED {
            self.out.extend_from_slice(&data);
        } else {
            self.data = data;
        }
        if self.framing == RequestFraming::Chunked {
            self.end_of_queue().extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), Unwritten> {
        match self.framing {
            RequestFraming::Length(0) => {}
            RequestFraming::Length(_) => return Err(Unwritten::Length),
            RequestFraming::Chunked => {
                let out = self.end_of_queue();
                out.extend_from_slice(b"0\r\n");
                head::write_trailers(trailers, out);
            }
        }
        self.body_ended = true;
        Ok(())
    }
}
