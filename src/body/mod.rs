//! The body of a request, on its way from the client to the upstream.

mod deadlines;
mod memory;
mod received;
mod request;

use std::time::Duration;

pub(crate) use self::deadlines::{BodyRules, UploadProgress};
pub(crate) use self::memory::{BodyMemory, MemoryShare};
pub(crate) use self::received::{Feed, Received, Wish, streamed};
pub(crate) use self::request::RequestBody;

use crate::http1::RequestHead;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request for the upstream.
pub(crate) struct UpstreamRequest {
    pub head: RequestHead,
    pub body: RequestBody,
}

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
}
