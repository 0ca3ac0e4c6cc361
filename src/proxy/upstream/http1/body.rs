//! The body of a response, read from the socket when it is polled.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::connection::{Http1UpstreamConnection, Upgraded};
use super::head;
use super::limits::RESPONSE_LIMITS;
use super::pool::Http1Pool;
use super::tail::ReadHalf;
use crate::proxy::body::BoxError;
use crate::wire::answers::{AnswerContent, AnswerFault};
use crate::wire::chunked::{ChunkedPart, trailer_limits};

/// The body of a response. Dropped before its end, it drops the connection.
pub(crate) struct Http1Body(Http1BodyState);

enum Http1BodyState {
    Reading(Box<Http1BodyReading>),
    /// It is whole; its connection has been let go.
    Last(Option<Bytes>, Option<HeaderMap>),
    /// Nothing is left of it, or nothing more comes.
    Ended,
    Switched(Upgraded),
}

struct Http1BodyReading {
    way: Way,
    keeps: bool,
    decoder: Decoder,
}

/// Where it is read from.
enum Way {
    /// The connection, and whether the request has been written whole.
    Own(Http1UpstreamConnection, bool, Arc<Http1Pool>),
    Shared(ReadHalf),
}

impl Http1Body {
    /// The connection has nothing to do but to read this. `written`: the whole request was.
    pub(super) fn own(
        mut connection: Http1UpstreamConnection,
        written: bool,
        keeps: bool,
        content: AnswerContent,
        pool: &Arc<Http1Pool>,
    ) -> Self {
        let mut decoder = Decoder::new(content);
        // Where all of it came with its head, nothing has to be kept.
        let data = decoder.rest(&mut connection.buf);
        if decoder.is_at_end() {
            let way = Way::Own(connection, written, Arc::clone(pool));
            way.end(keeps, false);
            return Self(match data {
                Some(data) => Http1BodyState::Last(Some(data), None),
                None => Http1BodyState::Ended,
            });
        }
        Self(Http1BodyState::Reading(Box::new(Http1BodyReading {
            way: Way::Own(connection, written, Arc::clone(pool)),
            keeps,
            decoder,
        })))
    }

    /// Another task still writes the request.
    pub(super) fn shared(connection: ReadHalf, keeps: bool, content: AnswerContent) -> Self {
        let decoder = Decoder::new(content);
        let way = Way::Shared(connection);
        if decoder.is_at_end() {
            way.end(keeps, false);
            return Self(Http1BodyState::Ended);
        }
        Self(Http1BodyState::Reading(Box::new(Http1BodyReading {
            way,
            keeps,
            decoder,
        })))
    }

    pub(super) const fn switched(connection: Upgraded) -> Self {
        Self(Http1BodyState::Switched(connection))
    }

    /// The tunnel that follows a 101.
    pub(crate) fn into_upgraded(self) -> Option<Upgraded> {
        match self.0 {
            Http1BodyState::Switched(connection) => Some(connection),
            _ => None,
        }
    }
}

impl Way {
    /// The response is whole. `closed`: because its connection is.
    fn end(self, keeps: bool, closed: bool) {
        match self {
            Self::Own(connection, ..) if closed => drop(connection),
            Self::Own(mut connection, written, pool) => {
                let extra = is_extra(&connection);
                if written {
                    connection.release();
                    if keeps && !extra {
                        pool.put(connection);
                    }
                }
            }
            // The end of its half is that of the connection.
            Self::Shared(half) if closed => drop(half),
            Self::Shared(half) => half.answered(|connection| keeps && !is_extra(connection)),
        }
    }
}

/// Whether bytes have come behind a response.
fn is_extra(connection: &Http1UpstreamConnection) -> bool {
    let extra = !connection.buf.is_empty();
    if extra {
        tracing::warn!(fault = %AnswerFault::Extra, "a connection to the upstream is given up");
    }
    extra
}

impl Http1BodyReading {
    fn end(self) {
        self.way.end(self.keeps, self.decoder.closed);
    }

    /// The next piece. `None`: it is whole.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BoxError>> {
        let decoder = &mut self.decoder;
        match &mut self.way {
            Way::Own(connection, ..) => decoder.poll(cx, connection),
            Way::Shared(half) => half
                .read(cx, |cx, connection| decoder.poll(cx, connection))
                .unwrap_or_else(|| {
                    Poll::Ready(Err("the request broke off before its answer's end".into()))
                }),
        }
    }
}

