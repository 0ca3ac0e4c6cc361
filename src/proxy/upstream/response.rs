//! A request that has been handed over: its response, over either version of HTTP, and what becomes
//! of its connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use super::errors::{RequestFate, SendError};
use super::http1::{Http1Body, Http1Pending, Occupied, Upgraded};
use super::http2::{Http2Body, Http2Exchange, Http2Response};
use crate::proxy::body::BoxError;

/// The response to come. Dropped, nothing more of the request is handed over.
#[must_use = "a request is sent as its response is waited for"]
pub(crate) enum PendingResponse {
    /// Apart, so that the futures around it are not moved with all that it has.
    Http1(Box<Http1Pending>),
    Http2(Result<Http2Response, SendError>),
}

impl PendingResponse {
    /// The response's head, with the body that follows.
    pub(crate) async fn response(self) -> Result<Response<ResponseBody>, SendError> {
        match self {
            Self::Http1(pending) => {
                let response = pending.response().await?;
                Ok(response.map(ResponseBody::Http1))
            }
            Self::Http2(pending) => {
                let response = pending?.response().await?;
                Ok(response.map(ResponseBody::Http2))
            }
        }
    }
}

/// The connection that a request goes over, as far as it concerns the request. Dropped, it resets
/// the connection of a fenced request.
#[must_use = "dropped, it resets the connection"]
pub(crate) struct ExchangeHold(Option<Carrier>);

enum Carrier {
    Http1(Occupied),
    Http2(Http2Exchange),
}

impl ExchangeHold {
    /// `None`: nobody fences the request.
    pub(super) fn http1(connection: Option<&Occupied>) -> Self {
        Self(connection.cloned().map(Carrier::Http1))
    }

    /// `None`: the request was not handed over.
    pub(super) fn http2(exchange: Option<Http2Exchange>) -> Self {
        Self(exchange.map(Carrier::Http2))
    }

    /// The exchange is over. What the connection is still good for is not decided here.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }

    /// Makes sure that nothing more of the request arrives. Its response must have been dropped.
    ///
    /// Over HTTP/1 the connection is reset. Over HTTP/2 others share it: the stream is reset, and the
    /// connection too, unless the upstream confirms that it has read all that was sent.
    pub(crate) async fn give_up(mut self) -> RequestFate {
        // Armed until it is done: this future may be dropped.
        let fate = match &mut self.0 {
            None | Some(Carrier::Http1(_)) => return RequestFate::Unknown,
            Some(Carrier::Http2(exchange)) => exchange.give_up().await,
        };
        self.disarm();
        fate
    }
}

impl Drop for ExchangeHold {
    fn drop(&mut self) {
        match &self.0 {
            None => {}
            Some(Carrier::Http1(connection)) => connection.reset(),
            Some(Carrier::Http2(exchange)) => {
                exchange.reset();
            }
        }
    }
}

/// The body of a response.
pub(crate) enum ResponseBody {
    Http1(Http1Body),
    Http2(Http2Body),
}

impl ResponseBody {
    /// The tunnel that follows a 101.
    pub(crate) fn into_upgraded(self) -> Option<Upgraded> {
        match self {
            Self::Http1(body) => body.into_upgraded(),
            Self::Http2(_) => None,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx),
            Self::Http2(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}
