//! The reasons why a request was not forwarded, or broke when it was, and their texts.

mod problem;

use std::fmt;
use std::time::Duration;

pub use self::problem::{Retry, claimed};
use crate::body::UploadError;
use crate::fencing::{Refused, Undecided};
use crate::http1::MessageError;
use crate::metrics::Limit;
use crate::proxy::headers::FieldError;
use crate::routing::{ResourceKey, Token};
use crate::upstream::SendError;

/// Why a request was not forwarded, or what broke when it was.
///
/// A `cause` names hosts, ports, files and certificates: it is for the log, and no client reads it,
/// with `disclose` or without.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// The fencing gives the token no permit.
    Fence(Refused),
    TokenRequired,
    MalformedToken(String),
    Ambiguous(String),
    /// The request has been here before.
    Loop,
    HeadTooLarge(String),
    TargetTooLong(String),
    VersionNotSupported,
    NoRoute,
    /// The methods that are allowed.
    MethodNotAllowed(String),
    TooLarge(String),
    /// The client is none of those that may use the route, or that may claim.
    ClientRefused,
    /// A claim without the bearer token of claims.
    Unauthorized,
    UpgradeRefused,
    /// Another request carries the operation out.
    OperationUnderWay,
    /// The operation was sent, and its outcome is unknown.
    OperationUnknown,
    /// The operation's name was used for another request.
    OperationMismatch,
    /// Not sent, or not processed, for this cause.
    Unreachable(String),
    /// The same, and the token may have been spent by this attempt.
    Spent(Box<Self>),
    /// Sent, and no whole answer came back, for this cause.
    Broken(String),
    /// Sent, and no answer within this time.
    TooSlow(Duration),
    /// The client broke off or took too long over its request.
    ClientGone(String),
}

/// The resource and the token of a fenced request, once they have been derived.
pub type Subject = (ResourceKey, Token);

/// The style of an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerStyle {
    /// 412 or 409.
    pub stale_status: u16,
    pub disclose: bool,
    pub grpc: bool,
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self::Fence(refused)
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Self::ambiguous(error)
    }
}

impl From<MessageError> for Refusal {
    fn from(error: MessageError) -> Self {
        let what = format!("The request: {error}.");
        match error {
            MessageError::Malformed(_) | MessageError::Target(_) => Self::Ambiguous(what),
            MessageError::Connect => Self::MethodNotAllowed(String::new()),
            MessageError::Version => Self::VersionNotSupported,
            MessageError::TargetLong(_) => Self::TargetTooLong(what),
            MessageError::Bytes(_) | MessageError::Fields(_) => Self::HeadTooLarge(what),
            MessageError::Slow(_) => Self::ClientGone(error.to_string()),
        }
    }
}

impl From<UploadError> for Refusal {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge(limit) => Self::TooLarge(format!(
                "This route takes bodies of up to {limit} B (body.max)."
            )),
            UploadError::NoRoom => Refused::Limited(Limit::BodyMemory).into(),
            UploadError::Broken(broken) if let Some(malformed) = malformed(&*broken) => {
                malformed.into()
            }
            // Too slow, or broken off.
            error => Self::ClientGone(error.to_string()),
        }
    }
}

/// The error in a body's syntax that broke it off, if it was one.
fn malformed(broken: &(dyn std::error::Error + 'static)) -> Option<MessageError> {
    let mut causes = std::iter::successors(Some(broken), |error| error.source());
    causes.find_map(|error| error.downcast_ref().copied())
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotSent(cause) => Self::Unreachable(cause),
            SendError::Broken(cause) => Self::Broken(cause),
            SendError::Body(error) => error.into(),
        }
    }
}

impl Refusal {
    pub(crate) fn ambiguous(why: impl fmt::Display) -> Self {
        Self::Ambiguous(why.to_string())
    }

    /// The token counts as used, though nothing was sent.
    #[must_use]
    pub fn and_spent(self) -> Self {
        Self::Spent(Box::new(self))
    }

