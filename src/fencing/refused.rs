//! [`Refused`]: the one enum that says why a token gets no permit.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::DecidedBy;
use crate::routing::Token;
use crate::store::StoreError;

/// When to try again if the time that is needed is unknown.
pub(crate) const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a token gets no permit. Nothing was sent under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The mark is above the token.
    Stale { mark: Token, decided_by: DecidedBy },
    /// `reuse: once`, and the token has been used.
    Spent,
    /// The token is further above the mark than its route allows. `None`: there is no mark.
    Implausible { mark: Option<Token> },
    /// The resource has no mark, and there is no room for new ones now.
    TooManyNew,
    /// Older work did not end in time. `settling`: all of it has a known end, `retry_after` from
    /// now.
    OlderInFlight {
        retry_after: Duration,
        settling: bool,
    },
    /// Too many requests wait at this resource.
    QueueFull,
    /// This resource has as many requests, waiting or in flight, as one may have.
    ShareTaken,
    /// Too many requests wait, at all resources together.
    CrowdFull,
    /// Nothing can be decided now.
    Unavailable {
        why: Undecided,
        retry_after: Duration,
    },
}

/// Why nothing can be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The lease has lapsed: this instance cannot know what others decided.
    Lapsed,
    /// The store has not been reached since the start, so there is no lease yet.
    NotJoined,
    /// Marks of this resource were lost, and are being repaired.
    Repairing,
    /// The epoch was closed again and again while the request waited.
    ClosedAgain,
    /// The epoch was closed while the request waited to be sent.
    ClosedUnsent,
    /// The store gave no answer. Its statement may still commit.
    NoAnswer(NoAnswer),
}

/// Why the store has given no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NoAnswer {
    pub kind: &'static str,
    pub message: Arc<str>,
}

impl NoAnswer {
    pub(crate) fn other(kind: &'static str, message: &str) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl From<&StoreError> for NoAnswer {
    fn from(error: &StoreError) -> Self {
        Self::other(error.kind(), &error.to_string())
    }
}

impl Undecided {
    /// For a lease that is not valid. `begun`: it once was.
    pub(crate) const fn without_lease(begun: bool) -> Self {
        if begun { Self::Lapsed } else { Self::NotJoined }
    }
}

impl Refused {
    pub(crate) const fn stale(mark: Token, decided_by: DecidedBy) -> Self {
        Self::Stale { mark, decided_by }
    }

    pub(crate) fn unavailable(why: Undecided) -> Self {
        Self::Unavailable {
            why,
            retry_after: TRY_AGAIN,
        }
    }

    pub(crate) const fn repairing(retry_after: Duration) -> Self {
        Self::Unavailable {
            why: Undecided::Repairing,
            retry_after,
        }
    }
}

impl From<NoAnswer> for Refused {
    fn from(error: NoAnswer) -> Self {
        Self::unavailable(Undecided::NoAnswer(error))
    }
}
