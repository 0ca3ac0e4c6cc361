//! The one place that maps what became of a request to HTTP: problem+json (RFC 9457), or for gRPC
//! calls a trailers-only response, and always `X-Fencing-Outcome`, so that a caller can tell the
//! proxy's own 503 from the upstream's.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serializer as _;
use serde::ser::SerializeMap as _;

use super::{AnswerStyle, Refusal, Subject};
use crate::fencing::{Refused, TRY_AGAIN};
use crate::http1::Response;
use crate::http1::names::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use crate::metrics::Outcome;
use crate::proxy::client_body::{ClientBody, full};
use crate::proxy::headers::{OUTCOME, RETRY};

/// The parts of a refusal that do not depend on the request.
pub(super) struct Row {
    outcome: Outcome,
    status: StatusCode,
    grpc: u8,
    /// The reason, and what became of the request. Empty: it depends on the request.
    pub(super) reason: &'static str,
    retry: Retry,
    /// The next step of the client, or of its operator. Empty: the same request again.
    step: &'static str,
}

/// <https://grpc.io/docs/guides/status-codes/>
mod grpc {
    pub(crate) const UNKNOWN: u8 = 2;
    pub(crate) const INVALID_ARGUMENT: u8 = 3;
    pub(crate) const DEADLINE_EXCEEDED: u8 = 4;
    pub(crate) const PERMISSION_DENIED: u8 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: u8 = 8;
    pub(crate) const FAILED_PRECONDITION: u8 = 9;
    pub(crate) const UNIMPLEMENTED: u8 = 12;
    pub(crate) const INTERNAL: u8 = 13;
    pub(crate) const UNAVAILABLE: u8 = 14;
    pub(crate) const UNAUTHENTICATED: u8 = 16;
}

/// The advice to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not with this token: a verdict, not a hiccup.
    Never,
    /// The same request, the same token.
    SameToken,
    /// Find out first whether it took effect.
    CheckFirst,
}

impl Retry {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::SameToken => "same-token",
            Self::CheckFirst => "check-first",
        }
    }
}

