//! The client's side of an exchange: it gets the response at its own pace, and at the upstream's once a
//! newer token waits.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::proxy::body::BoxError;
use crate::proxy::memory::Share;

/// What is kept for a client that has stalled while a newer token waits; beyond it, the client's
/// response is cut, so that the newer token is not held up.
const KEPT_FOR_STALLED: usize = 1 << 20;

/// Frames between the upstream and a client that reads them, each as long as the client of the upstream
/// reads at once.
const WINDOW: usize = 2;

/// How the upstream's body is framed.
#[derive(Clone, Copy)]
pub(super) struct AnswerFraming {
    over: bool,
    hint: SizeHint,
}

impl AnswerFraming {
    /// Of a body of which nothing has been read.
    pub(super) fn of(body: &impl Body) -> Self {
        Self {
            over: body.is_end_stream(),
            hint: body.size_hint(),
        }
    }
}

/// Both ends of the way to the client: the one that the response is handed to, and the body that the
/// client gets.
pub(super) fn way(framing: AnswerFraming, memory: Share) -> (FollowedClient, Followed) {
    let (frames, receiver) = mpsc::channel(WINDOW);
    let client = FollowedClient {
        frames: Some(frames),
        kept: VecDeque::new(),
        memory,
    };
    let followed = Followed {
        source: FrameSource::Exchange(receiver),
        framing,
    };
    (client, followed)
}

/// What the pump hands to the client's side.
enum AnswerPiece {
    Frame(Frame<Bytes>),
    /// The response is whole with this.
    Last(Frame<Bytes>),
    /// The response was whole.
    End,
}

fn length(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

/// The client's side of an exchange, seen from the pump.
pub(super) struct FollowedClient {
    /// `None`: the client has left, or its response was cut.
    frames: Option<mpsc::Sender<AnswerPiece>>,
    /// What the client has not taken since a newer token waits.
    kept: VecDeque<Frame<Bytes>>,
    /// What is charged for it.
    memory: Share,
}

impl FollowedClient {
    /// Hands over a frame at the client's pace; once a newer token waits, at the upstream's.
    pub(super) async fn give(&mut self, frame: Frame<Bytes>, superseded: &CancellationToken) {
        let Some(frames) = self.frames.clone() else {
            return;
        };
        if self.kept.is_empty() {
            tokio::select! {
                biased;
                place = frames.reserve() => {
                    match place {
                        Ok(place) => place.send(AnswerPiece::Frame(frame)),
                        Err(_) => self.frames = None,
                    }
                    return;
                }
                () = superseded.cancelled() => {}
            }
        }
        self.keep(frame);
        while !self.kept.is_empty() {
            match frames.try_reserve() {
                Ok(place) => {
                    if let Some(frame) = self.kept.pop_front() {
                        self.memory.give(length(&frame));
                        place.send(AnswerPiece::Frame(frame));
                    }
                }
                Err(mpsc::error::TrySendError::Full(())) => break,
                Err(mpsc::error::TrySendError::Closed(())) => {
                    self.frames = None;
                    break;
                }
            }
        }
        if self.memory.bytes() > KEPT_FOR_STALLED {
            self.cut();
        }
    }

    fn keep(&mut self, frame: Frame<Bytes>) {
        if self.memory.grow(length(&frame)) {
            self.kept.push_back(frame);
        } else {
            self.cut();
        }
    }

    /// Keeps the last frame of a response. It is one more at the most, and not charged: no response is cut for it.
    pub(super) fn keep_last(&mut self, frame: Frame<Bytes>) {
        if self.frames.is_some() {
            self.kept.push_back(frame);
        }
    }

    fn cut(&mut self) {
        self.frames = None;
        self.kept.clear();
        self.memory.give(self.memory.bytes());
    }

    /// Hands over what is left of a `whole` response, and says that it was whole. Nobody's token waits
    /// for this.
    pub(super) async fn finish(self, whole: bool) {
        let Some(frames) = self.frames.filter(|_| whole) else {
            return;
        };
        let mut kept = self.kept;
        // With its last frame, so that the request's place is free when its client sees the end.
        let end = kept.pop_back().map_or(AnswerPiece::End, AnswerPiece::Last);
        for frame in kept {
            if frames.send(AnswerPiece::Frame(frame)).await.is_err() {
                return;
            }
        }
        let _ = frames.send(end).await;
    }
}

/// The response's body as the client sees it: ends cleanly only if the upstream's did.
pub(crate) struct Followed {
    source: FrameSource,
    framing: AnswerFraming,
}

enum FrameSource {
    /// All of it, or all that is left.
    Whole(Option<Frame<Bytes>>),
    Exchange(mpsc::Receiver<AnswerPiece>),
}

impl Followed {
    /// The body of an exchange that is over: `frame` is all of it.
    pub(super) fn whole(framing: AnswerFraming, frame: Option<Frame<Bytes>>) -> Self {
        Self {
            source: FrameSource::Whole(frame),
            framing,
        }
    }
}

impl Body for Followed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { source, framing } = &mut *self;
        if framing.over {
            return Poll::Ready(None);
        }
        let frames = match source {
            FrameSource::Whole(frame) => {
                framing.over = true;
                return Poll::Ready(frame.take().map(Ok));
            }
            FrameSource::Exchange(frames) => frames,
        };
        match frames.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(AnswerPiece::Frame(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(AnswerPiece::Last(frame))) => {
                framing.over = true;
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(AnswerPiece::End)) => {
                framing.over = true;
                Poll::Ready(None)
            }
            Poll::Ready(None) => {
                framing.over = true;
                Poll::Ready(Some(Err("the upstream's response is incomplete".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.framing.over
    }

    fn size_hint(&self) -> SizeHint {
        // Only at the start: hyper asks once, to frame the response as the upstream did.
        self.framing.hint
    }
}
