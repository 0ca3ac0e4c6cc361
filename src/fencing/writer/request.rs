//! The questions that requests put to the [writer](super), and its answers.

use std::sync::Arc;

use crate::fencing::growth::{Full, Origin};
use crate::routing::{Needs, Token};
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

/// The durable result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The mark is at the token (and the epoch open, if that was wanted). `advanced`: this request raised it.
    Granted { advanced: bool },
    /// The mark is above the token.
    Stale { mark: Token },
    /// The token was spent by somebody else.
    Spent,
    /// The token is not believed at this mark; `None`: there is none.
    Implausible { mark: Option<Token> },
    /// The resource has no mark, and there is no room for new ones now.
    Full(Full),
}

/// Somebody who cannot do what an operator can: the bounds that hold for what it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What the mark has to be for its token to be believed.
    pub needs: Needs,
    /// Where it comes from; `None`: nobody can tell.
    pub origin: Option<Origin>,
}

/// Why the writer cannot say. The statement may still commit: conclude nothing.
#[derive(Clone, Debug, thiserror::Error)]
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
