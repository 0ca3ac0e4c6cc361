//! Bodies on their way through: from the client to the upstream, and back.

mod client_body;
mod deadlines;
mod error;
mod memory;
mod received;
mod rules;
mod upload;
mod upstream_body;

pub(crate) use self::client_body::{AnswerFraming, RelayedFrame};
pub use self::client_body::{ClientBody, full};
pub(crate) use self::deadlines::UploadProgress;
pub(crate) use self::error::{BoxError, UploadError};
pub(crate) use self::memory::{BodyMemory, MemoryShare};
pub(crate) use self::received::{Feed, Received, Wish, streamed};
pub(crate) use self::rules::BodyRules;
pub(crate) use self::upload::Upload;
pub(crate) use self::upstream_body::UpstreamBody;
