//! Bodies on their way through: from the client to the upstream, and back.

mod client_body;
mod deadlines;
mod memory;
mod received;
mod request;

use std::sync::Arc;
use std::time::Duration;

use http_body::Body as _;

pub(crate) use self::client_body::{AnswerFraming, RelayedFrame};
pub use self::client_body::{ClientBody, full};
use self::deadlines::UploadDeadlines;
pub(crate) use self::deadlines::UploadProgress;
pub(crate) use self::memory::{BodyMemory, MemoryShare};
pub(crate) use self::received::{Feed, Received, Wish, streamed};
pub(crate) use self::request::RequestBody;
use crate::config::BodySettings;
use crate::metrics::Limit;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    #[error("the body did not arrive within {0:?}")]
    TooSlow(Duration),
    #[error("no byte of the body arrived for {0:?}")]
    Paused(Duration),
    #[error("there is no room for the body")]
    NoRoom,
    #[error("the body broke off: {0}")]
    Broken(BoxError),
    /// The client's part of an unfenced exchange broke off; `UploadProgress::fault` says why.
    #[error("the exchange was cut")]
    Cut,
}

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
