//! One exchange: a request that is sent as its response is read.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, Version};
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncWrite as _;

use super::Http1Pool;
use super::connection::{EXTRA, Http1UpstreamConnection, given_up};
use super::upload::{Outgoing, SendState};
use crate::body::{BoxError, UpstreamRequest};
use crate::http1::content::{ContentReader, MOST_TRAILER_BYTES};
use crate::http1::head::HeadLimits;
use crate::http1::names::UPGRADE;
use crate::http1::response::{ResponseExpectation, ResponseReader};
use crate::http1::{MessageError, Response, ResponseHead, connection_has};
use crate::upstream::connect::{SendError, chain};
use crate::upstream::pool::PooledConnection as _;
use crate::upstream::socket::LAPSED;

/// The limits of a response's head. `bytes`: `upstream.header_bytes`.
pub(super) const fn response_limits(bytes: usize) -> HeadLimits {
    HeadLimits {
        bytes,
        fields: 10_000,
        target: 0,
    }
}

/// Why a response ends before its end.
const CUT_SHORT: &str = "the request broke off before its answer's end";

/// A request that is sent as its response is read, and then the response's body, which reads from
/// the socket when it is polled. Dropping it before its end drops the connection. The order of the
/// fields matters: the connection is dropped before the request's body.
pub(crate) struct Http1Exchange {
    /// `None`: there is none yet, or it has been given back.
    connection: Option<Http1UpstreamConnection>,
    request: Outgoing,
    pool: Arc<Http1Pool>,
    reader: ResponseReader,
    /// How many bytes the kernel had taken before.
    before: u64,
    /// The upstream keeps the connection open.
    keeps: bool,
    content: ContentReader,
    state: BodyState,
    /// Data of the response that has come, and goes first.
    data: Option<Bytes>,
    /// Go last.
    trailers: Option<HeaderMap>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyState {
    /// More is to come.
    Reading,
    /// It has come whole, or has broken off.
    Ended,
    /// Another protocol follows.
    Switched,
}

/// The body of a response over HTTP/1.
pub(crate) type Http1Body = Box<Http1Exchange>;

impl Http1Exchange {
    pub(crate) fn new(pool: Arc<Http1Pool>, request: UpstreamRequest) -> Box<Self> {
        let asked = ResponseExpectation {
            head: request.head.method == Method::HEAD,
            upgrade: request.head.fields.contains(UPGRADE),
        };
        let limits = response_limits(pool.connecting.settings.header_bytes.bytes());
        Box::new(Self {
            connection: None,
            request: Outgoing::new(request),
            pool,
            reader: ResponseReader::new(asked, limits),
            before: 0,
            keeps: false,
            content: ContentReader::NONE,
            state: BodyState::Reading,
            data: None,
            trailers: None,
        })
    }

    /// Sends the request, and reads the response's head. Dropped midway, it resets the connection
    /// of a fenced request.
    pub(crate) async fn response(mut self: Box<Self>) -> Result<Response<Http1Body>, SendError> {
        let connection = self.pool.reserve().await?;
        connection.socket().busy = true;
        self.before = connection.socket().written;
        self.connection = Some(connection);
        let head = poll_fn(|cx| self.poll_head(cx)).await?;
        let begun = self.begin_body();
        begun.map_err(|fault| SendError::Broken(given_up(fault)))?;
        Ok(Response { head, body: self })
    }

    /// Whether the kernel has taken no byte of the request.
    fn is_unsent(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_none_or(|connection| connection.socket().written == self.before)
    }

    fn broke(&self, why: String) -> SendError {
        if self.is_unsent() {
            SendError::NotSent(why)
        } else {
            SendError::Broken(why)
        }
    }

    /// Ready with the head of the response.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, SendError>> {
        self.upload(cx)?;
        loop {
            let found = self.look().map_err(|fault| self.broke(given_up(fault)))?;
            if let Some(head) = found {
                if self.state == BodyState::Switched && self.request.state != SendState::Whole {
                    let why = "the upstream switched protocols, and did not take the request";
                    return Poll::Ready(Err(SendError::Broken(why.to_owned())));
                }
                return Poll::Ready(Ok(head));
            }
            let why = match ready!(self.poll_fill(cx)) {
                Ok(0) => "the upstream closed the connection before its answer".to_owned(),
                Ok(_) => continue,
                Err(error) => chain(&error),
            };
            return Poll::Ready(Err(self.broke(why)));
        }
    }

