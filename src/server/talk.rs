//! What the two ends of hyper tell each other about one connection: the guard, which reads what the client
//! sends before hyper does, and the service, which hyper calls once per HTTP/1 head, in order. So the number
//! of a request is the same for both.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::wire::request::RequestError;

/// One connection's. On HTTP/2 the counts mean nothing, and nobody asks for them.
#[derive(Debug, Default)]
pub(super) struct Talk {
    called: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    /// How many requests the guard has read to the end of their bodies.
    whole: AtomicU64,
    switched: AtomicBool,
    /// A request has begun to come and is not whole.
    reading: AtomicBool,
    /// It is still in its head.
    in_head: AtomicBool,
    /// Since when.
    head: Mutex<Option<Instant>>,
    /// A write waits for the client to take what was written before.
    writing: AtomicBool,
    /// Wakes the guard when a request is answered.
    guard: AtomicWaker,
    /// The request that ended the trust in the connection. Hyper was given another in its place.
    refused: OnceLock<(u64, RequestError)>,
}

impl Talk {
    /// A request has come as far as the service.
    pub(super) fn call(self: &Arc<Self>) -> Call {
        Call {
            number: self.called.fetch_add(1, Ordering::AcqRel) + 1,
            talk: Arc::clone(self),
        }
    }

    /// The request with this number is refused.
    pub(super) fn refuse(&self, number: u64, error: RequestError) {
        let _ = self.refused.set((number, error));
    }

    /// So many requests have come to the end of their bodies.
    pub(super) fn whole(&self, requests: u64) {
        self.whole.store(requests, Ordering::Release);
    }

    /// Whether there is a part of a request, when nothing more can be read; `head`: a part of its
    /// head, and since when.
    pub(super) fn reading(&self, reading: bool, head: Option<Instant>) {
        if head.is_some() || self.in_head.load(Ordering::Acquire) {
            *self.head.lock().unwrap_or_else(PoisonError::into_inner) = head;
            self.in_head.store(head.is_some(), Ordering::Release);
        }
        self.reading.store(reading, Ordering::Release);
    }

    /// Since when there is nothing but a part of a head.
    pub(super) fn head_since(&self) -> Option<Instant> {
        if self.writing.load(Ordering::Acquire) {
            return None;
        }
        *self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a part of a response that the client has not made room for.
    pub(super) fn writing(&self, writing: bool) {
        self.writing.store(writing, Ordering::Release);
    }

    /// Whether a part of a request has come, or a part of a response has not gone.
    pub(super) fn is_under_way(&self) -> bool {
        self.reading.load(Ordering::Acquire) || self.writing.load(Ordering::Acquire)
    }

    /// How many responses are over, to their last byte or not.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the request with this number is answered, and if so whether the connection leaves HTTP with
    /// it. Wakes when that changes.
    pub(super) fn verdict(&self, number: u64, waker: &Waker) -> Option<bool> {
        self.guard.register(waker);
        let answered = self.answered.load(Ordering::Acquire) >= number;
        answered.then(|| self.switched.load(Ordering::Acquire))
    }
}

/// One request, until its response is over.
#[must_use]
#[derive(Debug)]
pub(super) struct Call {
    talk: Arc<Talk>,
    number: u64,
}

impl Call {
    /// Why this request is not what the client sent, and is to be refused.
    pub(super) fn refused(&self) -> Option<RequestError> {
        let refused = self.talk.refused.get();
        refused.and_then(|(number, error)| (*number == self.number).then_some(*error))
    }

    /// Whether the request has come to the end of its body, read or not.
    pub(super) fn is_whole(&self) -> bool {
        self.talk.whole.load(Ordering::Acquire) >= self.number
    }

    /// Says what the response is, before its first byte is written: what the client sends upon it must find
    /// the guard ready for it.
    pub(super) fn answered(&self, switches: bool) {
        if switches {
            self.talk.switched.store(true, Ordering::Release);
        }
        self.talk.answered.store(self.number, Ordering::Release);
        self.talk.guard.wake();
    }

    /// Holds on to the call for as long as the body of its response.
    pub(super) fn with<B>(self, body: B) -> Answer<B> {
        Answer { body, _call: self }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.talk.ended.fetch_add(1, Ordering::AcqRel);
    }
}

/// The body of a response.
#[derive(Debug)]
pub(super) struct Answer<B> {
    body: B,
    _call: Call,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
