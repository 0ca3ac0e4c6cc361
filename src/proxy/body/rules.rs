//! The limits of one request's body.

use std::sync::Arc;
use std::time::Duration;

use http_body::Body as _;

use super::deadlines::UploadDeadlines;
use super::error::UploadError;
use super::memory::BodyMemory;
use super::received::Received;
use crate::config::BodySettings;
use crate::metrics::Limit;

/// The rules for the body of one request.
#[derive(Clone)]
pub(crate) struct BodyRules {
    pub settings: BodySettings,
    pub memory: Arc<BodyMemory>,
}

impl BodyRules {
    /// Counts a limit that was reached. Want of room is counted where it is found.
    pub(super) fn count(&self, error: &UploadError) {
        let limit = match error {
            UploadError::TooLarge(_) => Limit::BodyMax,
            UploadError::TooSlow(_) => Limit::BodyTimeout,
            UploadError::Paused(_) => Limit::BodyProgress,
            UploadError::NoRoom | UploadError::Broken(_) | UploadError::Cut => return,
        };
        self.memory.metrics.limit(limit);
    }

    /// The deadlines of an upload that begins now. `whole`: for all of it.
    pub(super) fn deadlines(&self, whole: Option<Duration>) -> UploadDeadlines {
        UploadDeadlines::new(whole, self.settings.progress_timeout)
    }

    /// Refuses a body that is known to be too long before it is read.
    pub(crate) fn admit(&self, incoming: &Received) -> Result<(), UploadError> {
        match self.settings.max {
            Some(max) if incoming.size_hint().lower() > max => Err(UploadError::TooLarge(max)),
            _ => Ok(()),
        }
    }
}
