//! Bodies on their way through: read up to a limit before admission, streamed beyond it.
//!
//! A body that fits in `body.buffer` is read whole before the request is judged, so that a client
//! which pauses halfway through its upload is judged by the mark as it is when the upload ends, and
//! holds nobody up. A longer one is admitted first and streamed behind what was read already.

mod error;
mod outgoing;
mod rules;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::error::{BoxError, UploadError};
pub(crate) use self::outgoing::UpstreamBody;
use self::outgoing::is_empty;
pub(crate) use self::rules::BodyRules;
use super::headers::trailers::TrailerRules;
use super::memory::{NoRoom, Pieces};
use super::pace::{Flow, Pace};
use super::rate::Rate;
use super::received::Received;

/// So much of a body that is known to be longer than `body.buffer` is read before admission. A client
/// that announces one and sends nothing holds up nobody.
const BEGINNING: u64 = 16 << 10;

/// What was read of a request's body before admission, and the rest, if it is longer.
pub(crate) struct Upload {
    pieces: Pieces,
    /// `None`: the body has been read whole.
    rest: Option<Received>,
    /// The client sent a Content-Length, so the length is the header's business.
    sized: bool,
    /// `None` only where there is nothing they could hold for.
    rules: Option<BodyRules>,
}

impl Upload {
    /// Reads up to `body.buffer` bytes. `hold`: when that has passed, what has not come is left to be streamed.
    pub(crate) async fn read(
        incoming: Received,
        headers: &HeaderMap,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        let read = Self::read_within(incoming, headers, rules, hold).await;
        read.inspect_err(|error| rules.count(error))
    }

    async fn read_within(
        mut incoming: Received,
        headers: &HeaderMap,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        let limits = rules.settings;
        rules.admit(&incoming)?;
        let mut upload = Self {
            pieces: Pieces::new(Some(rules.memory.share())),
            rest: None,
            sized: headers.contains_key(http::header::CONTENT_LENGTH),
            rules: Some(rules.clone()),
        };
        if limits.buffer == 0 && !incoming.is_end_stream() {
            upload.rest = Some(incoming);
            return Ok(upload);
        }
        if let Some(content) = incoming.take_whole(limits.buffer) {
            // It has come with its head: there is nobody to wait for.
            let frame = Frame::data(content);
            if !is_empty(&frame) {
                upload
                    .pieces
                    .push(frame)
                    .map_err(|NoRoom| UploadError::NoRoom)?;
            }
            upload.pieces.seal();
            return Ok(upload);
        }
        let wanted = if incoming.size_hint().lower() > limits.buffer {
            BEGINNING.min(limits.buffer)
        } else {
            limits.buffer.saturating_add(1)
        };
        let whole = upload.fill(&mut incoming, rules, wanted, hold).await?;
        upload.pieces.seal();
        upload.rest = (!whole).then_some(incoming);
        Ok(upload)
    }