impl Refusal {
    /// Its row. A stale or spent token has the status that the route says in place of 412.
    #[rustfmt::skip]
    pub(super) fn row(&self) -> Row {
        use Outcome as O;
        use Refused as R;
        use Retry::{CheckFirst, Never, SameToken};
        use StatusCode as S;
        let (outcome, status, grpc, reason, (retry, step)) = match self {
            Self::Fence(R::Stale { .. } | R::Spent) => (O::StaleToken, S::PRECONDITION_FAILED, grpc::FAILED_PRECONDITION, "", (Never, ACQUIRE)),
            Self::Fence(R::Implausible { .. }) => (O::ImplausibleToken, S::UNPROCESSABLE_ENTITY, grpc::INVALID_ARGUMENT, "",
                (Never, "Send the number of your own grant; if the lock service did grant this one, an \
                         operator can accept it: fencepost marks advance.")),
            Self::Fence(R::OlderInFlight { .. }) => (O::OlderInFlight, S::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, "", (SameToken, "")),
            Self::Fence(R::Unavailable(_)) => (O::StoreUnavailable, S::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, "", (SameToken, "")),
            Self::Fence(R::Limited(_)) => (O::Overloaded, S::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, "", (SameToken, "")),
            Self::TokenRequired => (O::TokenRequired, S::PRECONDITION_REQUIRED, grpc::INVALID_ARGUMENT,
                "This route needs a token for this method.",
                (Never, "Send the token of your lock in X-Fencing-Token.")),
            Self::MalformedToken(_) => (O::MalformedToken, S::BAD_REQUEST, grpc::INVALID_ARGUMENT, "",
                (Never, "Send the number as the lock service gave it.")),
            Self::Ambiguous(_) => (O::AmbiguousRequest, S::BAD_REQUEST, grpc::INVALID_ARGUMENT, "",
                (Never, "Correct this before you send the request again.")),
            Self::UpgradeRefused => (O::UpgradeRefused, S::BAD_REQUEST, grpc::INVALID_ARGUMENT,
                "The proxy cannot fence what goes through a tunnel, so this route opens none.",
                (Never, "Send plain requests, or give tunnels a route of their own in bypass mode, which \
                         fences nothing.")),
            Self::Unauthorized => (O::Unauthorized, S::UNAUTHORIZED, grpc::UNAUTHENTICATED,
                "Claims need a bearer token. Nothing was claimed.",
                (Never, "Send one `Authorization: Bearer …` header with the token from claim.token_file.")),
            Self::ClientRefused => (O::ClientRefused, S::FORBIDDEN, grpc::PERMISSION_DENIED,
                "The client's certificate or address is none of those that this route, or claims, are \
                 limited to (require_client, claim.require_client, claim.addresses). Nothing was forwarded.",
                (Never, "Use a certificate and an address that they allow.")),
            Self::NoRoute => (O::NoRoute, S::NOT_FOUND, grpc::UNIMPLEMENTED,
                "No route of this proxy matches the path, and only safe methods pass without a route.",
                (Never, "Check the path, or add a route to the configuration.")),
            Self::MethodNotAllowed(_) => (O::MethodNotAllowed, S::METHOD_NOT_ALLOWED, grpc::UNIMPLEMENTED,
                "This proxy does not forward TRACE or CONNECT, nor, where a route enforces, methods that \
                 name other resources in their body or in Link (BIND, LINK and the like, BCOPY and the \
                 like).",
                (Never, "Use a method that is allowed.")),
            Self::ClientGone(_) => (O::RequestTimeout, S::REQUEST_TIMEOUT, grpc::DEADLINE_EXCEEDED, "",
                (SameToken, "Send the whole request again; if it was not fenced, check first whether a part took effect.")),
            Self::TooLarge(_) => (O::ContentTooLarge, S::PAYLOAD_TOO_LARGE, grpc::RESOURCE_EXHAUSTED, "",
                (Never, "Send less at once.")),
            Self::TargetTooLong(_) => (O::TargetTooLong, S::URI_TOO_LONG, grpc::RESOURCE_EXHAUSTED, "",
                (Never, "Send the parameters in a body.")),
            Self::HeadTooLarge(_) => (O::HeadTooLarge, S::REQUEST_HEADER_FIELDS_TOO_LARGE, grpc::RESOURCE_EXHAUSTED, "",
                (Never, "Send fewer or shorter header fields.")),
            Self::Broken(_) => (O::OutcomeUnknown, S::BAD_GATEWAY, grpc::UNKNOWN,
                "The exchange with the upstream did not complete",
                (CheckFirst, "Check whether it took effect before you send it again.")),
            Self::Unreachable(_) => (O::UpstreamUnreachable, S::BAD_GATEWAY, grpc::UNAVAILABLE,
                "The upstream cannot be reached, or has not processed the request and will not.",
                (SameToken, "")),
            // A token that is spent is of no use any more.
            Self::Spent(refusal) => return Row { retry: Never, step: ACQUIRE, ..refusal.row() },
            Self::TooSlow(_) => (O::OutcomeUnknown, S::GATEWAY_TIMEOUT, grpc::DEADLINE_EXCEEDED, "",
                (CheckFirst, "Check whether it took effect before you send it again.")),
            Self::VersionNotSupported => (O::VersionNotSupported, S::HTTP_VERSION_NOT_SUPPORTED, grpc::UNIMPLEMENTED,
                "This proxy does not speak this version of HTTP.",
                (Never, "Send HTTP/1.0, HTTP/1.1 or HTTP/2.")),
            Self::OperationUnderWay => (O::OperationUnderWay, S::CONFLICT, grpc::FAILED_PRECONDITION,
                "Another request is carrying this operation out. Nothing was forwarded.",
                (SameToken, "")),
            Self::OperationUnknown => (O::OperationUnknown, S::CONFLICT, grpc::FAILED_PRECONDITION,
                "An earlier request has sent this operation, and nobody knows whether it took effect. \
                 Nothing was forwarded.",
                (CheckFirst, "Check whether it took effect, and have an operator record it: fencepost \
                              operations resolve.")),
            Self::OperationMismatch => (O::OperationMismatch, S::UNPROCESSABLE_ENTITY, grpc::INVALID_ARGUMENT,
                "Another request has come under this X-Fencing-Operation: its method, target or body was \
                 different. Nothing was forwarded.",
                (Never, "Send each operation under a name of its own, and a repetition byte for byte.")),
            Self::Loop => (O::LoopDetected, S::LOOP_DETECTED, grpc::INTERNAL,
                "Via names this proxy: the request has passed it before. Nothing was forwarded.",
                (Never, "Check whether upstream.url leads back to this proxy.")),
        };
        Row { outcome, status, grpc, reason, retry, step }
    }

