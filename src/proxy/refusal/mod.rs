//! The reasons why a request was not forwarded, or broke when it was, and their texts.

mod causes;
pub(super) mod problem;

use std::fmt;
use std::time::Duration;

use crate::metrics::DecidedBy;
use crate::routing::{ResourceKey, Token};

/// Why the proxy could not do its part. An error of the store or of a connection names hosts,
/// ports, files and certificates: that is for the log, and no client reads it, with `disclose` or
/// without.
#[derive(Clone, Debug)]
pub struct Why {
    /// For the client: a sentence without its full stop.
    text: &'static str,
    /// For the log only.
    cause: Option<String>,
}

impl Why {
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self { text, cause: None }
    }

    pub(crate) fn of(text: &'static str, cause: &dyn fmt::Display) -> Self {
        Self {
            text,
            cause: Some(cause.to_string()),
        }
    }
}

/// Why a request was not forwarded, or what broke when it was.
#[derive(Clone, Debug)]
pub enum Refusal {
    Stale {
        mark: Token,
        decided_by: DecidedBy,
    },
    /// `reuse: once`, and the token has been used.
    Spent,
    /// Farther past the mark than the route believes; `None`: there is no mark.
    Implausible {
        mark: Option<Token>,
    },
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
    Overloaded(&'static str),
    StoreUnavailable {
        why: Why,
        retry_after: Duration,
        /// The token may have been spent by this attempt.
        spent: bool,
    },
    OlderInFlight {
        retry_after: Duration,
        settling: bool,
    },
    /// Not sent, or not processed. `spent`: the token could not be given back.
    Unreachable {
        why: Why,
        spent: bool,
    },
    /// Sent, and no whole answer came back.
    Broken(Why),
    /// Sent, and no answer within this time.
    TooSlow(Duration),
    /// The client broke off or took too long over its request.
    ClientGone(String),
}

/// The resource and the token of a fenced request, once they have been derived.
pub type Subject = (ResourceKey, Token);

impl Refusal {
    /// The text that a person reads. `subject`: if the reader may know of it. `causes`: with those
    /// of [`Why`], for the log.
    pub(crate) fn detail<'a>(&'a self, subject: Option<&'a Subject>, causes: bool) -> Detail<'a> {
        Detail {
            refusal: self,
            subject,
            causes,
        }
    }

    /// The details that need no formatting. [`Detail`] formats the others.
    fn fixed_text(&self) -> &str {
        match self {
            Self::Spent => {
                "This route accepts each token once (reuse: once), and this token was used before. \
                 Nothing was forwarded. Acquire the lock again for another operation."
            }
            Self::TokenRequired => "Send the token of your lock in X-Fencing-Token.",
            Self::Loop => {
                "Via names this proxy: the request has passed it before. Nothing was forwarded. \
                 Check whether upstream.url leads back to this proxy."
            }
            Self::Ambiguous(why)
            | Self::TooLarge(why)
            | Self::HeadTooLarge(why)
            | Self::TargetTooLong(why) => why,
            Self::Overloaded(why) => why,
            Self::VersionNotSupported => "Send HTTP/1.0, HTTP/1.1 or HTTP/2.",
            Self::NoRoute => {
                "No route of this proxy matches the path, and only safe methods pass without a \
                 route. Add a route to the configuration."
            }
            Self::MethodNotAllowed(_) => {
                "This proxy does not forward TRACE or CONNECT, nor, where a route enforces, methods \
                 that name other resources in their body or in Link (BIND, LINK and the like, BCOPY \
                 and the like)."
            }
            Self::ClientRefused => {
                "The client's certificate or address is none of those that this route, or claims, \
                 are limited to (require_client, claim.require_client, claim.addresses). Nothing \
                 was forwarded."
            }
            Self::Unauthorized => {
                "Send one `Authorization: Bearer …` header with the token from claim.token_file. \
                 Nothing was claimed."
            }
            Self::UpgradeRefused => {
                "The proxy cannot fence what goes through a tunnel, so this route opens none. A \
                 route in bypass mode does, and fences nothing."
            }
            Self::Stale { .. }
            | Self::Implausible { .. }
            | Self::MalformedToken(_)
            | Self::StoreUnavailable { .. }
            | Self::OlderInFlight { .. }
            | Self::Unreachable { .. }
            | Self::Broken(_)
            | Self::TooSlow(_)
            | Self::ClientGone(_) => "",
        }
    }

