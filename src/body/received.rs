//! The body of a client's request as it comes, over either version of HTTP.
//!
//! Over HTTP/1 the connection's own task reads it, and only when the reader asks for more. The two
//! share one [`BodySlot`]: mostly both are the same task, so that the lock is never waited for and
//! no task has to be woken. A fenced exchange may go on in another task when the client has left.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::BoxError;

/// A request's body.
#[derive(Debug)]
pub(crate) enum Received {
    /// It has come whole, together with its head; empty: there is none, or no more of it.
    Whole(Bytes),
    Http1(Streamed),
    Http2(Incoming),
}

/// A body that is read from an HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Streamed {
    shared: Arc<Mutex<BodySlot>>,
    /// The bytes that are left; `None`: unknown.
    left: Option<u64>,
}

/// The connection's side of a body. Dropped before its end, it breaks the body off.
#[derive(Debug)]
pub(crate) struct Feed(Arc<Mutex<BodySlot>>);

/// The state that both sides share. Locked for a look, never across an await.
#[derive(Debug, Default)]
struct BodySlot {
    data: Option<Bytes>,
    /// Why nothing more comes, though the body is not whole.
    broken: Option<BoxError>,
    /// Nothing more comes.
    ended: bool,
    /// The reader waits for more.
    wanted: bool,
    /// The reader has been dropped.
    dropped: bool,
    reader: Option<Waker>,
    feeder: Option<Waker>,
}

/// The wish of the reader of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    More,
    /// The reader wants no more until it asks again.
    Nothing,
    /// It has been dropped.
    Dropped,
}

#[derive(Debug, thiserror::Error)]
#[error("the client's connection was closed")]
struct Closed;

fn lock(shared: &Mutex<BodySlot>) -> MutexGuard<'_, BodySlot> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores the waker, if it is another one.
fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker
        .as_ref()
        .is_some_and(|waker| waker.will_wake(cx.waker()))
    {
        *waker = Some(cx.waker().clone());
    }
}

/// A body of `length` bytes (`None`: unknown), and its connection's side.
pub(crate) fn streamed(length: Option<u64>) -> (Feed, Received) {
    let shared: Arc<Mutex<BodySlot>> = Arc::default();
    let body = Streamed {
        shared: Arc::clone(&shared),
        left: length,
    };
    (Feed(shared), Received::Http1(body))
}

impl Feed {
    /// The current wish. A later wish wakes `cx`, unless it comes from the same task: that looks
    /// again by itself.
    pub(crate) fn wish(&self, cx: &Context<'_>) -> Wish {
        let mut slot = lock(&self.0);
        register(&mut slot.feeder, cx);
        if slot.dropped {
            Wish::Dropped
        } else if slot.wanted {
            Wish::More
        } else {
            Wish::Nothing
        }
    }

    /// Says if the reader has been dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        lock(&self.0).dropped
    }

    /// Hands over what has come: data, and whether that was all.
    pub(crate) fn give(&self, data: Option<Bytes>, ended: bool, cx: &Context<'_>) {
        self.tell(Some(cx), |slot| {
            slot.data = data;
            slot.ended = ended;
        });
    }

    /// The body breaks off.
    pub(crate) fn fail(&self, error: BoxError, cx: &Context<'_>) {
        self.tell(Some(cx), |slot| {
            slot.broken = Some(error);
            slot.ended = true;
        });
    }

    fn tell(&self, cx: Option<&Context<'_>>, what: impl FnOnce(&mut BodySlot)) {
        let reader = {
            let mut slot = lock(&self.0);
            what(&mut slot);
            slot.wanted = false;
            slot.reader.take()
        };
        // The task at hand looks at once.
        if let Some(reader) = reader
            && !cx.is_some_and(|cx| reader.will_wake(cx.waker()))
        {
            reader.wake();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.tell(None, |slot| {
            if !slot.ended {
                slot.broken = Some(Closed.into());
                slot.ended = true;
            }
        });
    }
}

