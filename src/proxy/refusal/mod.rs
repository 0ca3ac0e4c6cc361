//! The reasons why a request was not forwarded, or broke when it was, and their texts.

mod causes;
pub(super) mod problem;

use std::time::Duration;

use super::headers::via::Loop;
use crate::metrics::DecidedBy;
use crate::routing::{ResourceKey, Token};

/// Why the proxy could not do its part. An error of the store or of a connection names hosts,
/// ports, files and certificates: that is for the log, and no client reads it, with `disclose` or
/// without.
#[derive(Clone, Debug)]
pub struct Why {
    /// The public part: a sentence without its full stop.
    said: &'static str,
    /// For the log only.
    cause: Option<String>,
}

impl Why {
    #[must_use]
    pub const fn new(said: &'static str) -> Self {
        Self { said, cause: None }
    }

    pub(crate) fn of(said: &'static str, cause: &dyn std::fmt::Display) -> Self {
        Self {
            said,
            cause: Some(cause.to_string()),
        }
    }

    fn text(&self, reader: DetailReader) -> String {
        match (&self.cause, reader) {
            (Some(cause), DetailReader::Log) => format!("{}: {cause}", self.said),
            _ => self.said.to_owned(),
        }
    }
}

/// The reader of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetailReader {
    /// With `disclose`, resource, token and mark are named.
    Client { disclose: bool },
    /// Everything is named.
    Log,
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
    Loop(Loop),
    HeadTooLarge(String),
    TargetTooLong(String),
    VersionNotSupported,
    NoRoute,
    /// The methods that are allowed.
    MethodNotAllowed(String),
    TooLarge(String),
    /// The client's certificate has none of the names that the route lets in.
    ClientRefused,
    /// The client is none of those that may claim.
    ClaimRefused,
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
    /// The text that a person reads.
    pub(crate) fn detail(&self, reader: DetailReader, subject: Option<&Subject>) -> String {
        let disclosed = subject.filter(|_| reader != DetailReader::Client { disclose: false });
        match self {
            Self::Stale { mark, .. } => {
                let what = match disclosed {
                    Some((key, token)) => format!(
                        "Token {token} is lower than {mark}, the highest token accepted for {key}"
                    ),
                    None => "A higher token has been accepted for this resource".to_owned(),
                };
                format!(
                    "{what}: the lock has passed to another holder. Nothing was forwarded. Acquire the \
                     lock again, and read the state before writing."
                )
            }
            Self::Spent => "This route accepts each token once (reuse: once), and this token \
                 was used before. Nothing was forwarded. Acquire the lock again for another operation."
                .into(),
            Self::Implausible { mark } => implausible(*mark, disclosed),
            Self::TokenRequired => "Send the token of your lock in X-Fencing-Token.".into(),
            Self::MalformedToken(why) => format!("X-Fencing-Token: {why}"),
            Self::Loop(why) => format!(
                "{why}. Nothing was forwarded. Check whether upstream.url leads back to this proxy."
            ),
            Self::Ambiguous(why)
            | Self::TooLarge(why)
            | Self::HeadTooLarge(why)
            | Self::TargetTooLong(why) => why.clone(),
            Self::VersionNotSupported => "Send HTTP/1.0, HTTP/1.1 or HTTP/2.".into(),
            Self::NoRoute => "No route of this proxy matches the path, and only safe methods pass \
                 without a route. Add a route to the configuration."
                .into(),
            Self::MethodNotAllowed(allowed) if allowed.is_empty() => {
                "This proxy does not forward TRACE or CONNECT, nor, where a route enforces, methods that name other \
                 resources in their body or in Link (BIND, LINK and the like, BCOPY and the like)."
                    .into()
            }
            Self::MethodNotAllowed(allowed) => format!("This route allows {allowed}."),
            Self::ClientRefused => "This route is limited to certain clients (require_client), and the client's certificate \
                 names none of them. Nothing was forwarded."
                .into(),
            Self::ClaimRefused => "Claims are limited to certain clients (claim.require_client, claim.addresses), and \
                 this client is not one of them. Nothing was claimed."
                .into(),
            Self::Unauthorized => "Send one `Authorization: Bearer …` header with the token from claim.token_file. Nothing \
                 was claimed."
                .into(),
            Self::UpgradeRefused => "The proxy cannot fence what goes through a tunnel, so this route opens none. A \
                 route in bypass mode does, and fences nothing."
                .into(),
            Self::Overloaded(why) => (*why).into(),
            Self::StoreUnavailable { why, spent, .. } => {
                let spent = if *spent {
                    " The token counts as used, because the store did not say whether it was."
                } else {
                    ""
                };
                format!("{}. Nothing was forwarded.{spent}", why.text(reader))
            }
            Self::OlderInFlight { settling, .. } => {
                let why = if *settling {
                    "Requests with an older token failed midway, and the upstream may still be working on them"
                } else {
                    "Requests with an older token are still in flight"
                };
                format!("{why}. Nothing was forwarded. Send the same request again, with the same token.")
            }
            Self::Unreachable { why, spent } => {
                let spent = if *spent {
                    " The token could not be given back and counts as used."
                } else {
                    ""
                };
                format!("{}.{spent}", why.text(reader))
            }
            Self::Broken(why) => format!(
                "{}. The request was sent once and may have taken effect: check before sending it \
                 again. If it was fenced, newer tokens wait until it has settled.",
                why.text(reader)
            ),
            Self::TooSlow(limit) => format!(
                "No response within {}. The request was sent once and may still take effect: check \
                 before sending it again. If it was fenced, newer tokens wait until it has settled.",
                humantime::format_duration(*limit)
            ),
            Self::ClientGone(why) => format!("{why}. The request was not forwarded whole."),
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
}

/// The detail of [`Refusal::Implausible`]. `subject`: as far as the reader may know of it.
fn implausible(mark: Option<Token>, subject: Option<&Subject>) -> String {
    let what = match (mark, subject) {
        (Some(mark), Some((key, token))) => format!(
            "Token {token} is further above {mark}, the highest token accepted for {key}, than this route \
             allows (token.max_jump, token.max)"
        ),
        (None, Some((key, token))) => format!(
            "Token {token} is higher than this route allows for {key}, which has no mark yet (token.max)"
        ),
        (_, None) => "The token is further above the highest token accepted than this route allows"
            .to_owned(),
    };
    format!(
        "{what}. Nothing was forwarded, and the mark has not changed. If the lock service did grant this \
         token, an operator can accept it: fencepost marks advance."
    )
}
