//! [`RequestBody`]: read up to a limit before admission, streamed beyond it.
//!
//! A body that fits in `body.buffer` is read whole before the request is judged. So a client that
//! pauses halfway through its upload is judged by the mark at the end of the upload, and delays no
//! other request. A longer body is admitted first, and its rest is streamed.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::UploadError;
use super::deadlines::{BodyRules, UploadDeadlines, UploadProgress};
use super::memory::{BufferedBody, NoRoom, WholeBody};
use super::received::Received;
use crate::http1::Fields;
use crate::http1::names::CONTENT_LENGTH;

/// The part that is read before admission of a body known to be longer than `body.buffer`. A client
/// that announces one and sends nothing delays no other request.
const BEGINNING: u64 = 16 << 10;

/// A request's body: the part that was read before admission, and the rest, if it is longer. On its
/// way upstream it ends with an error (which resets the upstream exchange) when the client breaks off,
/// takes too long, or sends more than it may.
pub(crate) struct RequestBody {
    pieces: BufferedBody,
    /// `None`: the body has been read whole.
    rest: Option<Received>,
    /// The client sent a Content-Length, so the length is the header's business.
    sized: bool,
    /// `None` only if there is no body.
    rules: Option<BodyRules>,
    /// How many bytes have been handed on, and whether those were all.
    passed: u64,
    ended: bool,
    /// `None`: it is not on its way yet.
    way: Option<Way>,
}

/// The way of a body upstream.
struct Way {
    /// `None`: the whole body is here.
    deadlines: Option<Box<UploadDeadlines>>,
    /// Told of the drop, too: nothing more of this body will be sent.
    progress: Arc<UploadProgress>,
    /// The client has to go on sending, whatever the upstream does.
    fenced: bool,
}

impl RequestBody {
    fn new(pieces: BufferedBody, rules: Option<BodyRules>) -> Self {
        Self {
            pieces,
            rest: None,
            sized: false,
            rules,
            passed: 0,
            ended: false,
            way: None,
        }
    }

    /// Reads up to `body.buffer` bytes. `hold`: after this time, the rest is left to be streamed.
    pub(crate) async fn read(
        incoming: Received,
        fields: &Fields,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        let read = Self::read_within(incoming, fields, rules, hold).await;
        read.inspect_err(|error| rules.count(error))
    }

    async fn read_within(
        mut incoming: Received,
        fields: &Fields,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        let limits = rules.settings;
        rules.admit(&incoming)?;
        let pieces = BufferedBody::new(Some(rules.memory.share()));
        let mut upload = Self::new(pieces, Some(rules.clone()));
        upload.sized = fields.contains(CONTENT_LENGTH);
        if limits.buffer == 0 && !incoming.is_end_stream() {
            upload.rest = Some(incoming);
            return Ok(upload);
        }
        if let Some(content) = incoming.take_whole(limits.buffer) {
            // It has come with its head, so there is nothing to wait for.
            if !content.is_empty() {
                upload
                    .pieces
                    .push(content)
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

    /// Reads until `wanted` bytes are here, the body ends, or `hold` has passed. Says whether it
    /// has ended.
    async fn fill(
        &mut self,
        incoming: &mut Received,
        rules: &BodyRules,
        wanted: u64,
        hold: Option<Duration>,
    ) -> Result<bool, UploadError> {
        let limits = rules.settings;
        // From the first wait: a body that is here needs no timers.
        let mut deadlines = None;
        let mut expired = std::pin::pin!(async {
            match hold {
                Some(hold) => tokio::time::sleep(hold).await,
                None => std::future::pending().await,
            }
        });
        while self.pieces.length() < wanted {
            let next = poll_fn(|cx| {
                if let Poll::Ready(frame) = Pin::new(&mut *incoming).poll_frame(cx) {
                    return Poll::Ready(Ok(Some(frame)));
                }
                if expired.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(None));
                }
                let deadlines =
                    deadlines.get_or_insert_with(|| rules.deadlines(Some(limits.timeout)));
                deadlines.wait(cx, true).map(Err)
            });
            let Some(frame) = next.await? else { break };
            let Some(frame) = frame else { return Ok(true) };
            let frame = frame.map_err(UploadError::Broken)?;
            // An empty DATA frame of HTTP/2: no progress, and nothing to keep.
            let Some(data) = frame.into_data().ok().filter(|data| !data.is_empty()) else {
                continue;
            };
            if let Some(deadlines) = &mut deadlines {
                deadlines.moved();
            }
            self.pieces
                .push(data)
                .map_err(|NoRoom| UploadError::NoRoom)?;
            if let Some(max) = limits.max
                && self.pieces.length() > max
            {
                return Err(UploadError::TooLarge(max));
            }
        }
        Ok(false)
    }

    /// A body that is streamed from its first byte.
    pub(crate) fn streamed(incoming: Received, rules: &BodyRules) -> Result<Self, UploadError> {
        rules
            .admit(&incoming)
            .inspect_err(|error| rules.count(error))?;
        let rest = (!incoming.is_end_stream()).then_some(incoming);
        let rules = rest.is_some().then(|| rules.clone());
        let mut streamed = Self::new(BufferedBody::new(None), rules);
        streamed.rest = rest;
        Ok(streamed)
    }

    /// A body that is streamed from its first byte, without a deadline.
    #[cfg(test)]
    pub(crate) fn unlimited(incoming: Received) -> Self {
        let mut unlimited = Self::empty();
        unlimited.rest = Some(incoming);
        unlimited
    }

    /// A body that has been read whole.
    #[cfg(test)]
    pub(crate) fn buffered(data: Bytes, memory: &Arc<super::BodyMemory>) -> Self {
        let mut pieces = BufferedBody::new(Some(memory.share()));
        pieces.push(data).expect("room");
        Self::new(pieces, None)
    }

    /// No body.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self::new(BufferedBody::new(None), None)
    }

