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
}

impl RequestBody {
    fn new(rules: &BodyRules, sized: bool) -> Self {
        Self {
            buffered: BufferedBody::new(rules.memory.share()),
            rest: None,
            sized,
            progress: None,
        }
    }

    /// Reads up to `body.buffer` bytes. `hold`: after this time, the rest is left to be streamed.
    pub(crate) async fn read(
        mut incoming: Received,
        fields: &Fields,
        rules: &BodyRules,
        hold: Option<Duration>,
    ) -> Result<Self, UploadError> {
        rules.admit(&incoming)?;
        let mut body = Self::new(rules, fields.contains(CONTENT_LENGTH));
        let buffer = rules.settings.buffer.0;
        if let Some(content) = incoming.take_whole(buffer) {
            // It has come with its head, so there is nothing to wait for.
            body.buffered.push(content)?;
            return Ok(body);
        }
        let is_long = incoming.left().is_some_and(|left| left > buffer);
        let wanted = if is_long || buffer == 0 {
            BEGINNING.min(buffer)
        } else {
            buffer.saturating_add(1)
        };
        let mut rest = StreamedRest::new(incoming, rules);
        let mut expired = pin!(OptionFuture::from(hold.map(tokio::time::sleep)));
        while body.buffered.length() < wanted {
            let next = poll_fn(|cx| match rest.poll_data(true, cx) {
                Poll::Pending if expired.as_mut().poll(cx) == Poll::Ready(Some(())) => {
                    Poll::Ready(None)
                }
                next => next.map(Some),
            });
            let Some(data) = next.await else { break };
            let Some(data) = data? else { return Ok(body) };
            body.buffered.push(data)?;
        }
        body.rest = Some(Box::new(rest));
        Ok(body)
    }

    /// A body that is streamed from its first byte.
    pub(crate) fn streamed(incoming: Received, rules: &BodyRules) -> Result<Self, UploadError> {
        rules.admit(&incoming)?;
        let mut body = Self::new(rules, false);
        if !incoming.is_end() {
            body.rest = Some(Box::new(StreamedRest::new(incoming, rules)));
        }
        Ok(body)
    }

    /// The body, if it has been read whole.
    pub(crate) fn whole(&self) -> Option<&BufferedBody> {
        self.rest.is_none().then_some(&self.buffered)
    }

    /// The body as it goes upstream. `progress` is told when nothing more of it will be sent: it has
    /// been handed over whole, or was dropped. The upload of a `fenced` request has a deadline, because
    /// newer tokens wait for it. Another one may go on for as long as it moves (images, backups, gRPC
    /// streams): only a client that pauses is cut.
    pub(crate) fn send(mut self, progress: Arc<UploadProgress>, fenced: bool) -> Self {
        if let Some(rest) = &mut self.rest {
            rest.deadlines = rest.rules.deadlines(fenced);
        }
        self.progress = Some(progress);
        self
    }
}

impl StreamedRest {
    fn new(source: Received, rules: &BodyRules) -> Self {
        Self {
            source,
            rules: rules.clone(),
            deadlines: rules.deadlines(true),
            length: 0,
        }
    }

    /// The next data. `due`: the client has to go on sending.
    fn poll_data(
        &mut self,
        due: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, UploadError>> {
        let Poll::Ready(data) = self.source.poll_data(cx) else {
            let (late, limit) = ready!(self.deadlines.wait(cx, due));
            self.rules.memory.metrics.limit(limit);
            return Poll::Ready(Err(late));
        };
        let data = data.transpose().map_err(UploadError::Broken)?;
        // An empty DATA frame of HTTP/2 is no progress.
        if let Some(data) = data.as_ref().filter(|data| !data.is_empty()) {
            self.length += data.len() as u64;
            self.deadlines.moved();
            self.rules.allow(self.length)?;
        }
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
        let next = rest.poll_data(progress.client_is_due(), cx);
        if next.is_pending() {
            progress.waits();
        } else {
            progress.moved();
        }
        let data = ready!(next)?;
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