impl Streamed {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let feeder = {
            let mut slot = lock(&self.shared);
            if let Some(data) = slot.data.take() {
                let left = &mut self.left;
                *left = left.map(|left| left.saturating_sub(data.len() as u64));
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if let Some(error) = slot.broken.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if slot.ended {
                return Poll::Ready(None);
            }
            register(&mut slot.reader, cx);
            let asked = std::mem::replace(&mut slot.wanted, true);
            slot.feeder
                .clone()
                .filter(|feeder| !asked && !feeder.will_wake(cx.waker()))
        };
        if let Some(feeder) = feeder {
            feeder.wake();
        }
        Poll::Pending
    }

    fn is_end(&self) -> bool {
        let slot = lock(&self.shared);
        slot.ended && slot.data.is_none() && slot.broken.is_none()
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        let feeder = {
            let mut slot = lock(&self.shared);
            slot.dropped = true;
            slot.feeder.take().filter(|_| !slot.ended)
        };
        if let Some(feeder) = feeder {
            feeder.wake();
        }
    }
}

impl Received {
    /// The whole content, if it is here, and is no longer than `most`.
    pub(crate) fn take_whole(&mut self, most: u64) -> Option<Bytes> {
        match self {
            Self::Whole(content) if content.len() as u64 <= most => Some(std::mem::take(content)),
            Self::Whole(_) | Self::Http1(_) | Self::Http2(_) => None,
        }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(content) if content.is_empty() => Poll::Ready(None),
            Self::Whole(content) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(content))))),
            Self::Http1(body) => body.poll_frame(cx),
            Self::Http2(body) => loop {
                let frame = ready!(Pin::new(&mut *body).poll_frame(cx)).transpose()?;
                // A request's trailers are not forwarded.
                if frame.as_ref().is_none_or(Frame::is_data) {
                    return Poll::Ready(frame.map(Ok));
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(content) => content.is_empty(),
            Self::Http1(body) => body.is_end(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(content) => SizeHint::with_exact(content.len() as u64),
            Self::Http1(body) => body
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use http_body_util::BodyExt as _;

    use super::*;

    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted() -> (Arc<Counted>, Waker) {
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&counted));
        (counted, waker)
    }

    #[test]
    fn another_task_is_woken_and_the_same_one_is_not() {
        for same in [true, false] {
            let (feed, mut body) = streamed(Some(5));
            let (asked, feeder) = counted();
            let (read, reader) = counted();
            let reader = if same { feeder.clone() } else { reader };
            let (mut feeder, mut reader) =
                (Context::from_waker(&feeder), Context::from_waker(&reader));
            assert_eq!(feed.wish(&feeder), Wish::Nothing);
            assert!(Pin::new(&mut body).poll_frame(&mut reader).is_pending());
            let woken = usize::from(!same);
            assert_eq!(asked.0.load(Ordering::Relaxed), woken);
            assert_eq!(feed.wish(&feeder), Wish::More);
            feed.give(Some(Bytes::from_static(b"hello")), true, &feeder);
            assert_eq!(read.0.load(Ordering::Relaxed), woken);
            assert_eq!(feed.wish(&feeder), Wish::Nothing);
            let frame = Pin::new(&mut body).poll_frame(&mut reader);
            assert!(matches!(frame, Poll::Ready(Some(Ok(_)))));
            assert!(body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some(0));
            drop(body);
            assert_eq!(feed.wish(&feeder), Wish::Dropped);
            assert_eq!(asked.0.load(Ordering::Relaxed), woken, "it was whole");
            let _ = (&mut feeder, &mut reader);
        }
    }

    #[tokio::test]
    async fn a_body_whose_connection_is_gone_breaks_off() {
        let (feed, mut body) = streamed(None);
        let asking = tokio::spawn(async move {
            let frame = body.frame().await;
            frame.expect("no clean end").expect_err("broken off")
        });
        tokio::task::yield_now().await;
        drop(feed);
        asking.await.expect("it ends");
    }
}
