//! The limits of one request's body.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};

use super::deadlines::UploadDeadlines;
use super::error::UploadError;
use super::memory::BodyMemory;
use super::received::Received;
use crate::config::BodySettings;
use crate::metrics::Limit;
use crate::proxy::limits::body_rate::LeastRate;
use crate::wire;
use crate::wire::head::{HeadError, HeadLimits};

/// The rules for the body of one request.
#[derive(Clone)]
pub(crate) struct BodyRules {
    pub settings: BodySettings,
    pub memory: Arc<BodyMemory>,
    /// Of a trailer section.
    pub trailers: HeadLimits,
    /// `limits.body_rate`, where it holds.
    pub least: Option<LeastRate>,
}

impl BodyRules {
    /// Counts a limit that was reached. Want of room is counted where it is found.
    pub(super) fn count(&self, error: &UploadError) {
        let limit = match error {
            UploadError::TooLarge(_) => Limit::BodyMax,
            UploadError::TooSlow(_) => Limit::BodyTimeout,
            UploadError::Paused(_) => Limit::BodyProgress,
            UploadError::TooLow(_) => Limit::BodyRate,
            UploadError::Crowded => Limit::SlowClients,
            UploadError::Trailers(wire::chunked::BodyError::Trailer(HeadError::Fields(_))) => {
                Limit::HeaderCount
            }
            UploadError::Trailers(_) => Limit::HeaderBytes,
            UploadError::NoRoom | UploadError::Broken(_) | UploadError::Cut => return,
        };
        self.memory.metrics.limit(limit);
    }

    /// The deadlines of an upload that begins now. `whole`: for all of it.
    pub(super) fn deadlines(&self, whole: Option<Duration>) -> UploadDeadlines {
        UploadDeadlines::new(whole, self.settings.progress_timeout, self.least.as_ref())
    }

    /// Refuses trailers that are over a limit.
    pub(super) fn check(&self, frame: &Frame<Bytes>) -> Result<(), UploadError> {
        /// Of a line on HTTP/1: the colon, a space, and its end.
        const LINE: usize = 4;
        let Some(trailers) = frame.trailers_ref() else {
            return Ok(());
        };
        let lines = trailers.iter();
        let bytes = lines.map(|(name, value)| name.as_str().len() + value.len() + LINE);
        let limits = self.trailers;
        let error = if trailers.len() > limits.fields {
            HeadError::Fields(limits.fields)
        } else if bytes.sum::<usize>() > limits.bytes {
            HeadError::Bytes(limits.bytes)
        } else {
            return Ok(());
        };
        Err(UploadError::Trailers(wire::chunked::BodyError::Trailer(
            error,
        )))
    }

    /// Refuses a body that is known to be too long before it is read.
    pub(crate) fn admit(&self, incoming: &Received) -> Result<(), UploadError> {
        match self.settings.max {
            Some(max) if incoming.size_hint().lower() > max => Err(UploadError::TooLarge(max)),
            _ => Ok(()),
        }
    }
}