    /// The length of the body, if it has been read whole.
    pub(crate) fn whole_length(&self) -> Option<u64> {
        self.rest.is_none().then(|| self.pieces.length())
    }

    /// The pieces of a body that has been read whole.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.pieces()
    }

    /// The whole body in one piece, if it has been read whole.
    pub(crate) fn whole(&self) -> Result<Option<WholeBody>, UploadError> {
        if self.rest.is_some() {
            return Ok(None);
        }
        let joined = self.pieces.joined();
        joined.map(Some).map_err(|NoRoom| UploadError::NoRoom)
    }

    /// The body of a fenced request as it goes upstream. `progress` is told when nothing more
    /// of it will be sent: it has been handed over whole, or was dropped. The upload has a deadline,
    /// because newer tokens wait for it.
    pub(crate) fn send(self, progress: Arc<UploadProgress>) -> Self {
        let whole = self.rules.as_ref().map(|rules| rules.settings.timeout);
        self.send_at(whole, progress, true)
    }

    /// The body of an unfenced request. It delays no other request, so a long upload may go on for
    /// as long as it moves (images, backups, gRPC streams): only a client that pauses is cut.
    pub(crate) fn send_unfenced(self, progress: Arc<UploadProgress>) -> Self {
        self.send_at(None, progress, false)
    }

    fn send_at(
        mut self,
        whole: Option<Duration>,
        progress: Arc<UploadProgress>,
        fenced: bool,
    ) -> Self {
        let streamed = self.rules.as_ref().filter(|_| self.rest.is_some());
        let deadlines = streamed.map(|rules| Box::new(rules.deadlines(whole)));
        self.ended = self.pieces.is_empty() && self.rest.is_none();
        self.way = Some(Way {
            deadlines,
            progress,
            fenced,
        });
        self
    }

    /// Breaks off: the client has, or has reached a limit.
    fn fail(&self, error: UploadError) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        if let Some(rules) = &self.rules {
            rules.count(&error);
        }
        match &self.way {
            Some(way) if !way.fenced => {
                way.progress.failed(error);
                Poll::Ready(Some(Err(UploadError::Cut)))
            }
            _ => Poll::Ready(Some(Err(error))),
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(way) = &self.way {
            way.progress.sent();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = &mut *self;
        let (false, Some(way)) = (this.ended, &mut this.way) else {
            return Poll::Ready(None);
        };
        if let Some(data) = this.pieces.pop() {
            this.passed += data.len() as u64;
            way.progress.moved();
            // The last piece is not sent before it has been written: the drop says so.
            this.ended = this.pieces.is_empty() && this.rest.is_none();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(rest) = &mut this.rest else {
            this.ended = true;
            return Poll::Ready(None);
        };
        match Pin::new(rest).poll_frame(cx) {
            Poll::Ready(None) => {
                this.rest = None;
                this.ended = true;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                this.passed += frame.data_ref().map_or(0, Bytes::len) as u64;
                if let Some(deadlines) = &mut way.deadlines
                    && !is_empty(&frame)
                {
                    deadlines.moved();
                }
                if let Some(max) = this.rules.as_ref().and_then(|rules| rules.settings.max)
                    && this.passed > max
                {
                    return this.fail(UploadError::TooLarge(max));
                }
                way.progress.moved();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => this.fail(UploadError::Broken(error)),
            Poll::Pending => {
                way.progress.waits();
                let due = way.fenced || way.progress.client_is_due();
                let Some(deadlines) = &mut way.deadlines else {
                    return Poll::Pending;
                };
                let error = ready!(deadlines.wait(cx, due));
                this.fail(error)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (self.pieces.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            _ if self.ended => SizeHint::with_exact(0),
            None if self.sized => SizeHint::with_exact(self.pieces.length() - self.passed),
            Some(rest) if self.pieces.is_empty() => rest.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// Says if it is an empty DATA frame.
fn is_empty(frame: &Frame<Bytes>) -> bool {
    frame.data_ref().is_some_and(Bytes::is_empty)
}