    pub fn outcome(&self) -> Outcome {
        self.row().outcome
    }

    /// The member `retry`, and the value of `X-Fencing-Retry`.
    pub fn retry(&self) -> Retry {
        self.row().retry
    }

    pub fn status(&self, style: AnswerStyle) -> StatusCode {
        let row = self.row();
        match row.outcome {
            Outcome::StaleToken => StatusCode::from_u16(style.stale_status).unwrap_or(row.status),
            _ => row.status,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        use Refused::{OlderInFlight, Unavailable};
        match self.refused() {
            Some(Unavailable(why)) => Some(why.retry_after()),
            Some(OlderInFlight { retry_after, .. }) => Some(*retry_after),
            _ => matches!(
                self.outcome(),
                Outcome::Overloaded | Outcome::OperationUnderWay
            )
            .then_some(TRY_AGAIN),
        }
    }

    /// The next step of the client, or of its operator, in one sentence.
    pub(super) fn write_step(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.row().step;
        if !step.is_empty() {
            return f.write_str(step);
        }
        f.write_str("Send the same request again, with the same token")?;
        match self.retry_after() {
            Some(after) => write!(f, ", after {} s.", whole_seconds(after)),
            None => f.write_str("."),
        }
    }

    /// The answer.
    pub fn respond(&self, style: AnswerStyle, subject: Option<&Subject>) -> Response<ClientBody> {
        let row = self.row();
        let word = row.outcome.as_str();
        let subject = subject.filter(|_| style.disclose);
        // gRPC's form of an answer without a message: status in the headers, HTTP 200
        // (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, Trailers-Only).
        let (status, kind, body) = if style.grpc {
            (StatusCode::OK, "application/grpc", Vec::new())
        } else {
            let body = self.problem(style, subject).unwrap_or_default();
            (self.status(style), "application/problem+json", body)
        };
        let mut response = Response::new(status, full(body));
        let fields = &mut response.head.fields;
        fields.append(CONTENT_TYPE, kind);
        if style.grpc {
            fields.append("grpc-status", row.grpc.to_string());
            let message = format!("{word}: {}", self.detail(subject, false));
            let message = utf8_percent_encode(&message, &GRPC_ESCAPED);
            fields.append("grpc-message", message.to_string());
        }
        fields.append(OUTCOME, word);
        fields.append(RETRY, row.retry.as_str());
        // HTTP libraries repeat what has this field.
        if let Some(after) = self.retry_after().filter(|_| row.retry == Retry::SameToken) {
            fields.append(RETRY_AFTER, whole_seconds(after).to_string());
        }
        if let Self::Unauthorized = self {
            fields.append(WWW_AUTHENTICATE, "Bearer realm=\"fencepost claims\"");
        }
        if let Self::MethodNotAllowed(allowed) = self {
            fields.append(ALLOW, allowed);
        }
        response
    }

    /// The body of a refusal (RFC 9457). Numbers are strings: JavaScript would round those above
    /// 2^53. `subject`: if it is disclosed.
    fn problem(
        &self,
        style: AnswerStyle,
        subject: Option<&Subject>,
    ) -> serde_json::Result<Vec<u8>> {
        let row = self.row();
        let mut json = Vec::with_capacity(PROBLEM_ROOM);
        let mut writer = serde_json::Serializer::new(&mut json);
        let mut members = writer.serialize_map(None)?;
        let kind = format_args!("urn:fencepost:problem:{}", row.outcome);
        members.serialize_entry("type", &kind)?;
        let mut title = row.outcome.as_str().replace('-', " ");
        title[..1].make_ascii_uppercase();
        members.serialize_entry("title", &title)?;
        members.serialize_entry("status", &self.status(style).as_u16())?;
        members.serialize_entry("detail", &format_args!("{}", self.detail(subject, false)))?;
        members.serialize_entry("retry", row.retry.as_str())?;
        if let Some((key, token)) = subject {
            members.serialize_entry("resource", key.as_str())?;
            members.serialize_entry("token", &format_args!("{token}"))?;
        }
        if let Some(mark) = self.mark(subject).filter(|_| style.disclose) {
            members.serialize_entry("mark", &format_args!("{mark}"))?;
        }
        if let Some(gap) = self.gap(subject) {
            members.serialize_entry("gap", &format_args!("{gap}"))?;
        }
        members.end()?;
        Ok(json)
    }
}

/// The next step of a holder whose token is stale or spent.
const ACQUIRE: &str = "Acquire the lock again, and read the state before writing.";

/// Room for a usual problem: its texts have some 400 bytes.
const PROBLEM_ROOM: usize = 768;

/// What gRPC's `grpc-message` may not hold as it is.
const GRPC_ESCAPED: AsciiSet = CONTROLS.add(b'%');

/// A claim was granted.
pub fn claimed() -> Response<ClientBody> {
    let mut response = Response::new(StatusCode::NO_CONTENT, full(bytes::Bytes::new()));
    response.head.fields.append(OUTCOME, "claimed");
    response
}

/// Rounded up, and at least 1: a client that waits that long does not come too early.
fn whole_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    seconds.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fencing::Undecided;
    use crate::metrics::{DecidedBy, Limit};
    use crate::routing::{ResourceKey, Token};

