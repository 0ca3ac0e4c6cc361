//! A request that has been handed over: its response, over either version of HTTP, and what becomes
//! of its connection.

use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::CaptureConnection;

use super::chain;
use super::http2::{Http2Body, Http2Exchange, Http2Response};
use super::socket::ResetSwitch;
use crate::proxy::body::BoxError;
use crate::proxy::watched;

/// Why there is no response head. Each with its causes, in one line.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing was written, and nothing will be.
    NotSent(String),
    /// The upstream says that it has not processed the request, and will not.
    Refused(String),
    /// A byte may have been written.
    Broken(String),
}

/// What is known of a request that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was not written, or not processed, and will not be.
    WithoutEffect,
    /// It may have arrived, in part or whole. Nothing more of it will.
    Unknown,
}

/// The response to come. Dropped, nothing more of the request is handed over.
#[must_use = "a request is sent as its response is waited for"]
pub(crate) enum PendingResponse {
    Http1(legacy::ResponseFuture),
    Http2(Result<Http2Response, SendError>),
}

impl PendingResponse {
    /// The response's head, with the body that follows.
    pub(crate) async fn response(self) -> Result<Response<ResponseBody>, SendError> {
        match self {
            Self::Http1(pending) => match pending.await {
                Ok(response) => Ok(response.map(ResponseBody::Http1)),
                Err(error) if never_sent(&error) => Err(SendError::NotSent(chain(&error))),
                Err(error) => Err(SendError::Broken(chain(&error))),
            },
            Self::Http2(pending) => {
                let response = pending?.response().await?;
                Ok(response.map(ResponseBody::Http2))
            }
        }
    }
}

/// Whether the request is known not to have begun: no connection was made, or one that nothing was
/// written over, or hyper handed it back.
fn never_sent(error: &legacy::Error) -> bool {
    let handed_back = error
        .source()
        .and_then(|source| source.downcast_ref::<hyper::Error>())
        .is_some_and(hyper::Error::is_canceled);
    let mut causes = std::iter::successors(error.source(), |cause| (*cause).source());
    error.is_connect() || handed_back || causes.any(watched::nothing_written)
}

/// The connection that a request goes over, as far as it concerns the request. Dropped, it resets
/// the connection of a fenced request.
#[must_use = "dropped, it resets the connection"]
pub(crate) struct Hold(Option<Carrier>);

enum Carrier {
    Http1(CaptureConnection),
    Http2(Http2Exchange),
}

impl Hold {
    pub(super) fn http1(connection: CaptureConnection) -> Self {
        Self(Some(Carrier::Http1(connection)))
    }

    pub(super) fn http2(exchange: Http2Exchange) -> Self {
        Self(Some(Carrier::Http2(exchange)))
    }

    /// Of a request that was not handed over.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// The exchange is over. What the connection is still good for is not decided here.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }

    /// Makes sure that nothing more of the request arrives. Its response must have been dropped.
    ///
    /// Over HTTP/1 the connection is reset. Over HTTP/2 others share it: the stream is reset, and the
    /// connection too, unless the upstream confirms that it has read all that was sent.
    pub(crate) async fn give_up(mut self) -> Fate {
        // Armed until it is done: this future may be dropped.
        let fate = match &mut self.0 {
            None | Some(Carrier::Http1(_)) => return Fate::Unknown,
            Some(Carrier::Http2(exchange)) => exchange.give_up().await,
        };
        self.disarm();
        fate
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match &self.0 {
            None => {}
            Some(Carrier::Http1(connection)) => {
                if let Some(connected) = connection.connection_metadata().as_ref()
                    && let Some(reset) = ResetSwitch::of(connected)
                {
                    reset.throw();
                }
            }
            Some(Carrier::Http2(exchange)) => {
                exchange.reset();
            }
        }
    }
}

/// The body of a response.
pub(crate) enum ResponseBody {
    Http1(Incoming),
    Http2(Http2Body),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
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
