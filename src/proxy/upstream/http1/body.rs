//! The body of a response, which reads from the socket when it is polled.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::connection::{Http1UpstreamConnection, Upgraded};
use super::detached_upload::ReadHalf;
use super::head::response_limits;
use super::pool::Http1Pool;
use crate::http1::{fields, take_data};
use crate::proxy::body::BoxError;
use crate::wire::chunked::MOST_TRAILER_BYTES;
use crate::wire::content::ContentReader;
use crate::wire::upstream_framing::UpstreamFault;

/// The body of a response. Dropping it before its end drops the connection.
pub(crate) struct Http1Body(Http1BodyState);

enum Http1BodyState {
    Reading(Box<Http1BodyReading>),
    /// It is whole, and its connection has been released.
    Last(Option<Bytes>, Option<HeaderMap>),
    /// Nothing more comes.
    Ended,
    Switched(Upgraded),
}

struct Http1BodyReading {
    source: BodySource,
    keeps: bool,
    decoder: Decoder,
}

/// The connection that it is read from.
enum BodySource {
    /// The connection, and whether the request has been written whole.
    Own(Http1UpstreamConnection, bool, Arc<Http1Pool>),
    Shared(ReadHalf),
}

impl Http1Body {
    /// The connection only has to read this. `written`: the whole request was written.
    pub(super) fn own(
        mut connection: Http1UpstreamConnection,
        written: bool,
        keeps: bool,
        content: ContentReader,
        pool: &Arc<Http1Pool>,
    ) -> Self {
        let mut decoder = Decoder::new(content);
        // The whole body came with its head: the connection is not needed any more.
        let data = decoder.rest(&mut connection.buf);
        if decoder.is_at_end() {
            let source = BodySource::Own(connection, written, Arc::clone(pool));
            source.end(keeps, false);
            return Self(match data {
                Some(data) => Http1BodyState::Last(Some(data), None),
                None => Http1BodyState::Ended,
            });
        }
        Self(Http1BodyState::Reading(Box::new(Http1BodyReading {
            source: BodySource::Own(connection, written, Arc::clone(pool)),
            keeps,
            decoder,
        })))
    }

    /// Another task still writes the request.
    pub(super) fn shared(connection: ReadHalf, keeps: bool, content: ContentReader) -> Self {
        let decoder = Decoder::new(content);
        let source = BodySource::Shared(connection);
        if decoder.is_at_end() {
            source.end(keeps, false);
            return Self(Http1BodyState::Ended);
        }
        Self(Http1BodyState::Reading(Box::new(Http1BodyReading {
            source,
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

impl BodySource {
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
            // Dropping the half closes the connection.
            Self::Shared(half) if closed => drop(half),
            Self::Shared(half) => half.answered(|connection| keeps && !is_extra(connection)),
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
    fn end(self) {
        self.source.end(self.keeps, self.decoder.closed);
    }

    /// The next piece. `None`: the body is whole.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BoxError>> {
        let decoder = &mut self.decoder;
        match &mut self.source {
            BodySource::Own(connection, ..) => decoder.poll(cx, connection),
            BodySource::Shared(half) => half
                .read(cx, |cx, connection| decoder.poll(cx, connection))
                .unwrap_or_else(|| {
                    Poll::Ready(Err("the request broke off before its answer's end".into()))
                }),
        }
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

    /// The whole rest, if it has a length and has come.
    fn rest(&mut self, buf: &mut BytesMut) -> Option<Bytes> {
        match self.content {
            ContentReader::Length(left) if buf.len() as u64 >= left => self.take(buf),
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
            let trailers = fields::read_trailers(&reading.decoder.trailers);
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
                ContentReader::Length(left) => SizeHint::with_exact(left),
                _ => SizeHint::default(),
            },
        }
    }
}
