//! The body of a response, which reads from the socket when it is polled.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::Http1Pool;
use super::connection::{Http1UpstreamConnection, Upgraded};
use super::head::response_limits;
use super::upload::{Outgoing, Unwritten};
use crate::body::BoxError;
use crate::http1::chunked::MOST_TRAILER_BYTES;
use crate::http1::content::ContentReader;
use crate::http1::upstream_framing::UpstreamFault;
use crate::http1::{read_trailers, take_data};
use crate::upstream::socket::LAPSED;

/// The body of a response. Dropping it before its end drops the connection.
pub(crate) struct Http1Body {
    state: Http1BodyState,
    /// It is whole, and the upstream had not taken the whole request then.
    untaken: Option<Box<Carrier>>,
}

enum Http1BodyState {
    Reading(Box<Http1BodyReading>),
    /// It is whole. `sized`: it had a length.
    Last {
        data: Option<Bytes>,
        trailers: Option<HeaderMap>,
        sized: bool,
    },
    /// Nothing more comes.
    Ended,
    Switched(Upgraded),
}

struct Http1BodyReading {
    carrier: Carrier,
    decoder: Decoder,
    /// Came with the head.
    first: Option<Bytes>,
}

/// The connection of an exchange, and the rest of its request. The order of the fields matters: the
/// connection is dropped before the request's body.
pub(super) struct Carrier {
    pub connection: Http1UpstreamConnection,
    pub outgoing: Outgoing,
    /// The upstream takes no more of the request.
    pub unwritable: bool,
    /// The upstream keeps the connection open.
    pub keeps: bool,
    pub pool: Arc<Http1Pool>,
}

impl Http1Body {
    /// # Errors
    ///
    /// A fault in what has come with the head.
    pub(super) fn new(mut carrier: Carrier, content: ContentReader) -> Result<Self, UpstreamFault> {
        let sized = matches!(content, ContentReader::Length(_));
        let mut decoder = Decoder::new(content);
        let first = decoder.available(&mut carrier.connection.buf)?;
        if !decoder.is_at_end() {
            return Ok(Self::of(Http1BodyState::Reading(Box::new(
                Http1BodyReading {
                    carrier,
                    decoder,
                    first,
                },
            ))));
        }
        Ok(Self {
            state: if sized && first.is_none() {
                Http1BodyState::Ended
            } else {
                Http1BodyState::Last {
                    data: first,
                    trailers: read_trailers(&decoder.trailers),
                    sized,
                }
            },
            untaken: carrier.end(false),
        })
    }

    pub(super) const fn switched(connection: Upgraded) -> Self {
        Self::of(Http1BodyState::Switched(connection))
    }

    const fn of(state: Http1BodyState) -> Self {
        Self {
            state,
            untaken: None,
        }
    }

    /// The tunnel that follows a 101.
    pub(crate) fn into_upgraded(self) -> Option<Upgraded> {
        match self.state {
            Http1BodyState::Switched(connection) => Some(connection),
            _ => None,
        }
    }

    /// Whether a part of the request is still to be sent.
    pub(crate) fn is_uploading(&self) -> bool {
        match &self.state {
            Http1BodyState::Reading(reading) => reading.carrier.is_uploading(),
            _ => false,
        }
    }

    /// Sends more of the request, without reading the response. Ready if the request broke off.
    pub(crate) fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        match &mut self.state {
            Http1BodyState::Reading(reading) => match reading.carrier.poll_upload(cx) {
                Err(error) => Poll::Ready(error),
                Ok(()) => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }

    /// See [`taken`](crate::upstream::response::taken).
    pub(crate) fn taken(&mut self) -> Poll<bool> {
        let Some(carrier) = &mut self.untaken else {
            return Poll::Ready(true);
        };
        let taken = ready!(carrier.connection.taken());
        if let Some(carrier) = self.untaken.take()
            && taken
        {
            carrier.release();
        }
        Poll::Ready(taken)
    }
}

impl Carrier {
    fn is_uploading(&self) -> bool {
        !self.unwritable && !self.outgoing.is_whole()
    }

    /// Writes more of the request.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        if !self.is_uploading() {
            return Ok(());
        }
        match self.outgoing.poll(cx, &mut self.connection) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            // The upstream takes no more: its answer stands.
            Poll::Ready(Err(Unwritten::Socket(error))) if error.kind() != LAPSED => {
                self.unwritable = true;
                Ok(())
            }
            Poll::Ready(Err(_)) => Err("the request broke off before its answer's end".into()),
        }
    }

    /// The response is whole, and nothing more of the request is sent. `closed`: the response ended
    /// with its connection. Yields the connection if the upstream has not taken what was sent.
    fn end(mut self, closed: bool) -> Option<Box<Self>> {
        self.keeps &= !closed && !is_extra(&self.connection);
        self.outgoing.discard();
        if self.connection.taken() == Poll::Ready(true) {
            self.release();
            return None;
        }
        Some(Box::new(self))
    }

    /// The upstream has taken what was sent.
    fn release(mut self) {
        if self.outgoing.is_whole() {
            self.connection.set_busy(false);
            if self.keeps {
                self.connection.shrink();
                self.pool.put(self.connection);
            }
        }
    }
}