    fn stale() -> Refusal {
        let mark = Token::new(i64::MAX).expect("a token");
        Refused::stale(mark, DecidedBy::Memory).into()
    }

    fn subject() -> Subject {
        let key = ResourceKey::new("order:7").expect("a key");
        (key, Token::new(41).expect("a token"))
    }

    const STYLE: AnswerStyle = AnswerStyle {
        stale_status: 412,
        disclose: true,
        grpc: false,
    };

    fn parsed(refusal: &Refusal, style: AnswerStyle) -> serde_json::Value {
        let problem = refusal.problem(style, Some(&subject()));
        serde_json::from_slice(&problem.expect("JSON")).expect("JSON")
    }

    #[test]
    fn stale_is_a_verdict() {
        let response = stale().respond(STYLE, None);
        assert_eq!(response.status(), 412);
        let fields = &response.head.fields;
        assert_eq!(fields.get_str(OUTCOME), Some("stale-token"));
        assert!(!fields.contains(RETRY_AFTER));
        let problem = parsed(&stale(), STYLE);
        assert_eq!(problem["type"], "urn:fencepost:problem:stale-token");
        assert_eq!(problem["mark"], "9223372036854775807");
        assert_eq!(problem["gap"], "9223372036854775766");
        assert_eq!(problem["retry"], "never");
    }

    /// The body, or the message of a gRPC status.
    fn text(refusal: &Refusal, style: AnswerStyle, subject: Option<&Subject>) -> String {
        let response = refusal.respond(style, subject);
        if let Some(message) = response.head.fields.get_str("grpc-message") {
            return message.to_owned();
        }
        let subject = subject.filter(|_| style.disclose);
        String::from_utf8(refusal.problem(style, subject).expect("JSON")).expect("text")
    }

    #[test]
    fn what_is_not_to_be_disclosed_is_nowhere() {
        for grpc in [true, false] {
            let style = AnswerStyle {
                disclose: false,
                grpc,
                ..STYLE
            };
            let text = text(&stale(), style, Some(&subject()));
            assert!(
                ["order:7", "\"41\"", "Token 41", "9223"]
                    .iter()
                    .all(|known| !text.contains(known)),
                "{text}"
            );
        }
    }

