//! A request that has been handed over: its response over either version of HTTP, and the fate of
//! its connection.

use http::Response;
use http_body_util::Either;

use super::errors::{RequestFate, SendError};
use super::http1::{Http1Body, Http1Pending, Occupied, Upgraded};
use super::http2::{Http2Body, Http2Exchange, Http2Response};

/// The response to come. After a drop, nothing more of the request is handed over.
#[must_use = "a request is sent as its response is waited for"]
pub(crate) enum PendingResponse {
    /// Boxed, so that the futures around it stay small.
    Http1(Box<Http1Pending>),
    Http2(Result<Http2Response, SendError>),
}

impl PendingResponse {
    /// The response's head, with the body that follows.
    pub(crate) async fn response(self) -> Result<Response<ResponseBody>, SendError> {
        match self {
            Self::Http1(pending) => {
                let response = pending.response().await?;
                Ok(response.map(Either::Left))
            }
            Self::Http2(pending) => {
                let response = pending?.response().await?;
                Ok(response.map(Either::Right))
            }
        }
    }
}

/// The hold of a request on its connection. Dropping it resets the connection of a fenced request.
#[must_use = "dropped, it resets the connection"]
pub(crate) struct ExchangeHold(Option<Carrier>);

enum Carrier {
    Http1(Occupied),
    Http2(Http2Exchange),
}

impl ExchangeHold {
    /// `None`: the request is not fenced.
    pub(super) fn http1(connection: Option<&Occupied>) -> Self {
        Self(connection.cloned().map(Carrier::Http1))
    }

    /// `None`: the request was not handed over.
    pub(super) fn http2(exchange: Option<Http2Exchange>) -> Self {
        Self(exchange.map(Carrier::Http2))
    }

    /// The exchange is over, and the connection is not reset.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }

    /// Makes sure that nothing more of the request arrives. Its response must have been dropped.
    ///
    /// Over HTTP/1 the connection is reset. Over HTTP/2 others share it: the stream is reset, and
    /// the connection too, unless the upstream confirms that it has read all that was sent.
    pub(crate) async fn give_up(mut self) -> RequestFate {
        // Armed until the end, since this future may be dropped.
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

/// The body of a response, over HTTP/1 or HTTP/2.
pub(crate) type ResponseBody = Either<Http1Body, Http2Body>;

/// The tunnel that follows a 101.
pub(crate) fn into_upgraded(body: ResponseBody) -> Option<Upgraded> {
    match body {
        Either::Left(body) => body.into_upgraded(),
        Either::Right(_) => None,
    }
}
