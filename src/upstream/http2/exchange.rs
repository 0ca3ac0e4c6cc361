//! One exchange over HTTP/2: the request's head and body, and the response.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Uri};
use http_body::{Body, Frame, SizeHint};

use super::Http2Pool;
use super::connection::{Http2Connection, TRAILER_LIST};
use crate::body::{BoxError, RequestBody, UploadError, UpstreamRequest};
use crate::http1::names::CONTENT_LENGTH;
use crate::http1::{Fields, Response, ResponseHead};
use crate::upstream::connect::{SendError, chain};
use crate::upstream::pool::PooledConnection as _;

/// The sending of a body. `true`: h2 has all of it.
type Upload = Pin<Box<dyn Future<Output = Result<bool, UploadError>> + Send>>;

/// Sends a request over a connection of its own, and waits for the response's head. Dropped midway,
/// it closes the connection, by a reset if the request is fenced.
pub(crate) async fn exchange(
    mut connection: Http2Connection,
    pool: Arc<Http2Pool>,
    uri: Option<Uri>,
    request: UpstreamRequest,
) -> Result<Response<Http2Body>, SendError> {
    let (request, body) = outgoing(request, uri)?;
    // The upstream may have ended it, or have lowered its limit, since it was reserved.
    if !connection.is_fit() {
        connection = pool.open().await.map_err(SendError::NotSent)?;
    }
    connection.socket().busy = true;
    let before = connection.socket().written;
    let ended = body.is_end_stream();
    let sent = connection.sender.send_request(request, ended);
    let (mut response, stream) = sent.map_err(|error| SendError::NotSent(chain(&error)))?;
    let mut exchange = Http2Body {
        connection: Some(connection),
        pool,
        upload: None,
        cut: false,
        unwritten: Arc::default(),
        stream: None,
    };
    // The drop of an empty body reports that the whole request was handed over.
    if ended {
        drop(body);
    } else {
        let unwritten = Arc::clone(&exchange.unwritten);
        exchange.upload = Some(Box::pin(pour(body, stream, unwritten)));
    }
    let answered = poll_fn(|cx| {
        if let Err(error) = exchange.poll(cx) {
            return Poll::Ready(Err(SendError::Body(error)));
        }
        let response = ready!(Pin::new(&mut response).poll(cx));
        Poll::Ready(response.map_err(|error| {
            let connection = exchange.connection.as_ref();
            let unsent = connection.is_some_and(|it| it.socket().written == before);
            if unsent || unprocessed(&error) {
                SendError::NotSent(chain(&error))
            } else {
                SendError::Broken(chain(&error))
            }
        }))
    });
    let (head, stream) = answered.await?.into_parts();
    exchange.stream = Some(stream);
    let mut fields = Fields::from(&head.headers);
    // The library has refused different ones.
    if let Some(length) = fields.get(CONTENT_LENGTH).map(<[u8]>::to_vec) {
        fields.insert(CONTENT_LENGTH, length);
    }
    Ok(Response {
        head: ResponseHead {
            status: head.status,
            version: head.version,
            reason: None,
            fields,
        },
        body: exchange,
    })
}

/// A request as h2 takes it, and its body.
fn outgoing(
    request: UpstreamRequest,
    uri: Option<Uri>,
) -> Result<(Request<()>, RequestBody), SendError> {
    let UpstreamRequest { head, body } = request;
    let mut sent = Request::new(());
    *sent.headers_mut() = head.fields.to_map();
    // Never send a request that differs from the one that was judged.
    let whole = sent.headers().len() == head.fields.iter().count();
    let uri = uri.filter(|_| whole);
    *sent.uri_mut() =
        uri.ok_or_else(|| SendError::NotSent("HTTP/2 cannot carry this request".to_owned()))?;
    *sent.method_mut() = head.method;
    Ok((sent, body))
}

/// Whether the upstream says that it has not processed the request, and will not: a GOAWAY names an
/// earlier stream as the last that it may process (RFC 9113, 6.8).
///
/// `REFUSED_STREAM` says the same (8.7), but not for servers behind the upstream. `HAProxy` refuses
/// a stream whose server has read the request and closed without an answer.
fn unprocessed(error: &h2::Error) -> bool {
    // h2 reports the upstream's GOAWAY to the excluded streams only.
    error.is_remote() && error.is_go_away()
}

/// An exchange: its connection, the rest of its request, and the body of its response. The order of
/// the fields matters: the connection is dropped before the request's body.
///
/// The response is whole only with the end of the stream (RFC 9113, 8.1): a reset before that breaks
/// it, whatever its reason. One behind it changes nothing. Its length is in the head, if the
/// upstream has announced one.
pub(crate) struct Http2Body {
    /// `None`: it has been given back, or is closed.
    connection: Option<Http2Connection>,
    pool: Arc<Http2Pool>,
    /// Sends the request's body.
    upload: Option<Upload>,
    /// The upload has ended, and h2 has not got all of the body.
    cut: bool,
    /// The pieces of the body that h2 has are other owners.
    unwritten: Arc<()>,
    /// `None`: the head has not come yet, or the body was whole, and its connection may carry another
    /// exchange.
    stream: Option<RecvStream>,
}