    #[test]
    fn causes_are_for_the_log_alone() {
        let cause = "tcp connect error: 10.1.2.3:5432: Connection refused (os error 111)";
        for refusal in [
            Refused::no_answer(cause).into(),
            Refusal::Unreachable(cause.to_owned()),
            Refusal::Unreachable(cause.to_owned()).and_spent(),
            Refusal::Broken(cause.to_owned()),
        ] {
            for (disclose, grpc) in [(true, true), (true, false), (false, true), (false, false)] {
                let style = AnswerStyle {
                    disclose,
                    grpc,
                    ..STYLE
                };
                let text = text(&refusal, style, None);
                assert!(
                    !text.contains("10.1") && !text.contains("os error"),
                    "{text}"
                );
            }
            let detail = refusal.detail(None, true).to_string();
            assert!(detail.contains(cause), "{refusal:?}");
        }
    }

    /// One refusal of each outcome that is one.
    fn of_every_outcome() -> Vec<Refusal> {
        let wait = Duration::from_millis(11_500);
        let text = || "the reason".to_owned();
        vec![
            stale(),
            Refused::Spent.into(),
            Refused::Implausible { mark: None }.into(),
            Refused::OlderInFlight {
                retry_after: wait,
                settling: true,
            }
            .into(),
            Refused::Unavailable(Undecided::Repairing(wait)).into(),
            Refusal::from(Refused::Unavailable(Undecided::Lapsed)).and_spent(),
            Refused::Limited(Limit::Queue).into(),
            Refusal::TokenRequired,
            Refusal::MalformedToken(text()),
            Refusal::Ambiguous(text()),
            Refusal::Ambiguous("The reason.".into()),
            Refusal::Loop,
            Refusal::HeadTooLarge(text()),
            Refusal::TargetTooLong(text()),
            Refusal::VersionNotSupported,
            Refusal::NoRoute,
            Refusal::MethodNotAllowed(text()),
            Refusal::TooLarge(text()),
            Refusal::ClientRefused,
            Refusal::Unauthorized,
            Refusal::UpgradeRefused,
            Refusal::OperationUnderWay,
            Refusal::OperationUnknown,
            Refusal::OperationMismatch,
            Refusal::Unreachable(text()),
            Refusal::Unreachable(text()).and_spent(),
            Refusal::Broken(text()),
            Refusal::TooSlow(wait),
            Refusal::ClientGone(text()),
        ]
    }

    #[test]
    fn every_detail_ends_with_the_next_step_and_its_seconds() {
        const STEPS: [&str; 5] = ["Acquire", "Check", "Correct", "Send", "Use"];
        let passes = |outcome: &Outcome| {
            use Outcome::{Advanced, Claimed, Current, Replayed, Unfenced};
            outcome.is_observed()
                || [Advanced, Claimed, Current, Replayed, Unfenced].contains(outcome)
        };
        let mut missing: Vec<_> = Outcome::ALL.iter().filter(|one| !passes(one)).collect();
        for refusal in of_every_outcome() {
            missing.retain(|outcome| **outcome != refusal.outcome());
            let detail = refusal.detail(None, false).to_string();
            let sentences = detail.strip_suffix('.').expect("an end").split(". ");
            let step = sentences.last().expect("a sentence");
            let verb = step.split(' ').next().expect("a word");
            assert!(STEPS.contains(&verb), "{detail}");
            assert!(!detail.contains(".."), "{detail}");
            let waits = refusal.retry() == Retry::SameToken;
            let after = refusal.retry_after().filter(|_| waits).map(whole_seconds);
            let seconds = after.map(|after| format!(", with the same token, after {after} s"));
            assert!(
                seconds.is_none_or(|seconds| step.ends_with(&seconds)),
                "{detail}"
            );
        }
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn grpc_gets_trailers_only() {
        let style = AnswerStyle {
            grpc: true,
            ..STYLE
        };
        let response = stale().respond(style, None);
        assert_eq!(response.status(), 200);
        let fields = &response.head.fields;
        assert_eq!(fields.get_str("grpc-status"), Some("9"));
        assert_eq!(fields.get_str(CONTENT_TYPE), Some("application/grpc"));
    }

    #[test]
    fn retry_after_is_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(29_001)), 30);
        assert_eq!(whole_seconds(Duration::ZERO), 1);
    }
}
