//! One exchange over HTTP/2: the request's head and body, and the response.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::request::Parts;
use http::{HeaderMap, Method, Request};
use http_body::{Body, Frame, SizeHint};

use super::Http2Pool;
use super::connection::{Http2Connection, TRAILER_LIST};
use super::shared::SharedStream;
use super::upload::pour;
use crate::body::UpstreamRequest;
use crate::body::{BoxError, RequestBody, UploadError};
use crate::http1::Fields;
use crate::http1::names::CONTENT_LENGTH;
use crate::http1::{Response, ResponseHead};
use crate::upstream::errors::{SendError, chain};
use crate::upstream::pool::PooledConnection as _;
use crate::upstream::socket::UpstreamSocket;

/// The connection of a request.
pub(crate) enum Http2Way {
    /// The request is fenced, and has the connection to itself. `None`: it has been released.
    Own(Option<Http2Connection>, Arc<Http2Pool>),
    Shared(SharedStream),
}

impl Http2Way {
    /// What sends the request, of which nothing has gone anywhere.
    ///
    /// # Errors
    ///
    /// There is no connection, in one line.
    async fn sender(&mut self) -> Result<SendRequest<Bytes>, String> {
        let sender = match self {
            Self::Shared(stream) => stream.sender(),
            Self::Own(own, pool) => {
                // The upstream may have ended it, or have lowered its limit, since it was reserved.
                if !own.as_mut().is_some_and(Http2Connection::is_fit) {
                    *own = Some(pool.open().await?);
                }
                own.as_mut().and_then(|connection| {
                    connection.set_busy(true);
                    connection.sender()
                })
            }
        };
        sender.ok_or_else(|| "the connection takes no more requests".to_owned())
    }

    /// How many bytes have gone over the connection, requests and others. `None`: it is shared.
    fn written(&self) -> Option<u64> {
        match self {
            Self::Own(Some(own), _) => Some(own.transport.socket(|socket| socket.written())),
            _ => None,
        }
    }
}

/// A request that is sent as its response is waited for.
pub(crate) struct Http2Pending {
    way: Http2Way,
    request: UpstreamRequest,
    repeatable: bool,
}

impl Http2Pending {
    /// `repeatable`: sending it twice does no harm.
    pub(crate) fn new(way: Http2Way, request: UpstreamRequest, repeatable: bool) -> Self {
        Self {
            way,
            request,
            repeatable,
        }
    }

    /// Sends the request, and waits for the response's head. Dropped midway, it resets the
    /// connection of a fenced request, and the stream of another one.
    ///
    /// An upstream may end a shared connection while a request is on its way. If it has not
    /// processed the request, it gets it once more (RFC 9113, 8.7).
    pub(crate) async fn response(self) -> Result<Response<Http2Body>, SendError> {
        let Self {
            way,
            request,
            repeatable,
        } = self;
        let UpstreamRequest { head, uri, body } = request;
        let (mut sent, ()) = Request::new(()).into_parts();
        sent.headers = head.fields.to_map();
        // Never send a request that differs from the one that was judged.
        let whole = sent.headers.len() == head.fields.iter().count();
        let Some(uri) = uri.filter(|_| whole) else {
            let why = "HTTP/2 cannot carry this request";
            return Err(SendError::NotSent(why.to_owned()));
        };
        sent.uri = *uri;
        sent.method = head.method;
        let mut head = sent;
        // As in an HTTP/1 request (RFC 9110, 8.6).
        let length = body.size_hint().exact();
        let length = length.filter(|length| *length > 0 || expects_content(&head.method));
        if let Some(length) = length {
            head.headers
                .entry(CONTENT_LENGTH)
                .or_insert_with(|| length.into());
        }
        let again = match &way {
            Http2Way::Shared(stream) if repeatable && body.is_end_stream() => {
                Some((stream.connections(), head.clone()))
            }
            _ => None,
        };
        let answered = Self::send(way, head, Some(body)).await;
        let (Err(SendError::NotSent(_) | SendError::Refused(_)), Some((connections, head))) =
            (&answered, again)
        else {
            return answered;
        };
        let stream = connections.stream().await.map_err(SendError::NotSent)?;
        Self::send(Http2Way::Shared(stream), head, None).await
    }

