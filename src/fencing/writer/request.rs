//! The questions that requests put to the [writer](super), and its answers.

use std::sync::Arc;

use crate::store::StoreError;

/// The change that a request wants in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Raise the mark and open an epoch, to forward under it.
    Open,
    /// Raise the mark, forward nothing under it.
    Raise,
    /// Spend the token under this name (`reuse: once`).
    Spend(String),
}

/// Why the writer has no answer. The statement may still commit: conclude nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WriterError {
    pub kind: &'static str,
    pub message: Arc<str>,
}

impl WriterError {
    pub(super) fn new(error: &StoreError) -> Self {
        Self {
            kind: error.kind(),
            message: error.to_string().into(),
        }
    }

    pub(super) fn other(kind: &'static str, message: &str) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}
