//! [`Refused`]: the one enum that says why a token gets no permit.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::{DecidedBy, Limit};
use crate::routing::Token;

/// When to try again if the time that is needed is unknown.
pub const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a token gets no permit. Nothing was sent under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The mark is above the token.
    Stale { mark: Token, decided_by: DecidedBy },
    /// `reuse: once`, and the token has been used.
    Spent,
    /// The token is further above the mark than its route allows. `None`: there is no mark.
    Implausible { mark: Option<Token> },
    /// Older work did not end in time. `settling`: all of it has a known end, `retry_after` from
    /// now.
    OlderInFlight {
        retry_after: Duration,
        settling: bool,
    },
    /// There is no room for another request that waits (at this resource, or at all together), or
    /// for another request of this resource.
    Limited(Limit),
    /// Nothing can be decided now.
    Unavailable(Undecided),
}

/// Why nothing can be decided. In words for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// This instance cannot know what others decided.
    #[error("the lease on the store has lapsed")]
    Lapsed,
    #[error("the store has not been reached since the start")]
    NotJoined,
    /// For so long.
    #[error("the store has lost marks of this resource, and they are being repaired")]
    Repairing(Duration),
    #[error("the epoch was closed again and again while this request waited")]
    ClosedAgain,
    /// By an operator or a stop, say.
    #[error("the epoch was closed while this request waited to be sent")]
    ClosedUnsent,
    /// The store gave no answer. Its statement may still commit.
    #[error("the store gave no answer that decides: {0}")]
    NoAnswer(Arc<str>),
}

impl Undecided {
    /// For a lease that is not valid. `begun`: it once was.
    pub(crate) const fn without_lease(begun: bool) -> Self {
        if begun { Self::Lapsed } else { Self::NotJoined }
    }

    /// The time after which to try again.
    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Self::Repairing(left) => *left,
            _ => TRY_AGAIN,
        }
    }
}

impl Refused {
    #[must_use]
    pub const fn stale(mark: Token, decided_by: DecidedBy) -> Self {
        Self::Stale { mark, decided_by }
    }

    /// The store has given no answer that can be used.
    pub(crate) fn no_answer(why: impl Into<Arc<str>>) -> Self {
        Self::Unavailable(Undecided::NoAnswer(why.into()))
    }
}