    /// Reads until `wanted` bytes are here, the body ends, or `hold` has passed. Says whether it has
    /// ended.
    async fn fill(
        &mut self,
        incoming: &mut Received,
        rules: &BodyRules,
        wanted: u64,
        hold: Option<Duration>,
    ) -> Result<bool, UploadError> {
        let limits = rules.settings;
        let began = Instant::now();
        let mut moved = began;
        let least = rules.least.as_ref();
        let mut rate = least.map(|least| Rate::new(least, limits.progress_timeout));
        let streamed_from = hold.map(|hold| began + hold);
        while self.pieces.length() < wanted {
            let (whole, pause) = (began + limits.timeout, moved + limits.progress_timeout);
            let end = whole.min(pause);
            let until = streamed_from.map_or(end, |from| from.min(end));
            let sample = rate.as_ref().map(Rate::next).filter(|next| *next < until);
            let next = sample.unwrap_or(until);
            let crowded = rate.as_ref().and_then(Rate::crowded);
            let frame = tokio::time::timeout_at(next, incoming.frame());
            let frame = tokio::select! {
                biased;
                frame = frame => frame,
                () = cancelled(crowded) => return Err(UploadError::Crowded),
            };
            let frame = match frame {
                Ok(Some(frame)) => frame.map_err(UploadError::Broken)?,
                Ok(None) => return Ok(true),
                Err(_) if sample.is_some() => {
                    if let Some(rate) = &mut rate
                        && !rate.sampled(true)
                    {
                        return Err(UploadError::TooLow(rate.least()));
                    }
                    continue;
                }
                Err(_) if until < end => break,
                Err(_) if pause < whole => {
                    return Err(UploadError::Paused(limits.progress_timeout));
                }
                Err(_) => return Err(UploadError::TooSlow(limits.timeout)),
            };
            if is_empty(&frame) {
                // An empty DATA frame of HTTP/2: no progress, and nothing to keep.
                continue;
            }
            moved = Instant::now();
            if let Some(rate) = &mut rate {
                rate.received(frame.data_ref().map_or(0, Bytes::len));
            }
            rules.check(&frame)?;
            self.pieces
                .push(frame)
                .map_err(|NoRoom| UploadError::NoRoom)?;
            if let Some(max) = limits.max
                && self.pieces.length() > max
            {
                return Err(UploadError::TooLarge(max));
            }
        }
        Ok(false)
    }

    /// A body of which nothing is read beforehand.
    pub(crate) fn streamed(incoming: Received, rules: &BodyRules) -> Result<Self, UploadError> {
        rules
            .admit(&incoming)
            .inspect_err(|error| rules.count(error))?;
        Ok(Self {
            pieces: Pieces::new(None),
            rest: (!incoming.is_end_stream()).then_some(incoming),
            sized: false,
            rules: Some(rules.clone()),
        })
    }

    /// A body of which nothing is read, and that may take as long as it likes.
    #[cfg(test)]
    pub(crate) fn unlimited(incoming: Received) -> Self {
        Self {
            rest: Some(incoming),
            ..Self::empty()
        }
    }

    /// No body.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            pieces: Pieces::new(None),
            rest: None,
            sized: false,
            rules: None,
        }
    }

    /// The whole body, if it has been read whole.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        self.rest.is_none().then(|| self.pieces.joined())
    }

    /// Its trailers, if they have come.
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.pieces.trailers()
    }

    /// The body of a fenced request as it goes upstream. `over` is cancelled when nothing more of it will be
    /// sent: it has been handed over whole, or was dropped. It has a deadline as a whole: a barrier is held.
    pub(crate) fn send(self, trailers: TrailerRules, over: CancellationToken) -> UpstreamBody {
        let pace = |rules: &BodyRules| {
            let limits = rules.settings;
            Pace::new(
                Some(limits.timeout),
                limits.progress_timeout,
                rules.least.as_ref(),
            )
        };
        self.send_at(trailers, pace, Some(over), None)
    }

    /// The body of a request that nobody judges. It holds nobody up, and a long upload that moves is none of
    /// the proxy's business (images, backups, gRPC streams): only a client that pauses is cut.
    pub(super) fn send_unfenced(self, trailers: TrailerRules, flow: Arc<Flow>) -> UpstreamBody {
        let pace = |rules: &BodyRules| {
            Pace::new(None, rules.settings.progress_timeout, rules.least.as_ref())
        };
        self.send_at(trailers, pace, None, Some(flow))
    }

    fn send_at(
        self,
        trailers: TrailerRules,
        pace: impl FnOnce(&BodyRules) -> Pace,
        over: Option<CancellationToken>,
        flow: Option<Arc<Flow>>,
    ) -> UpstreamBody {
        let streamed = self.rules.filter(|_| self.rest.is_some());
        UpstreamBody::new(
            (self.pieces, self.rest),
            self.sized,
            trailers,
            streamed.map(|rules| (pace(&rules), rules)),
            (over, flow),
        )
    }
}

async fn cancelled(token: Option<CancellationToken>) {
    match token {
        Some(token) => token.cancelled_owned().await,
        None => std::future::pending().await,
    }
}
