//! The body of a client's request as it comes, over either version of HTTP.
//!
//! Over HTTP/1 the connection's own task reads it, and only when the reader asks for more. The two
//! share one [`BodySlot`]: mostly both are the same task, so that the lock is never waited for and
//! no task has to be woken. A fenced exchange may go on in another task when the client has left.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;

use super::BoxError;
use crate::locked::locked;

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
    /// Nothing comes behind the data: the body is whole, or has broken off.
    end: Option<Result<(), BoxError>>,
    wish: Wish,
    reader: Option<Waker>,
    feeder: Option<Waker>,
}

/// The wish of the reader of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wish {
    More,
    /// The reader wants no more until it asks again.
    #[default]
    Nothing,
    /// It has been dropped.
    Dropped,
}

/// Stores the waker, if it is another one.
fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    let waker = waker.get_or_insert_with(|| cx.waker().clone());
    waker.clone_from(cx.waker());
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
        let mut slot = locked(&self.0);
        register(&mut slot.feeder, cx);
        slot.wish
    }

    /// Says if the reader has been dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        locked(&self.0).wish == Wish::Dropped
    }

    /// Hands over what has come: data, and whether that was all.
    pub(crate) fn give(&self, data: Option<Bytes>, ended: bool, cx: &Context<'_>) {
        self.tell(cx, |slot| {
            slot.data = data;
            slot.end = ended.then_some(Ok(()));
        });
    }

    /// The body breaks off.
    pub(crate) fn fail(&self, error: BoxError, cx: &Context<'_>) {
        self.tell(cx, |slot| slot.end = Some(Err(error)));
    }

    fn tell(&self, cx: &Context<'_>, what: impl FnOnce(&mut BodySlot)) {
        let reader = {
            let mut slot = locked(&self.0);
            what(&mut slot);
            if slot.wish == Wish::More {
                slot.wish = Wish::Nothing;
            }
            // The task at hand looks at once.
            let reader = slot.reader.take();
            reader.filter(|reader| !reader.will_wake(cx.waker()))
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.tell(&Context::from_waker(Waker::noop()), |slot| {
            let closed = || Err("the client's connection was closed".into());
            slot.end.get_or_insert_with(closed);
        });
    }
}

impl Streamed {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let feeder = {
            let mut slot = locked(&self.shared);
            if let Some(data) = slot.data.take() {
                let left = &mut self.left;
                *left = left.map(|left| left.saturating_sub(data.len() as u64));
                return Poll::Ready(Some(Ok(data)));
            }
            match &mut slot.end {
                Some(Ok(())) => return Poll::Ready(None),
                Some(Err(error)) => {
                    let again = "the body has broken off".into();
                    return Poll::Ready(Some(Err(std::mem::replace(error, again))));
                }
                None => {}
            }
            register(&mut slot.reader, cx);
            let before = std::mem::replace(&mut slot.wish, Wish::More);
            slot.feeder
                .clone()
                .filter(|feeder| before != Wish::More && !feeder.will_wake(cx.waker()))
        };
        if let Some(feeder) = feeder {
            feeder.wake();
        }
        Poll::Pending
    }

    fn is_end(&self) -> bool {
        let slot = locked(&self.shared);
        slot.data.is_none() && matches!(slot.end, Some(Ok(())))
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        let feeder = {
            let mut slot = locked(&self.shared);
            slot.wish = Wish::Dropped;
            slot.feeder.take().filter(|_| slot.end.is_none())
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
            body => body.is_end().then(Bytes::new),
        }
    }

    /// The next piece. A request's trailers are not forwarded, so there are none here.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BoxError>>> {
        match self {
            Self::Whole(content) => {
                let content = std::mem::take(content);
                Poll::Ready((!content.is_empty()).then_some(Ok(content)))
            }
            Self::Http1(body) => body.poll_data(cx),
            Self::Http2(body) => loop {
                let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(cx)) else {
                    return Poll::Ready(None);
                };
                if let Ok(data) = frame?.into_data() {
                    return Poll::Ready(Some(Ok(data)));
                }
            },
        }
    }

    /// Says if nothing more comes.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Whole(content) => content.is_empty(),
            Self::Http1(body) => body.is_end(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    /// The bytes that are left; `None`: unknown.
    pub(crate) fn left(&self) -> Option<u64> {
        match self {
            Self::Whole(content) => Some(content.len() as u64),
            Self::Http1(body) => body.left,
            Self::Http2(body) => body.size_hint().exact(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

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
            assert!(body.poll_data(&mut reader).is_pending());
            let woken = usize::from(!same);
            assert_eq!(asked.0.load(Ordering::Relaxed), woken);
            assert_eq!(feed.wish(&feeder), Wish::More);
            feed.give(Some(Bytes::from_static(b"hello")), true, &feeder);
            assert_eq!(read.0.load(Ordering::Relaxed), woken);
            assert_eq!(feed.wish(&feeder), Wish::Nothing);
            let data = body.poll_data(&mut reader);
            assert!(matches!(data, Poll::Ready(Some(Ok(_)))));
            assert!(body.is_end());
            assert_eq!(body.left(), Some(0));
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
            // A second read fails as well: a broken body never ends clean.
            for _ in 0..2 {
                let data = std::future::poll_fn(|cx| body.poll_data(cx)).await;
                data.expect("no clean end").expect_err("broken off");
            }
        });
        tokio::task::yield_now().await;
        drop(feed);
        asking.await.expect("it ends");
    }
}