/// Finds the content in what comes.
struct Decoder {
    content: AnswerContent,
    /// What has come of the trailer section.
    trailers: Vec<u8>,
    /// Behind the latest piece.
    fault: Option<AnswerFault>,
    /// The connection's end was the content's.
    closed: bool,
}

impl Decoder {
    const fn new(content: AnswerContent) -> Self {
        Self {
            content,
            trailers: Vec::new(),
            fault: None,
            closed: false,
        }
    }

    fn is_at_end(&self) -> bool {
        self.content == AnswerContent::None
    }

    /// All that is left of it, if it has a length and has come whole.
    fn rest(&mut self, buf: &mut BytesMut) -> Option<Bytes> {
        match self.content {
            AnswerContent::Length(left) if buf.len() as u64 >= left => self.take(buf),
            _ => None,
        }
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
            self.skip(&mut connection.buf);
            if self.fault.is_some() {
                continue;
            }
            if let Some(data) = self.take(&mut connection.buf) {
                // Its end may have come with it.
                self.skip(&mut connection.buf);
                return Poll::Ready(Ok(Some(data)));
            }
            if self.is_at_end() {
                return Poll::Ready(Ok(None));
            }
            if ready!(connection.poll_fill(cx))? == 0 {
                if self.content != AnswerContent::ToEnd {
                    let why = "the upstream closed the connection before its answer's end";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, why);
                    return Poll::Ready(Err(error.into()));
                }
                self.content = AnswerContent::None;
                self.closed = true;
            }
        }
    }

    /// Skips what stands between the data of a chunked body.
    fn skip(&mut self, buf: &mut BytesMut) {
        let AnswerContent::Chunked(chunks) = &mut self.content else {
            return;
        };
        let limits = trailer_limits(RESPONSE_LIMITS);
        while !buf.is_empty() && !chunks.is_in_data() && !chunks.is_end() {
            match chunks.next(buf, &limits) {
                Ok(ChunkedPart::Data(_)) => return,
                Ok(ChunkedPart::Framing(length)) => buf.advance(length),
                Ok(ChunkedPart::Trailer(length)) => {
                    self.trailers.extend_from_slice(&buf[..length]);
                    buf.advance(length);
                }
                Err(error) => {
                    self.fault = Some(AnswerFault::Body(error));
                    return;
                }
            }
        }
        if chunks.is_end() {
            self.content = AnswerContent::None;
        }
    }

    /// Takes what there is of the data.
    fn take(&mut self, buf: &mut BytesMut) -> Option<Bytes> {
        if buf.is_empty() {
            return None;
        }
        let length = match &mut self.content {
            AnswerContent::None | AnswerContent::Through => return None,
            AnswerContent::ToEnd => buf.len(),
            AnswerContent::Length(left) => {
                let length = buf.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= length as u64;
                if *left == 0 {
                    self.content = AnswerContent::None;
                }
                length
            }
            AnswerContent::Chunked(chunks) => {
                let limits = trailer_limits(RESPONSE_LIMITS);
                match chunks.is_in_data().then(|| chunks.next(buf, &limits)) {
                    Some(Ok(ChunkedPart::Data(length))) => length,
                    _ => return None,
                }
            }
        };
        Some(buf.split_to(length).freeze())
    }
}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Http1BodyState::Reading(reading) = &mut self.0 {
            let read = ready!(reading.poll(cx));
            let at_end = reading.decoder.is_at_end();
            let data = match read {
                Ok(Some(data)) if !at_end => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(data) => data,
                Err(error) => {
                    self.0 = Http1BodyState::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
            };
            let trailers = head::trailers(&reading.decoder.trailers);
            let last = Http1BodyState::Last(data, trailers);
            if let Http1BodyState::Reading(reading) = std::mem::replace(&mut self.0, last) {
                reading.end();
            }
        }
        let Http1BodyState::Last(data, trailers) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = match data.take() {
            Some(data) => Some(Frame::data(data)),
            None => trailers.take().map(Frame::trailers),
        };
        if trailers.is_none() {
            self.0 = Http1BodyState::Ended;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Http1BodyState::Ended | Http1BodyState::Switched(_))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Http1BodyState::Ended | Http1BodyState::Switched(_) => SizeHint::with_exact(0),
            Http1BodyState::Last(data, _) => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            Http1BodyState::Reading(reading) => match reading.decoder.content {
                AnswerContent::Length(left) => SizeHint::with_exact(left),
                _ => SizeHint::default(),
            },
        }
    }
}