/// Whether bytes have come behind a response.
fn is_extra(connection: &Http1UpstreamConnection) -> bool {
    let extra = !connection.buf.is_empty();
    if extra {
        tracing::warn!(fault = %UpstreamFault::Extra, "a connection to the upstream is given up");
    }
    extra
}

impl Http1BodyReading {
    /// The next piece. `None`: the body is whole.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BoxError>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(Some(first)));
        }
        self.carrier.poll_upload(cx)?;
        self.decoder.poll(cx, &mut self.carrier.connection)
    }
}

/// Finds the content in what comes.
struct Decoder {
    content: ContentReader,
    /// The part of the trailer section that has come.
    trailers: Vec<u8>,
    /// The fault behind the last piece.
    fault: Option<UpstreamFault>,
    /// The connection's end was the content's.
    closed: bool,
}

impl Decoder {
    const fn new(content: ContentReader) -> Self {
        Self {
            content,
            trailers: Vec::new(),
            fault: None,
            closed: false,
        }
    }

    fn is_at_end(&self) -> bool {
        self.content.is_end()
    }

    /// All data that has come, in one piece.
    ///
    /// # Errors
    ///
    /// There is a fault in it, or behind it.
    fn available(&mut self, buf: &mut BytesMut) -> Result<Option<Bytes>, UpstreamFault> {
        let mut data = self.take(buf);
        while let Some(more) = self.take(buf) {
            let joined = [data.as_deref().unwrap_or_default(), &more[..]].concat();
            data = Some(joined.into());
        }
        self.fault.map_or(Ok(data), Err)
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1UpstreamConnection,
    ) -> Poll<Result<Option<Bytes>, BoxError>> {
        loop {
            if let Some(fault) = self.fault {
                tracing::warn!(%fault, "a connection to the upstream is given up");
                return Poll::Ready(Err(fault.into()));
            }
            if let Some(data) = self.take(&mut connection.buf) {
                return Poll::Ready(Ok(Some(data)));
            }
            if self.fault.is_some() {
                continue;
            }
            if self.is_at_end() {
                return Poll::Ready(Ok(None));
            }
            if ready!(connection.poll_fill(cx))? == 0 {
                if self.content != ContentReader::ToEnd {
                    let why = "the upstream closed the connection before its answer's end";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, why);
                    return Poll::Ready(Err(error.into()));
                }
                self.content = ContentReader::NONE;
                self.closed = true;
            }
        }
    }

    /// Takes what there is of the data, and notes a fault behind it.
    fn take(&mut self, buf: &mut BytesMut) -> Option<Bytes> {
        let limits = response_limits(MOST_TRAILER_BYTES);
        let content = &mut self.content;
        let (data, taken) = take_data(buf, Some(&mut self.trailers), |bytes, has_data| {
            let enough = content.is_end() || has_data && content.is_in_data();
            (!enough).then(|| content.next(bytes, &limits)).transpose()
        });
        self.fault = taken.err().map(UpstreamFault::Body);
        data
    }
}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Http1BodyState::Reading(reading) = &mut this.state {
            let read = ready!(reading.poll(cx));
            let at_end = reading.decoder.is_at_end();
            let data = match read {
                Ok(Some(data)) if !at_end => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(data) => data,
                Err(error) => {
                    this.state = Http1BodyState::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
            };
            let trailers = read_trailers(&reading.decoder.trailers);
            let last = Http1BodyState::Last {
                data,
                trailers,
                sized: false,
            };
            if let Http1BodyState::Reading(reading) = std::mem::replace(&mut this.state, last) {
                this.untaken = reading.carrier.end(reading.decoder.closed);
            }
        }
        let Http1BodyState::Last { data, trailers, .. } = &mut this.state else {
            return Poll::Ready(None);
        };
        let frame = match data.take() {
            Some(data) => Some(Frame::data(data)),
            None => trailers.take().map(Frame::trailers),
        };
        if trailers.is_none() {
            this.state = Http1BodyState::Ended;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(
            self.state,
            Http1BodyState::Ended | Http1BodyState::Switched(_)
        )
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            Http1BodyState::Ended | Http1BodyState::Switched(_) => SizeHint::with_exact(0),
            Http1BodyState::Last { sized: false, .. } => SizeHint::default(),
            Http1BodyState::Last { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            Http1BodyState::Reading(reading) => match reading.decoder.content {
                ContentReader::Length(left) => {
                    let first = reading.first.as_ref().map_or(0, Bytes::len);
                    SizeHint::with_exact(left + first as u64)
                }
                _ => SizeHint::default(),
            },
        }
    }
}
