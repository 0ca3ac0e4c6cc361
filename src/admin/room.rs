//! Limits the requests that are costly: in all, and of one client. Requests beyond the limits are
//! refused at once. Probes are not limited.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::clients::AdminClient;
use super::peer::AdminPeer;
use super::problem;
use crate::counts::{CountGuard, Counts};
use crate::metrics::{AdminRefusal, Metrics};

/// How much of an answer is handed to the connection at once. The rest keeps the answer's permit.
const PIECE: usize = 16 << 10;

/// The limit on requests in progress.
pub struct AdminRoom {
    free: Arc<Semaphore>,
    each: usize,
    taken: Arc<Counts<AdminClient>>,
    metrics: Arc<Metrics>,
}

impl AdminRoom {
    /// Room for `all` requests; one client takes half at most.
    pub fn new(all: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(all)),
            each: all / 2,
            taken: Arc::default(),
            metrics,
        })
    }

    fn enter(&self, client: AdminClient) -> Option<RoomPermit> {
        Some(RoomPermit {
            _own: self.taken.take(client, |own| own < self.each)?,
            _place: Arc::clone(&self.free).try_acquire_owned().ok()?,
        })
    }

    /// A layer: serves a request if there is room, and keeps the room until the connection has
    /// taken the answer.
    pub async fn serve(self: Arc<Self>, request: Request, next: Next) -> Response {
        let Some(held) = self.enter(AdminPeer::of(&request).client) else {
            self.metrics.admin_refused(AdminRefusal::Overloaded);
            return problem::shed().into_response();
        };
        let response = next.run(request).await;
        response.map(|body| {
            Body::new(HeldAnswer {
                body,
                rest: Bytes::new(),
                _held: held,
            })
        })
    }
}

/// A permit of the room.
#[must_use = "the place is given back when this is dropped"]
struct RoomPermit {
    _own: CountGuard<AdminClient>,
    _place: OwnedSemaphorePermit,
}

/// An answer that is sent piece by piece, with its permit.
struct HeldAnswer {
    body: Body,
    /// The part of the body that was received and not sent yet.
    rest: Bytes,
    _held: RoomPermit,
}

impl http_body::Body for HeldAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let behind = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(behind.lower().saturating_add(rest));
        if let Some(upper) = behind.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn one_client_takes_half_of_the_room_and_gives_it_back() {
        let room = AdminRoom::new(4, Arc::new(Metrics::new(&[])));
        let user = |uid| AdminClient::User(Some(uid));
        let held: Vec<_> = (0..3).filter_map(|_| room.enter(user(1))).collect();
        assert_eq!(held.len(), 2);
        let others: Vec<_> = (2..9).filter_map(|uid| room.enter(user(uid))).collect();
        assert_eq!(others.len(), 2);
        drop(held);
        assert!(room.enter(user(9)).is_some());
        drop(others);
        assert!(room.taken.is_empty());
    }

    #[tokio::test]
    async fn an_answer_goes_out_in_pieces_and_holds_its_place_until_the_last() {
        let room = AdminRoom::new(2, Arc::new(Metrics::new(&[])));
        let whole = vec![7; 2 * PIECE + 1];
        let mut answer = HeldAnswer {
            body: whole.clone().into(),
            rest: Bytes::new(),
            _held: room.enter(AdminClient::Loopback).expect("there is room"),
        };
        let hint = http_body::Body::size_hint(&answer);
        assert_eq!(hint.exact(), Some(2 * PIECE as u64 + 1));
        let first = answer.frame().await.expect("a frame").expect("no error");
        assert_eq!(first.into_data().expect("data").len(), PIECE);
        assert_eq!(
            http_body::Body::size_hint(&answer).exact(),
            Some(PIECE as u64 + 1)
        );
        assert!(room.enter(AdminClient::Loopback).is_none());
        let rest = answer.collect().await.expect("no error").to_bytes();
        assert_eq!(rest, whole[PIECE..]);
        assert!(room.enter(AdminClient::Loopback).is_some());
    }
}