impl Http2Body {
    /// Sends more of the request, without reading the response. Ready if the request broke off.
    pub(crate) fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        match self.poll(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error.into()),
        }
    }

    /// Sends more of the request, and drives the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), UploadError> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(whole) = upload.as_mut().poll(cx)
        {
            self.cut = !matches!(whole, Ok(true));
            self.upload = None;
            whole?;
        }
        if let Some(connection) = &mut self.connection {
            // Its end shows in the stream.
            let _ = connection.poll(cx);
        }
        Ok(())
    }

    /// The next frame of the response. `None`: it is whole.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, BoxError>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Ok(None));
        };
        if let Some(data) = ready!(stream.poll_data(cx)).transpose()? {
            // The upstream may send as much again. It fails only on a closed stream.
            let _ = stream.flow_control().release_capacity(data.len());
            return Poll::Ready(Ok(Some(Frame::data(data))));
        }
        // All of the data has come. The trailers have, or there are none.
        match ready!(stream.poll_trailers(cx))? {
            Some(trailers) if list_size(&trailers) >= TRAILER_LIST => {
                Poll::Ready(Err("the trailers are too long".into()))
            }
            trailers => Poll::Ready(Ok(trailers.map(Frame::trailers))),
        }
    }

    /// See [`taken`](crate::upstream::taken). Then the connection is given back, or closed. From the
    /// first call on, nothing polls it any more. So a part of the request that is in h2 then is never
    /// sent.
    pub(crate) fn taken(&mut self) -> Poll<bool> {
        // h2 counts the stream as open while there is one.
        self.stream = None;
        let Some(connection) = &self.connection else {
            return Poll::Ready(true);
        };
        if self.upload.is_some()
            || Arc::strong_count(&self.unwritten) > 1
            || connection.socket().blocked
        {
            self.upload = None;
            self.cut = true;
        }
        let taken = ready!(connection.socket().taken());
        // One that has been cut is dropped in the middle of its request.
        if taken
            && let Some(connection) = self.connection.take()
            && !self.cut
        {
            connection.socket().busy = false;
            self.pool.put(connection);
        }
        Poll::Ready(taken)
    }
}

/// A piece of a body that h2 has, and has not written. h2 drops it once it is encoded.
struct Piece(
    Bytes,
    #[expect(dead_code, reason = "it is counted")] Arc<()>,
);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The most that is reserved at once: the frame size that every peer accepts (RFC 9113, 4.2).
const PIECE: usize = 16 << 10;

/// Sends the whole body, as the upstream's windows allow. `false`: the upstream takes no more of it.
/// `unwritten`: the pieces that h2 has are other owners of it.
///
/// # Errors
///
/// The body broke off.
async fn pour(
    mut body: RequestBody,
    mut stream: SendStream<Bytes>,
    unwritten: Arc<()>,
) -> Result<bool, UploadError> {
    let mut last = false;
    while !last {
        let frame = poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut body).poll_frame(cx).map(Some)
        });
        let Some(frame) = frame.await else {
            return Ok(false);
        };
        last = frame.is_none() || body.is_end_stream();
        // `Received` yields no other frames.
        let data = frame.transpose()?.map(Frame::into_data);
        let Some(Ok(mut data)) = data else { continue };
        // Piece by piece, as the windows allow, so that h2 queues nothing that it could not send.
        while !data.is_empty() {
            stream.reserve_capacity(data.len().min(PIECE));
            while stream.capacity() == 0 {
                let Some(Ok(_)) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
                    return Ok(false);
                };
            }
            let room = stream.capacity().min(data.len());
            let piece = Piece(data.split_to(room), Arc::clone(&unwritten));
            let ends = last && data.is_empty();
            let sent = stream.send_data(Bytes::from_owner(piece), ends);
            if sent.is_err() || ends {
                return Ok(sent.is_ok());
            }
        }
    }
    Ok(stream.send_data(Bytes::new(), true).is_ok())
}

/// The size of fields as HTTP/2 counts it (RFC 9113, 6.5.2).
fn list_size(fields: &HeaderMap) -> usize {
    let sizes = fields.iter();
    let sizes = sizes.map(|(name, value)| name.as_str().len() + value.len() + 32);
    sizes.sum()
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        this.poll(cx)?;
        let frame = ready!(this.poll_next(cx))?;
        if this.is_end_stream() {
            // Mostly it is known at once, and the last frame comes after that.
            let _ = this.taken();
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    /// Known only where there is none: a gRPC caller reads a head that ends its stream as trailers.
    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            SizeHint::with_exact(0)
        } else {
            SizeHint::default()
        }
    }
}
