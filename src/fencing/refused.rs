//! [`Refused`]: the one enum that says why a token gets no permit.

use std::time::Duration;

use crate::fencing::barrier;
use crate::fencing::growth;
use crate::fencing::writer::{Answer, WriterError};
use crate::metrics::DecidedBy;
use crate::routing::Token;

/// When to try again where nothing says how long it takes.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Why a token gets no permit. Nothing was sent under it.
#[derive(Clone, Debug)]
pub enum Refused {
    /// The mark is above the token.
    Stale { mark: Token, decided_by: DecidedBy },
    /// `reuse: once`, and the token has been used.
    Spent,
    /// The token is farther past the mark than its caller believes; `None`: there is no mark.
    Implausible { mark: Option<Token> },
    /// The resource has no mark, and there is no room for new ones now.
    TooManyNew(growth::Full),
    /// Older work did not end in time. `settling`: all of it has a known end, `retry_after` from now.
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
#[derive(Clone, Debug)]
pub enum Undecided {
    /// The lease has lapsed: this instance cannot know what others decided.
    Lapsed,
    /// Marks of this resource were lost, and are being repaired.
    Repairing,
    /// The epoch was closed again and again while the request waited.
    ClosedAgain,
    /// The epoch was closed while the request waited to be sent.
    ClosedUnsent,
    /// The store gave no answer. Its statement may still commit.
    NoAnswer(WriterError),
}

impl Refused {
    pub(super) const fn stale(mark: Token, decided_by: DecidedBy) -> Self {
        Self::Stale { mark, decided_by }
    }

    pub(super) fn unavailable(why: Undecided) -> Self {
        Self::Unavailable {
            why,
            retry_after: TRY_AGAIN,
        }
    }

    pub(super) const fn repairing(retry_after: Duration) -> Self {
        Self::Unavailable {
            why: Undecided::Repairing,
            retry_after,
        }
    }

    /// The store's answer: whether the token raised the mark, or why it is refused.
    pub(super) fn unless_granted(answer: Answer) -> Result<bool, Self> {
        Err(match answer {
            Answer::Granted { advanced } => return Ok(advanced),
            Answer::Stale { mark } => Self::stale(mark, DecidedBy::Store),
            Answer::Spent => Self::Spent,
            Answer::Implausible { mark } => Self::Implausible { mark },
            Answer::Full(full) => Self::TooManyNew(full),
        })
    }
}

impl From<WriterError> for Refused {
    fn from(error: WriterError) -> Self {
        Self::unavailable(Undecided::NoAnswer(error))
    }
}

impl From<barrier::BarrierRefusal> for Refused {
    fn from(refusal: barrier::BarrierRefusal) -> Self {
        match refusal {
            barrier::BarrierRefusal::Superseded { mark } => Self::stale(mark, DecidedBy::Barrier),
            barrier::BarrierRefusal::OlderInFlight {
                retry_after,
                settling,
            } => Self::OlderInFlight {
                retry_after,
                settling,
            },
            barrier::BarrierRefusal::QueueFull => Self::QueueFull,
            barrier::BarrierRefusal::ShareTaken => Self::ShareTaken,
            barrier::BarrierRefusal::CrowdFull => Self::CrowdFull,
            barrier::BarrierRefusal::Lapsed | barrier::BarrierRefusal::NotOpen => {
                Self::unavailable(Undecided::Lapsed)
            }
            barrier::BarrierRefusal::Barred { retry_after } => Self::repairing(retry_after),
        }
    }
}
