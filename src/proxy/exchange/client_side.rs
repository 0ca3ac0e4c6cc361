//! The client's side of an exchange. The client gets the response at its own pace, until a newer
//! token waits. From then on the response is read at the upstream's pace.

use std::collections::VecDeque;

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::body::MemoryShare;
use crate::proxy::client_body::{AnswerFraming, ClientBody, RelayedFrame};

/// The bytes kept for a client that has stalled while a newer token waits. Beyond that, the
/// client's response is cut, so that the newer token is not delayed.
const KEPT_FOR_STALLED: usize = 1 << 20;

/// The most frames between the upstream and a client that reads. A frame is what one read from the
/// upstream returned.
const WINDOW: usize = 2;

/// Both ends of the channel to the client: the sender that gets the response, and the body that the
/// client reads.
pub(super) fn channel(framing: AnswerFraming, memory: MemoryShare) -> (ClientSender, ClientBody) {
    let (frames, receiver) = mpsc::channel(WINDOW);
    let client = ClientSender {
        frames: Some(frames),
        kept: VecDeque::new(),
        memory,
    };
    (client, ClientBody::relayed(framing, receiver))
}

fn length(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

/// Hands the response to the client.
pub(super) struct ClientSender {
    /// `None`: the client has left, or its response was cut.
    frames: Option<mpsc::Sender<RelayedFrame>>,
    /// Frames that the client has not taken since a newer token waits.
    kept: VecDeque<Frame<Bytes>>,
    /// The budget that the kept frames are charged to.
    memory: MemoryShare,
}

impl ClientSender {
    /// Hands over a frame. Waits for the client, unless a newer token waits.
    pub(super) async fn give(&mut self, frame: Frame<Bytes>, superseded: &CancellationToken) {
        let Some(frames) = self.frames.clone() else {
            return;
        };
        if self.kept.is_empty() {
            tokio::select! {
                biased;
                place = frames.reserve() => {
                    match place {
                        Ok(place) => place.send(RelayedFrame::Next(frame)),
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
                        place.send(RelayedFrame::Next(frame));
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

    /// Keeps the last frame of a response. It is not charged, so that no response is cut for it.
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

    /// Hands over the rest of a response, and marks its end. No token waits for this.
    pub(super) async fn finish(self) {
        let Some(frames) = self.frames else {
            return;
        };
        let mut kept = self.kept;
        // The end goes with the last frame, so that the request's permit is free when its client
        // sees the end.
        let end = RelayedFrame::Last(kept.pop_back());
        for frame in kept {
            if frames.send(RelayedFrame::Next(frame)).await.is_err() {
                return;
            }
        }
        let _ = frames.send(end).await;
    }
}