    /// Writes as much of the request as the kernel takes.
    fn upload(&mut self, cx: &mut Context<'_>) -> Result<(), SendError> {
        while self.request.state == SendState::UnderWay
            && let Some(connection) = &mut self.connection
        {
            // First, so that head and available body go out in one system call.
            self.request.gather(cx)?;
            let written = self.request.queue.is_empty();
            let wrote = if written {
                Pin::new(&mut connection.io).poll_flush(cx)
            } else {
                self.request.queue.poll_write(&mut connection.io, cx)
            };
            match wrote {
                Poll::Ready(Ok(())) if !written => {}
                Poll::Ready(Ok(())) if self.request.body_ended => {
                    self.request.end(SendState::Whole);
                }
                // The body was polled above and wakes this task.
                Poll::Ready(Ok(())) | Poll::Pending => break,
                Poll::Ready(Err(error)) if error.kind() == LAPSED => {
                    return Err(SendError::Broken(chain(&error)));
                }
                Poll::Ready(Err(error)) if self.is_unsent() => {
                    return Err(SendError::NotSent(chain(&error)));
                }
                // The upstream takes no more. Its answer stands, and may say why.
                Poll::Ready(Err(_)) => self.request.end(SendState::Stopped),
            }
        }
        Ok(())
    }

    /// Reads more; 0: the upstream has ended its side.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.connection {
            Some(connection) => connection.poll_fill(cx),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Reads heads from the received bytes, up to that of the response.
    fn look(&mut self) -> Result<Option<ResponseHead>, MessageError> {
        let unsent = self.is_unsent();
        let Some(connection) = self.connection.as_mut().filter(|it| !it.buf.is_empty()) else {
            return Ok(None);
        };
        if unsent {
            return Err(EXTRA);
        }
        let Some(received) = self.reader.read(&mut connection.buf)? else {
            return Ok(None);
        };
        let head = received.head;
        // An HTTP/1.0 upstream may disagree on where messages end.
        self.keeps = head.version == Version::HTTP_11
            && !received.odd
            && !connection_has(&head.fields, "close");
        match received.content {
            Some(content) => self.content = content,
            None => self.state = BodyState::Switched,
        }
        Ok(Some(head))
    }

    /// The data that has come.
    ///
    /// # Errors
    ///
    /// There is a fault in it, or behind it.
    fn take_data(&mut self) -> Result<Option<Bytes>, MessageError> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        let limits = response_limits(MOST_TRAILER_BYTES);
        self.content.take(&mut connection.buf, &limits)
    }

    /// The head has come.
    ///
    /// # Errors
    ///
    /// A fault in what has come with the head.
    fn begin_body(&mut self) -> Result<(), MessageError> {
        while let Some(more) = self.take_data()? {
            self.data = Some(match self.data.take() {
                Some(data) => [data, more].concat().into(),
                None => more,
            });
        }
        self.note_end();
        Ok(())
    }

    /// The tunnel that follows a 101.
    pub(crate) fn into_upgraded(mut self) -> Option<Http1UpstreamConnection> {
        let connection = self.connection.take();
        connection.filter(|_| self.state == BodyState::Switched)
    }

    /// The next data of the response. `None`: it is whole.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BoxError>> {
        if self.upload(cx).is_err() {
            return Poll::Ready(Err(CUT_SHORT.into()));
        }
        loop {
            let data = self.take_data().map_err(given_up)?;
            if data.is_some() || self.content.is_end() {
                return Poll::Ready(Ok(data));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                if !matches!(self.content, ContentReader::ToEnd) {
                    let why = "the upstream closed the connection before its answer's end";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, why);
                    return Poll::Ready(Err(error.into()));
                }
                self.content = ContentReader::NONE;
                self.keeps = false;
            }
        }
    }

    /// Ends the exchange if the response is whole: nothing more of the request is sent.
    fn note_end(&mut self) {
        if self.state != BodyState::Reading || !self.content.is_end() {
            return;
        }
        self.state = BodyState::Ended;
        self.trailers = self.content.take_trailers();
        self.request.end(SendState::Stopped);
        let connection = self.connection.as_ref();
        if connection.is_some_and(|connection| !connection.buf.is_empty()) {
            given_up(EXTRA);
            self.keeps = false;
        }
        // Mostly it is known at once, and the last frame comes after that.
        let _ = self.taken();
    }

    /// Sends more of the request, without reading the response. Ready if the request broke off.
    pub(crate) fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        match self.upload(cx) {
            Ok(()) => Poll::Pending,
            Err(_) => Poll::Ready(CUT_SHORT.into()),
        }
    }

    /// See [`taken`](crate::upstream::taken). Then the connection is given back, or closed.
    pub(crate) fn taken(&mut self) -> Poll<bool> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(true);
        };
        let taken = ready!(connection.socket().taken());
        if taken && let Some(connection) = self.connection.take() {
            // One whose request is not whole is dropped in the middle of it.
            if self.request.state == SendState::Whole {
                connection.socket().busy = false;
                if self.keeps {
                    self.pool.put(connection);
                }
            }
        }
        Poll::Ready(taken)
    }
}

impl Body for Http1Exchange {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.data.is_none() && this.state == BodyState::Reading {
            match ready!(this.poll_data(cx)) {
                Ok(data) => this.data = data,
                Err(error) => {
                    this.state = BodyState::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
            }
            this.note_end();
        }
        let frame = match this.data.take() {
            Some(data) => Some(Frame::data(data)),
            None => this.trailers.take().map(Frame::trailers),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.state != BodyState::Reading && self.data.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let ContentReader::Length(left) = self.content else {
            return SizeHint::default();
        };
        let come = self.data.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(left + come as u64)
    }
}
