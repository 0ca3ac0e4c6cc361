//! A request that has been handed over, and its response, over either version of HTTP.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use http_body_util::Either;

use super::errors::SendError;
use super::http1::{Http1Body, Http1Exchange, Upgraded};
use super::http2::{Http2Body, Http2Pending};
use crate::body::BoxError;
use crate::http1::Response;

/// The response to come. Dropping it midway resets the connection of a fenced request.
#[must_use = "a request is sent as its response is waited for"]
pub(crate) enum PendingResponse {
    /// Boxed, so that the futures around it stay small.
    Http1(Box<Http1Exchange>),
    Http2(Box<Http2Pending>),
}

impl PendingResponse {
    /// The response's head, with the body that follows.
    pub(crate) async fn response(self) -> Result<Response<ResponseBody>, SendError> {
        match self {
            Self::Http1(pending) => Ok(pending.response().await?.map(Either::Left)),
            Self::Http2(pending) => {
                let response = Box::pin(pending.response()).await?;
                Ok(response.map(Either::Right))
            }
        }
    }
}

/// The body of a response, over HTTP/1 or HTTP/2. The rest of the request is sent as it is read.
/// Dropping it resets the connection of a fenced request, unless [`taken`] was true.
pub(crate) type ResponseBody = Either<Http1Body, Http2Body>;

/// Whether a part of the request is still to be sent.
pub(crate) fn is_uploading(body: &ResponseBody) -> bool {
    match body {
        Either::Left(body) => body.is_uploading(),
        Either::Right(body) => body.is_uploading(),
    }
}

/// Sends more of the request while the response is not read. Resolves only if the request breaks
/// off.
pub(crate) async fn upload(body: &mut ResponseBody) -> BoxError {
    poll_fn(|cx| match body {
        Either::Left(body) => body.poll_upload(cx),
        Either::Right(body) => body.poll_upload(cx),
    })
    .await
}

/// The pauses between two looks at a connection's send queue: at first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Waits until the upstream's host has acknowledged all that was sent of a fenced request whose
/// response is whole. The rest of the request is never sent. `false`: the connection failed before.
///
/// The response itself mostly brings the acknowledgement, and the first look is enough. No event
/// tells of a later one, so the wait looks again and again.
pub(crate) async fn taken(body: &mut ResponseBody) -> bool {
    let (mut pause, longest) = LOOK;
    loop {
        if let Poll::Ready(taken) = poll_taken(body) {
            return taken;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// As [`taken`], without waiting.
pub(crate) fn poll_taken(body: &mut ResponseBody) -> Poll<bool> {
    match body {
        Either::Left(body) => body.taken(),
        Either::Right(body) => body.taken(),
    }
}

/// The tunnel that follows a 101.
pub(crate) fn into_upgraded(body: ResponseBody) -> Option<Upgraded> {
    match body {
        Either::Left(body) => body.into_upgraded(),
        Either::Right(_) => None,
    }
}
