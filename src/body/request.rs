//! [`RequestBody`]: read up to a limit before admission, streamed beyond it.
//!
//! A body that fits in `body.buffer` is read whole before the request is judged. So a client that
//! pauses halfway through its upload is judged by the mark at the end of the upload, and delays no
//! other request. A longer body is admitted first, and its rest is streamed.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::OptionFuture;
use http_body::{Body, Frame, SizeHint};

use super::UploadError;
use super::deadlines::{BodyRules, UploadDeadlines, UploadProgress};
use super::memory::BufferedBody;
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
    buffered: BufferedBody,
    /// `None`: the body has been read whole.
    rest: Option<Box<StreamedRest>>,
    /// The client sent a Content-Length, so the length is the header's business.
    sized: bool,
    /// Told of the drop, too: nothing more of this body will be sent. `None`: it is not on its way
    /// yet.
    progress: Option<Arc<UploadProgress>>,
}

/// The rest of a body, which is read as the upstream takes it.
struct StreamedRest {
    source: Received,
    rules: BodyRules,
    deadlines: UploadDeadlines,
    /// The bytes of the body that have come.
    length: u64,
    /// The client has to go on sending, whatever the upstream does.
    fenced: bool,
}

impl RequestBody {
    /// Reads up to `body.buffer` bytes. `hold`: after this time, the rest is left to be streamed.
    pub(crate) async fn read(
        incoming: Received,
        fields: &Fields,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        let body = Self {
            buffered: BufferedBody::new(rules.memory.share()),
            rest: None,
            sized: fields.contains(CONTENT_LENGTH),
            progress: None,
        };
        let filled = body.fill(incoming, rules, hold).await;
        filled.inspect_err(|error| rules.count(error))
    }

    async fn fill(
        mut self,
        mut incoming: Received,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        rules.admit(&incoming)?;
        let limits = rules.settings;
        if let Some(content) = incoming.take_whole(limits.buffer.0) {
            // It has come with its head, so there is nothing to wait for.
            if !content.is_empty() {
                self.buffered.push(content)?;
            }
            return Ok(self);
        }
        let is_long = incoming.left().is_some_and(|left| left > limits.buffer.0);
        let wanted = if is_long || limits.buffer.0 == 0 {
            BEGINNING.min(limits.buffer.0)
        } else {
            limits.buffer.0.saturating_add(1)
        };
        let mut deadlines = rules.deadlines(Some(limits.timeout.0));
        let mut expired = pin!(OptionFuture::from(hold.map(tokio::time::sleep)));
        while self.buffered.length() < wanted {
            let next = poll_fn(|cx| {
                if let Poll::Ready(data) = incoming.poll_data(cx) {
                    return Poll::Ready(Ok(Some(data)));
                }
                if expired.as_mut().poll(cx) == Poll::Ready(Some(())) {
                    return Poll::Ready(Ok(None));
                }
                deadlines.wait(cx, true).map(Err)
            });
            let Some(data) = next.await? else { break };
            let Some(data) = data else { return Ok(self) };
            let data = data.map_err(UploadError::Broken)?;
            // An empty DATA frame of HTTP/2: no progress, and nothing to keep.
            if data.is_empty() {
                continue;
            }
            deadlines.moved();
            self.buffered.push(data)?;
            rules.allow(self.buffered.length())?;
        }
        self.rest = Some(StreamedRest::new(incoming, rules, self.buffered.length()));
        Ok(self)
    }

    /// A body that is streamed from its first byte.
    pub(crate) fn streamed(incoming: Received, rules: &BodyRules) -> Result<Self, UploadError> {
        rules
            .admit(&incoming)
            .inspect_err(|error| rules.count(error))?;
        Ok(Self {
            buffered: BufferedBody::new(rules.memory.share()),
            rest: (!incoming.is_end()).then(|| StreamedRest::new(incoming, rules, 0)),
            sized: false,
            progress: None,
        })
    }

    /// The body, if it has been read whole.
    pub(crate) fn whole(&self) -> Option<&BufferedBody> {
        self.rest.is_none().then_some(&self.buffered)
    }

    /// The body of a fenced request as it goes upstream. `progress` is told when nothing more
    /// of it will be sent: it has been handed over whole, or was dropped. The upload has a deadline,
    /// because newer tokens wait for it.
    pub(crate) fn send(mut self, progress: Arc<UploadProgress>) -> Self {
        if let Some(rest) = &mut self.rest {
            rest.deadlines = rest.rules.deadlines(Some(rest.rules.settings.timeout.0));
            rest.fenced = true;
        }
        self.send_unfenced(progress)
    }

    /// The body of an unfenced request. It delays no other request, so a long upload may go on for
    /// as long as it moves (images, backups, gRPC streams): only a client that pauses is cut.
    pub(crate) fn send_unfenced(mut self, progress: Arc<UploadProgress>) -> Self {
        self.progress = Some(progress);
        self
    }
}

impl StreamedRest {
    fn new(source: Received, rules: &BodyRules, length: u64) -> Box<Self> {
        Box::new(Self {
            source,
            rules: rules.clone(),
            deadlines: rules.deadlines(None),
            length,
            fenced: false,
        })
    }

    fn poll(
        &mut self,
        progress: &UploadProgress,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, UploadError>> {
        let Poll::Ready(data) = self.source.poll_data(cx) else {
            progress.waits();
            let due = self.fenced || progress.client_is_due();
            return self.deadlines.wait(cx, due).map(Err);
        };
        let data = data.transpose().map_err(UploadError::Broken)?;
        if let Some(data) = data.as_ref().filter(|data| !data.is_empty()) {
            self.length += data.len() as u64;
            self.deadlines.moved();
            self.rules.allow(self.length)?;
        }
        progress.moved();
        Poll::Ready(Ok(data))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.sent();
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
        let Some(progress) = &this.progress else {
            return Poll::Ready(None);
        };
        if let Some(data) = this.buffered.pop() {
            progress.moved();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(rest) = &mut this.rest else {
            return Poll::Ready(None);
        };
        let data = ready!(rest.poll(progress, cx)).inspect_err(|error| rest.rules.count(error))?;
        if data.is_none() {
            this.rest = None;
        }
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        let rest = self.rest.as_ref();
        self.buffered.is_empty() && rest.is_none_or(|rest| rest.source.is_end())
    }

    fn size_hint(&self) -> SizeHint {
        let left = match &self.rest {
            None if self.sized || self.buffered.is_empty() => Some(self.buffered.length()),
            Some(rest) if self.buffered.is_empty() => rest.source.left(),
            _ => None,
        };
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::BodyMemory;
    use crate::config::{BodySettings, OrNone, Size, Span};
    use crate::metrics::Metrics;

    impl RequestBody {
        /// A body that is streamed from its first byte, without a limit.
        pub(crate) fn unlimited(incoming: Received) -> Self {
            let day = Span(Duration::from_hours(24));
            let rules = BodyRules {
                settings: BodySettings {
                    buffer: Size(0),
                    max: OrNone(None),
                    timeout: day,
                    progress_timeout: day,
                },
                memory: BodyMemory::new(0, Arc::new(Metrics::new(&[]))),
            };
            Self::streamed(incoming, &rules).expect("no limit")
        }

        /// No body.
        pub(crate) fn empty() -> Self {
            Self::unlimited(Received::Whole(Bytes::new()))
        }
    }
}
