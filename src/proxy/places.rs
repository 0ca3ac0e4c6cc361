//! Places for requests in flight: `limits.in_flight` of them, over all routes and modes.
//!
//! Every request that may go upstream has one, judged or not, from before its body is read until the upstream is
//! done with it and its client has its answer: what a request holds in memory is bounded by that.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::{BoxError, ClientBody};
use super::respond::Refusal;
use crate::metrics::{Limit, Metrics};

/// All places.
pub(super) struct Places {
    free: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// One place; shared by whatever the request keeps at work.
pub(super) type Place = Arc<OwnedSemaphorePermit>;

impl Places {
    pub(super) fn new(most: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most)),
            metrics,
        }
    }

    /// A place at once, or none: who waits for one would need one.
    pub(super) fn take(&self) -> Result<Place, Refusal> {
        let taken = Arc::clone(&self.free).try_acquire_owned();
        taken.map(Arc::new).map_err(|_| {
            self.metrics.limit(Limit::InFlight);
            Refusal::Overloaded("Nothing was forwarded. See limits.in_flight.")
        })
    }
}

/// The response, keeping `kept` until its body has been taken or dropped.
pub(super) fn keep(
    response: Response<ClientBody>,
    kept: impl Send + 'static,
) -> Response<ClientBody> {
    if response.body().is_end_stream() {
        return response;
    }
    response.map(|body| Keeping { body, _kept: kept }.boxed_unsync())
}

struct Keeping<K> {
    body: ClientBody,
    _kept: K,
}

// Nothing in it is pinned in place: the body is a box.
impl<K> Unpin for Keeping<K> {}

impl<K> Body for Keeping<K> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
