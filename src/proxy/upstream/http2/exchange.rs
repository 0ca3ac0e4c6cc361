//! One exchange on a reserved stream: the request's head and body, the response, and how it is
//! given up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::TRAILER_LIST;
use super::pool::Reservation;
use super::upload::{UploadTimeout, send_body};
use crate::proxy::body::{BoxError, UpstreamBody};
use crate::proxy::upstream::errors::{RequestFate, SendError, chain};

impl Reservation {
    /// Sends the request on the reserved stream. There is no exchange if it was not handed over.
    pub(crate) fn send(
        mut self,
        request: Request<UpstreamBody>,
    ) -> (Result<Http2Response, SendError>, Option<Http2Exchange>) {
        let (mut head, body) = request.into_parts();
        let ended = body.is_end_stream();
        // As in an HTTP/1 request (RFC 9110, 8.6).
        let length = body.size_hint().exact();
        let length = length.filter(|length| *length > 0 || expects_content(&head.method));
        if let Some(length) = length {
            head.headers
                .entry(CONTENT_LENGTH)
                .or_insert_with(|| length.into());
        }
        let before = self.connection.heard();
        // Dropped at once: it may keep the stream alive.
        let sent = self
            .sender
            .take()
            .map(|mut sender| sender.send_request(Request::from_parts(head, ()), ended));
        let Some(sent) = sent else {
            unreachable!("it is taken here, and a reservation is used once")
        };
        let (response, stream) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                // No stream was opened.
                let failed = SendError::NotSent(chain(&error));
                return (Err(failed), None);
            }
        };
        let number = response.stream_id().as_u32();
        let (reservation, stop) = (Arc::new(self), CancellationToken::new());
        let upload_timeout = UploadTimeout {
            answered: CancellationToken::new(),
            limit: reservation.upload_timeout(),
        };
        let answered = upload_timeout.answered.clone();
        let upload = if ended {
            // The drop reports that the whole request was handed over.
            drop(body);
            Uploading::Ended(stream)
        } else {
            let shared = (Arc::clone(&reservation), upload_timeout);
            Uploading::Running(tokio::spawn(send_body(body, stream, stop.clone(), shared)))
        };
        let pending = Http2Response {
            response,
            stop: stop.clone().drop_guard(),
            answered,
            unanswered: Unanswered {
                heard: before,
                reservation: Arc::clone(&reservation),
            },
        };
        let exchange = Http2Exchange {
            number,
            upload,
            stop,
            reservation,
        };
        (Ok(pending), Some(exchange))
    }
}

/// Whether a request without content has a `Content-Length: 0`.
fn expects_content(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::HEAD | Method::DELETE | Method::CONNECT
    )
}

/// The response to come. Dropping it ends the stream.
pub(crate) struct Http2Response {
    response: ResponseFuture,
    /// Ends the upload.
    stop: DropGuard,
    /// Cancelled when the response is whole.
    answered: CancellationToken,
    unanswered: Unanswered,
}

/// A request without a response. Dropping it has the connection checked if the upstream has been
/// silent since: other requests would go over a dead connection. A fenced request is given up with
/// its [`Http2Exchange`].
struct Unanswered {
    /// The value of `SharedConnection::heard` before it was sent.
    heard: u64,
    reservation: Arc<Reservation>,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let connection = &self.reservation.connection;
        if !self.reservation.is_fenced() && connection.heard() == self.heard {
            connection.suspect();
        }
    }
}

impl Http2Response {
    pub(crate) async fn response(self) -> Result<Response<Http2Body>, SendError> {
        let Self {
            response,
            stop,
            answered,
            unanswered,
        } = self;
        let response = response.await.map_err(|error| {
            let why = chain(&error);
            if unprocessed(&error) {
                SendError::Refused(why)
            } else {
                SendError::Broken(why)
            }
        })?;
        let reservation = Arc::clone(&unanswered.reservation);
        reservation.connection.answered();
        let mut lengths = response.headers().get_all(CONTENT_LENGTH).iter();
        let length = lengths
            .next()
            .and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(response.map(|stream| Http2Body {
            left: if stream.is_end_stream() {
                Some(0)
            } else {
                length
            },
            stream,
            data_ended: false,
            stop: Some(stop),
            answered,
            reservation,
        }))
    }
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

/// The exchange as its owner sees it, who may have to give it up.
pub(crate) struct Http2Exchange {
    /// The number of its stream.
    number: u32,
    upload: Uploading,
    stop: CancellationToken,
    reservation: Arc<Reservation>,
}

/// The request's body, and with it the stream.
enum Uploading {
    Running(JoinHandle<SendStream<Bytes>>),
    Ended(SendStream<Bytes>),
}

impl Http2Exchange {
    /// See `ExchangeHold::give_up`.
    pub(crate) async fn give_up(&mut self) -> RequestFate {
        self.stop.cancel();
        let ended = match &mut self.upload {
            Uploading::Running(upload) => Some(upload.await),
            Uploading::Ended(_) => None,
        };
        match ended {
            Some(Ok(stream)) => self.upload = Uploading::Ended(stream),
            Some(Err(_)) => return self.reset(),
            None => {}
        }
        if let Uploading::Ended(stream) = &mut self.upload {
            // h2 drops what it has queued of it.
            stream.send_reset(Reason::CANCEL);
        }
        if self.reservation.connection.confirms(self.number).await {
            return RequestFate::Unknown;
        }
        self.reset()
    }

    /// Resets the connection, and with it all its streams.
    pub(crate) fn reset(&self) -> RequestFate {
        self.stop.cancel();
        let connection = &self.reservation.connection;
        if connection.reset() {
            tracing::warn!(
                "an HTTP/2 connection to the upstream is reset: a request on it was given up, and \
                 the upstream has not confirmed that it has read what was sent"
            );
        }
        if connection.opened().possibly(self.number) {
            RequestFate::Unknown
        } else {
            RequestFate::WithoutEffect
        }
    }
}

/// The size of fields as HTTP/2 counts it (RFC 9113, 6.5.2).
fn list_size(fields: &HeaderMap) -> usize {
    let sizes = fields.iter();
    let sizes = sizes.map(|(name, value)| name.as_str().len() + value.len() + 32);
    sizes.sum()
}

/// The body of a response. It is whole only with the end of the stream (RFC 9113, 8.1): a reset
/// before that breaks it, whatever its reason.
pub(crate) struct Http2Body {
    stream: RecvStream,
    /// The length that the upstream has announced and not sent yet.
    left: Option<u64>,
    data_ended: bool,
    /// Ends the upload if the body is dropped before its end.
    stop: Option<DropGuard>,
    /// Cancelled when it is whole.
    answered: CancellationToken,
    reservation: Arc<Reservation>,
}

impl Http2Body {
    /// The response is whole; the upload may go on.
    fn ended(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.disarm();
            self.answered.cancel();
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if self.stream.is_end_stream() {
            self.ended();
        }
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
        if !this.data_ended {
            match ready!(this.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    this.reservation.connection.answered();
                    // The upstream may send as much again. It fails only on a closed stream.
                    let _ = this.stream.flow_control().release_capacity(data.len());
                    this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => this.data_ended = true,
            }
        }
        match ready!(this.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) if list_size(&trailers) >= TRAILER_LIST => {
                Poll::Ready(Some(Err("the trailers are too long".into())))
            }
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => {
                this.ended();
                Poll::Ready(None)
            }
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