    async fn send(
        mut way: Http2Way,
        head: Parts,
        body: Option<RequestBody>,
    ) -> Result<Response<Http2Body>, SendError> {
        let mut sender = way.sender().await.map_err(SendError::NotSent)?;
        let ended = body.as_ref().is_none_or(Body::is_end_stream);
        let before = way.written();
        let sent = sender.send_request(Request::from_parts(head, ()), ended);
        // It may keep the connection open.
        drop(sender);
        let (mut response, stream) = sent.map_err(|error| SendError::NotSent(chain(&error)))?;
        let unwritten = Arc::new(());
        let upload = match body.filter(|_| !ended) {
            Some(body) => Uploading::Running(Box::pin(pour(body, stream, Arc::clone(&unwritten)))),
            // The drop of the body has reported that the whole request was handed over.
            None => Uploading::Ended { whole: true },
        };
        let mut carrier = Carrier {
            way,
            upload,
            unwritten,
        };
        let answered = poll_fn(|cx| {
            if let Err(error) = carrier.poll(cx) {
                return Poll::Ready(Err(SendError::Broken(chain(&error))));
            }
            let response = ready!(Pin::new(&mut response).poll(cx));
            Poll::Ready(response.map_err(|error| {
                carrier.answered();
                let why = chain(&error);
                if unprocessed(&error) {
                    SendError::Refused(why)
                } else if before.is_some() && before == carrier.way.written() {
                    SendError::NotSent(why)
                } else {
                    SendError::Broken(why)
                }
            }))
        });
        let response = answered.await?;
        carrier.answered();
        let (head, stream) = response.into_parts();
        let mut fields = Fields::from(&head.headers);
        // The library has refused different ones.
        if let Some(length) = fields.get(CONTENT_LENGTH).map(<[u8]>::to_vec) {
            fields.insert(CONTENT_LENGTH, length);
        }
        let length = fields.get_str(CONTENT_LENGTH);
        let length = length.and_then(|length| length.parse().ok());
        Ok(Response {
            head: ResponseHead {
                status: head.status,
                version: head.version,
                reason: None,
                fields,
            },
            body: Http2Body {
                left: if stream.is_end_stream() {
                    Some(0)
                } else {
                    length
                },
                carrier,
                stream: Some(stream),
                data_ended: false,
            },
        })
    }
}

/// Whether a request without content has a `Content-Length: 0`.
fn expects_content(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::HEAD | Method::DELETE | Method::CONNECT
    )
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

/// The connection of an exchange, and the rest of its request. The order of the fields matters: the
/// connection is dropped before the request's body.
struct Carrier {
    way: Http2Way,
    upload: Uploading,
    /// The pieces of the body that h2 has are other owners.
    unwritten: Arc<()>,
}

/// The request's body.
enum Uploading {
    Running(Pin<Box<dyn Future<Output = Result<bool, UploadError>> + Send>>),
    /// `whole`: h2 has all of it.
    Ended {
        whole: bool,
    },
}

impl Carrier {
    /// Sends more of the request, and drives an own connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), UploadError> {
        if let Uploading::Running(upload) = &mut self.upload
            && let Poll::Ready(whole) = upload.as_mut().poll(cx)
        {
            self.upload = Uploading::Ended { whole: whole? };
        }
        if let Http2Way::Own(Some(own), _) = &mut self.way {
            // Its end shows in the stream.
            let _ = own.poll(cx);
        }
        Ok(())
    }

    /// The upstream has said something about the request.
    fn answered(&mut self) {
        if let Http2Way::Shared(stream) = &mut self.way {
            stream.answered();
        }
    }

    /// See [`taken`](crate::upstream::response::taken). From the first call on, nothing polls
    /// an own connection any more. So a part of the request that is in h2 then is never sent.
    fn taken(&mut self) -> Poll<bool> {
        let Http2Way::Own(own, pool) = &mut self.way else {
            return Poll::Ready(true);
        };
        let Some(connection) = own else {
            return Poll::Ready(true);
        };
        if !matches!(self.upload, Uploading::Ended { whole: true })
            || Arc::strong_count(&self.unwritten) > 1
            || connection.transport.is_blocked()
        {
            self.upload = Uploading::Ended { whole: false };
        }
        let taken = ready!(connection.transport.socket(UpstreamSocket::taken));
        // Dropped here, it is reset: it has been cut, or has failed.
        if let Some(mut connection) = own.take()
            && taken
            && matches!(self.upload, Uploading::Ended { whole: true })
        {
            connection.set_busy(false);
            pool.put(connection);
        }
        Poll::Ready(taken)
    }
}

/// The size of fields as HTTP/2 counts it (RFC 9113, 6.5.2).
fn list_size(fields: &HeaderMap) -> usize {
    let sizes = fields.iter();
    let sizes = sizes.map(|(name, value)| name.as_str().len() + value.len() + 32);
    sizes.sum()
}

/// The body of a response. It is whole only with the end of the stream (RFC 9113, 8.1): a reset
/// before that breaks it, whatever its reason. One behind it changes nothing.
pub(crate) struct Http2Body {
    carrier: Carrier,
    /// `None`: it was whole, and its connection may carry another one.
    stream: Option<RecvStream>,
    /// The length that the upstream has announced and not sent yet.
    left: Option<u64>,
    data_ended: bool,
}

impl Http2Body {
    /// Whether a part of the request is still to be sent.
    pub(crate) fn is_uploading(&self) -> bool {
        matches!(self.carrier.upload, Uploading::Running(_))
    }

    /// Sends more of the request, without reading the response. Ready if the request broke off.
    pub(crate) fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        match self.carrier.poll(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error.into()),
        }
    }

    /// See [`taken`](crate::upstream::response::taken).
    pub(crate) fn taken(&mut self) -> Poll<bool> {
        // h2 would not close an idle connection in order while there is one.
        self.stream = None;
        self.carrier.taken()
    }
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        this.carrier.poll(cx)?;
        let Some(stream) = &mut this.stream else {
            return Poll::Ready(None);
        };
        if !this.data_ended {
            match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // The upstream may send as much again. It fails only on a closed stream.
                    let _ = stream.flow_control().release_capacity(data.len());
                    this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => this.data_ended = true,
            }
        }
        match ready!(stream.poll_trailers(cx)) {
            Ok(Some(trailers)) if list_size(&trailers) >= TRAILER_LIST => {
                Poll::Ready(Some(Err("the trailers are too long".into())))
            }
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