    /// The mark that the token was refused by, if a mark did it.
    pub(crate) fn mark(&self, subject: Option<&Subject>) -> Option<Token> {
        match self {
            Self::Stale { mark, .. } => Some(*mark),
            Self::Spent => subject.map(|(_, token)| *token),
            Self::Implausible { mark } => *mark,
            _ => None,
        }
    }

    /// The mark minus the token, where both are known and the token is not past the mark.
    pub(crate) fn gap(&self, subject: Option<&Subject>) -> Option<u64> {
        let (mark, (_, token)) = (self.mark(subject)?, subject?);
        (*token <= mark).then(|| token.gap_to(mark))
    }
}

/// The text of a refusal: what, why, and what to do.
pub(crate) struct Detail<'a> {
    refusal: &'a Refusal,
    subject: Option<&'a Subject>,
    causes: bool,
}

impl Detail<'_> {
    fn why(&self, why: &Why, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(why.text)?;
        match &why.cause {
            Some(cause) if self.causes => write!(f, ": {cause}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.refusal {
            Refusal::Stale { mark, .. } => {
                match self.subject {
                    Some((key, token)) => write!(
                        f,
                        "Token {token} is lower than {mark}, the highest token accepted for {key}"
                    ),
                    None => f.write_str("A higher token has been accepted for this resource"),
                }?;
                ": the lock has passed to another holder. Nothing was forwarded. Acquire the lock \
                 again, and read the state before writing."
            }
            Refusal::Implausible { mark } => {
                match (mark, self.subject) {
                    (Some(mark), Some((key, token))) => write!(
                        f,
                        "Token {token} is further above {mark}, the highest token accepted for {key}, \
                         than this route allows (token.max_jump, token.max)"
                    ),
                    (None, Some((key, token))) => write!(
                        f,
                        "Token {token} is higher than this route allows for {key}, which has no mark \
                         yet (token.max)"
                    ),
                    (_, None) => f.write_str(
                        "The token is further above the highest token accepted than this route allows",
                    ),
                }?;
                ". Nothing was forwarded, and the mark has not changed. If the lock service did \
                 grant this token, an operator can accept it: fencepost marks advance."
            }
            Refusal::MalformedToken(why) => return write!(f, "X-Fencing-Token: {why}"),
            Refusal::MethodNotAllowed(allowed) if !allowed.is_empty() => {
                return write!(f, "This route allows {allowed}.");
            }
            Refusal::StoreUnavailable { why, spent, .. } => {
                self.why(why, f)?;
                f.write_str(". Nothing was forwarded.")?;
                if !spent {
                    return Ok(());
                }
                " The token counts as used, because the store did not say whether it was."
            }
            Refusal::OlderInFlight { settling, .. } => {
                f.write_str(if *settling {
                    "Requests with an older token failed midway, and the upstream may still be \
                     working on them"
                } else {
                    "Requests with an older token are still in flight"
                })?;
                ". Nothing was forwarded. Send the same request again, with the same token."
            }
            Refusal::Unreachable { why, spent } => {
                self.why(why, f)?;
                if *spent {
                    ". The token could not be given back and counts as used."
                } else {
                    "."
                }
            }
            Refusal::Broken(why) => {
                self.why(why, f)?;
                SENT
            }
            Refusal::TooSlow(limit) => {
                let limit = humantime::format_duration(*limit);
                write!(f, "No response within {limit}")?;
                SENT
            }
            Refusal::ClientGone(why) => {
                return write!(f, "{why}. The request was not forwarded whole.");
            }
            other => other.fixed_text(),
        };
        f.write_str(end)
    }
}

const SENT: &str = ". The request was sent once and may still take effect: check before sending it \
                    again. If it was fenced, newer tokens wait until it has settled.";