    /// The verdict of the fencing, if it gave the token no permit.
    pub(crate) fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Fence(refused) => Some(refused),
            Self::Spent(refusal) => refusal.refused(),
            _ => None,
        }
    }

    /// The mark that the token was refused by, if a mark did it.
    pub(crate) fn mark(&self, subject: Option<&Subject>) -> Option<Token> {
        match self.refused()? {
            Refused::Stale { mark, .. } => Some(*mark),
            Refused::Spent => subject.map(|(_, token)| *token),
            Refused::Implausible { mark } => *mark,
            _ => None,
        }
    }

    /// The mark minus the token, where both are known and the token is not past the mark.
    pub(crate) fn gap(&self, subject: Option<&Subject>) -> Option<u64> {
        let (mark, (_, token)) = (self.mark(subject)?, subject?);
        (*token <= mark).then(|| token.gap_to(mark))
    }

    /// The text that a person reads: what, why, and what to do. `subject`: if the reader may know
    /// of it. `causes`: with the cause, for the log.
    pub(crate) fn detail(&self, subject: Option<&Subject>, causes: bool) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            self.write_reason(f, subject)?;
            f.write_str(" ")?;
            self.write_step(f)?;
            match self.cause() {
                Some(cause) if causes => write!(f, " Cause: {cause}"),
                _ => Ok(()),
            }
        })
    }

    fn cause(&self) -> Option<&dyn fmt::Display> {
        match self {
            Self::Broken(cause) | Self::Unreachable(cause) => Some(cause),
            Self::Spent(refusal) => refusal.cause(),
            _ => match self.refused()? {
                Refused::Unavailable(Undecided::NoAnswer(cause)) => Some(cause),
                _ => None,
            },
        }
    }

    /// Writes the reason, and what became of the request.
    fn write_reason(&self, f: &mut fmt::Formatter<'_>, subject: Option<&Subject>) -> fmt::Result {
        match self {
            Self::Fence(refused) => write_refused(f, refused, subject),
            Self::Spent(refusal) => refusal.write_reason(f, subject),
            Self::MalformedToken(why) => write!(f, "X-Fencing-Token: {why}."),
            Self::Ambiguous(why)
            | Self::TooLarge(why)
            | Self::HeadTooLarge(why)
            | Self::TargetTooLong(why) => write!(f, "{}.", why.trim_end_matches('.')),
            Self::MethodNotAllowed(allowed) if !allowed.is_empty() => {
                write!(f, "This route allows {allowed}.")
            }
            Self::TooSlow(limit) => {
                let limit = humantime::format_duration(*limit);
                write!(f, "No response within {limit}")
            }
            Self::ClientGone(why) => {
                write!(f, "{why}. Of a fenced request, nothing was forwarded.")
            }
            _ => f.write_str(self.row().reason),
        }?;
        f.write_str(match self {
            Self::Spent(_) => SPENT,
            Self::Broken(_) | Self::TooSlow(_) => SENT,
            _ => "",
        })
    }
}

const SPENT: &str = " The token counts as used, because the store did not say whether it was.";

const SENT: &str = ". The request was sent once and may still take effect. If it was fenced, newer \
                    tokens wait until it has settled.";

fn write_refused(
    f: &mut fmt::Formatter<'_>,
    refused: &Refused,
    subject: Option<&Subject>,
) -> fmt::Result {
    let end = match refused {
        Refused::Stale { mark, .. } => {
            match subject {
                Some((key, token)) => write!(
                    f,
                    "Token {token} is lower than {mark}, the highest token accepted for {key}"
                ),
                None => f.write_str("A higher token has been accepted for this resource"),
            }?;
            ": the lock has passed to another holder. Nothing was forwarded."
        }
        Refused::Spent => {
            "This route accepts each token once (reuse: once), and this token was used before. \
             Nothing was forwarded."
        }
        Refused::Implausible { mark } => {
            match subject {
                Some((key, token)) => write!(
                    f,
                    "Token {token} is higher than this route allows for {key}"
                ),
                None => f.write_str("The token is higher than this route allows"),
            }?;
            if let (Some(mark), Some(_)) = (mark, subject) {
                write!(f, ", whose highest accepted token is {mark}")?;
            }
            " (token.max_jump, token.max). Nothing was forwarded, and the mark has not changed."
        }
        Refused::OlderInFlight { settling, .. } => {
            f.write_str(if *settling {
                "Requests with an older token failed midway, and the upstream may still be \
                 working on them"
            } else {
                "Requests with an older token are still in flight"
            })?;
            ". Nothing was forwarded."
        }
        Refused::Unavailable(why) => {
            f.write_str("This proxy cannot decide about the token now: ")?;
            match why {
                // What the store said is for the log.
                Undecided::NoAnswer(_) => f.write_str("the store gave no answer that decides"),
                why => write!(f, "{why}"),
            }?;
            ". Nothing was forwarded."
        }
        Refused::Limited(limit) => {
            write!(
                f,
                "The limit {limit} of this proxy is reached (docs/limits.md)"
            )?;
            ". Nothing was forwarded."
        }
    };
    f.write_str(end)
}
