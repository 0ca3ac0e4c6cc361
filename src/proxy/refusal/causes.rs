//! The refusals that the errors of the other parts become: a head or a body that cannot be taken, a
//! token that the fencing refuses, an upstream that cannot be reached.

use std::time::Duration;

use super::{Refusal, Why};
use crate::body::UploadError;
use crate::fencing::{Refused, Undecided};
use crate::http1::MessageError;
use crate::upstream::SendError;

/// The head of a request is refused.
impl From<MessageError> for Refusal {
    fn from(error: MessageError) -> Self {
        let what = format!("The head of the request: {error}. Nothing was forwarded.");
        match error {
            MessageError::Malformed(_) | MessageError::Target(_) => Self::Ambiguous(what),
            MessageError::Connect => Self::MethodNotAllowed(String::new()),
            MessageError::Version => Self::VersionNotSupported,
            MessageError::TargetLong(_) => Self::TargetTooLong(what),
            MessageError::Bytes(_) | MessageError::Fields(_) => Self::HeadTooLarge(what),
            MessageError::Slow(_) => Self::ClientGone(format!("The request: {error}")),
        }
    }
}

impl From<UploadError> for Refusal {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge(limit) => Self::TooLarge(format!(
                "This route takes bodies up to {limit} bytes (body.max)."
            )),
            UploadError::Broken(broken) if let Some(malformed) = malformed(&*broken) => {
                malformed_refusal(malformed)
            }
            UploadError::NoRoom => Self::Overloaded(
                "There is no memory left for the body. Nothing was forwarded. See limits.body_memory.",
            ),
            UploadError::TooSlow(_)
            | UploadError::Paused(_)
            | UploadError::Broken(_)
            | UploadError::Cut => Self::ClientGone(error.to_string()),
        }
    }
}

fn malformed_refusal(error: MessageError) -> Refusal {
    match error {
        MessageError::Bytes(_) | MessageError::Fields(_) => {
            Refusal::HeadTooLarge(format!("The trailer section of the request: {error}."))
        }
        _ => Refusal::Ambiguous(format!("The body of the request: {error}.")),
    }
}

/// The error in a body's syntax that broke it off, if it was one.
fn malformed(broken: &(dyn std::error::Error + 'static)) -> Option<MessageError> {
    let mut causes = std::iter::successors(Some(broken), |error| error.source());
    causes.find_map(|error| error.downcast_ref().copied())
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Stale { mark, decided_by } => Self::Stale { mark, decided_by },
            Refused::Spent => Self::Spent,
            Refused::Implausible { mark } => Self::Implausible { mark },
            Refused::TooManyNew => Self::Overloaded(
                "Too many resources are new, and a mark is kept for ever. Nothing was forwarded.",
            ),
            Refused::OlderInFlight {
                retry_after,
                settling,
            } => Self::OlderInFlight {
                retry_after,
                settling,
            },
            Refused::QueueFull => Self::Overloaded(
                "Too many requests already wait for older work on this resource to end. Nothing was forwarded.",
            ),
            Refused::CrowdFull => Self::Overloaded(
                "Requests that wait for older work to end hold three quarters of all in-flight \
                 permits. Nothing was forwarded. See limits.in_flight.",
            ),
            Refused::ShareTaken => Self::Overloaded(
                "This resource has as many requests, waiting or in flight, as one may have. \
                 Nothing was forwarded. See limits.in_flight_per_resource.",
            ),
            Refused::Unavailable { why, retry_after } => Self::StoreUnavailable {
                why: reason(&why),
                retry_after,
                spent: false,
            },
        }
    }
}

fn reason(doubt: &Undecided) -> Why {
    Why::new(match doubt {
        Undecided::Lapsed => {
            "This proxy's lease on the store has lapsed, so it cannot know what others have decided"
        }
        Undecided::NotJoined => "This proxy has not reached its store since it was started",
        Undecided::Repairing => {
            "The store has lost marks of this resource; they are being repaired and settle"
        }
        Undecided::ClosedAgain => "The epoch was closed again and again while this request waited",
        Undecided::ClosedUnsent => "The epoch was closed while this request waited to be sent",
        Undecided::NoAnswer(error) => {
            return Why::of("The store of marks gave no answer that decides", error);
        }
    })
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotSent(why) => Self::unreachable(&why, false),
            SendError::Refused(why) => Self::refused(&why, false),
            SendError::Broken(why) => {
                Self::Broken(Why::of("The exchange with the upstream broke", &why))
            }
        }
    }
}

impl Refusal {
    /// Nothing was sent.
    #[must_use]
    pub fn unreachable(why: &dyn std::fmt::Display, spent: bool) -> Self {
        Self::Unreachable {
            why: Why::of("The upstream cannot be reached, and nothing was sent", why),
            spent,
        }
    }

    /// It was sent, and the upstream says that it has done nothing with it.
    pub(crate) fn refused(why: &dyn std::fmt::Display, spent: bool) -> Self {
        Self::Unreachable {
            why: Why::of(
                "The upstream has not processed the request, and will not",
                why,
            ),
            spent,
        }
    }

    /// The exchange was not begun in time.
    pub(crate) fn cut_off() -> Self {
        Self::StoreUnavailable {
            why: Why::new("This proxy has lost its lease on the store, or is stopping"),
            retry_after: Duration::from_secs(1),
            spent: false,
        }
    }

    pub(crate) fn too_long_for_key(buffer: u64) -> Self {
        Self::TooLarge(format!(
            "The resource key of this route is read from the body, which may have {buffer} bytes for that (body.buffer)."
        ))
    }
}
