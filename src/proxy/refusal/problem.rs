//! The one place that maps what became of a request to HTTP: problem+json (RFC 9457), or for gRPC
//! calls a trailers-only response, and always `X-Fencing-Outcome`, so that a caller can tell the
//! proxy's own 503 from the upstream's.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use super::{DetailReader, Refusal, Subject};
use crate::http1::Response;
use crate::http1::names::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use crate::metrics::Outcome;
use crate::proxy::client_body::{ClientBody, full};
use crate::proxy::headers::{OUTCOME, RETRY};

/// The style of this answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerStyle<'a> {
    /// 412 or 409.
    pub stale_status: u16,
    pub disclose: bool,
    pub grpc: bool,
    /// See [`Settings::problem_base_url`](crate::config::Settings::problem_base_url).
    pub problems: Option<&'a str>,
}

impl AnswerStyle<'_> {
    const fn reader(self) -> DetailReader {
        DetailReader::Client {
            disclose: self.disclose,
        }
    }
}

/// The body of a refusal (RFC 9457). Numbers are strings: JavaScript would round those above 2^53.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: String,
    retry: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<String>,
}

/// The parts of a refusal's answer that do not depend on the request.
struct Row {
    outcome: Outcome,
    status: StatusCode,
    grpc: u8,
    retry: Retry,
    title: &'static str,
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
    /// Nothing was sent. A token that is spent is of no use any more.
    const fn unless(spent: bool) -> Self {
        if spent { Self::Never } else { Self::SameToken }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::SameToken => "same-token",
            Self::CheckFirst => "check-first",
        }
    }
}

impl Refusal {
    /// Its row: outcome, status, gRPC status, what to do next, title. `Stale` and `Spent` have the
    /// status that the route says in place of 412.
    #[rustfmt::skip]
    fn row(&self) -> Row {
        use Outcome as O;
        use Retry::{CheckFirst, Never, SameToken};
        use StatusCode as S;
        let (outcome, status, grpc, retry, title) = match self {
            Self::Stale { .. } =>
                (O::StaleToken, S::PRECONDITION_FAILED, grpc::FAILED_PRECONDITION, Never, "Stale fencing token"),
            Self::Spent =>
                (O::StaleToken, S::PRECONDITION_FAILED, grpc::FAILED_PRECONDITION, Never, "Fencing token already used"),
            Self::Implausible { .. } =>
                (O::ImplausibleToken, S::UNPROCESSABLE_ENTITY, grpc::INVALID_ARGUMENT, Never, "Implausible fencing token"),
            Self::TokenRequired =>
                (O::TokenRequired, S::PRECONDITION_REQUIRED, grpc::INVALID_ARGUMENT, Never, "Fencing token required"),
            Self::MalformedToken(_) =>
                (O::MalformedToken, S::BAD_REQUEST, grpc::INVALID_ARGUMENT, Never, "Malformed fencing token"),
            Self::Ambiguous(_) =>
                (O::AmbiguousRequest, S::BAD_REQUEST, grpc::INVALID_ARGUMENT, Never, "Ambiguous request"),
            Self::UpgradeRefused =>
                (O::UpgradeRefused, S::BAD_REQUEST, grpc::INVALID_ARGUMENT, Never, "Upgrade not allowed"),
            Self::Unauthorized =>
                (O::Unauthorized, S::UNAUTHORIZED, grpc::UNAUTHENTICATED, Never, "Bearer token required"),
            Self::ClientRefused | Self::ClaimRefused =>
                (O::ClientRefused, S::FORBIDDEN, grpc::PERMISSION_DENIED, Never, "Client not allowed"),
            Self::NoRoute =>
                (O::NoRoute, S::NOT_FOUND, grpc::UNIMPLEMENTED, Never, "No matching route"),
            Self::MethodNotAllowed(_) =>
                (O::MethodNotAllowed, S::METHOD_NOT_ALLOWED, grpc::UNIMPLEMENTED, Never, "Method not allowed"),
            Self::ClientGone(_) =>
                (O::RequestTimeout, S::REQUEST_TIMEOUT, grpc::DEADLINE_EXCEEDED, SameToken, "Incomplete request"),
            Self::TooLarge(_) =>
                (O::ContentTooLarge, S::PAYLOAD_TOO_LARGE, grpc::RESOURCE_EXHAUSTED, Never, "Request body too large"),
            Self::TargetTooLong(_) =>
                (O::TargetTooLong, S::URI_TOO_LONG, grpc::RESOURCE_EXHAUSTED, Never, "Request target too long"),
            Self::HeadTooLarge(_) =>
                (O::HeadTooLarge, S::REQUEST_HEADER_FIELDS_TOO_LARGE, grpc::RESOURCE_EXHAUSTED, Never, "Request header fields too large"),
            Self::Broken(_) =>
                (O::OutcomeUnknown, S::BAD_GATEWAY, grpc::UNKNOWN, CheckFirst, "Upstream exchange failed"),
            Self::Unreachable { spent, .. } =>
                (O::UpstreamUnreachable, S::BAD_GATEWAY, grpc::UNAVAILABLE, Retry::unless(*spent), "Upstream unreachable"),
            Self::Overloaded(_) =>
                (O::Overloaded, S::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, SameToken, "Too many requests in flight"),
            Self::StoreUnavailable { spent, .. } =>
                (O::StoreUnavailable, S::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, Retry::unless(*spent), "Store unavailable"),
            Self::OlderInFlight { .. } =>
                (O::OlderInFlight, S::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, SameToken, "Older requests still in flight"),
            Self::TooSlow(_) =>
                (O::OutcomeUnknown, S::GATEWAY_TIMEOUT, grpc::DEADLINE_EXCEEDED, CheckFirst, "Upstream timeout"),
            Self::VersionNotSupported =>
                (O::VersionNotSupported, S::HTTP_VERSION_NOT_SUPPORTED, grpc::UNIMPLEMENTED, Never, "HTTP version not supported"),
            Self::Loop(_) =>
                (O::LoopDetected, S::LOOP_DETECTED, grpc::INTERNAL, Never, "Loop detected"),
        };
        Row { outcome, status, grpc, retry, title }
    }

    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.row().outcome
    }

    /// The member `retry`, and the value of `X-Fencing-Retry`.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.row().retry
    }

    /// The last word of the problem type, and the value of `X-Fencing-Outcome`.
    fn word(&self) -> &'static str {
        self.outcome().as_str()
    }

    #[must_use]
    pub fn status(&self, style: AnswerStyle<'_>) -> StatusCode {
        let Row {
            outcome, status, ..
        } = self.row();
        match outcome {
            Outcome::StaleToken => StatusCode::from_u16(style.stale_status).unwrap_or(status),
            _ => status,
        }
    }

    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded(_) => Some(Duration::from_secs(1)),
            Self::StoreUnavailable { retry_after, .. }
            | Self::OlderInFlight { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The answer.
    #[must_use]
    pub fn respond(
        &self,
        style: AnswerStyle<'_>,
        subject: Option<&Subject>,
    ) -> Response<ClientBody> {
        let word = self.word();
        let mut response = if style.grpc {
            self.trailers_only(style, subject)
        } else {
            let body = self.problem(style, subject);
            let mut response = Response::new(self.status(style), full(body));
            let fields = &mut response.head.fields;
            fields.append(CONTENT_TYPE, "application/problem+json");
            response
        };
        let fields = &mut response.head.fields;
        fields.append(OUTCOME, word);
        fields.append(RETRY, self.retry().as_str());
        if let Some(after) = self.retry_after() {
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

    fn problem(&self, style: AnswerStyle<'_>, subject: Option<&Subject>) -> String {
        let shown = subject.filter(|_| style.disclose);
        let mark = self.mark(subject).filter(|_| style.disclose);
        let gap = shown.zip(mark).filter(|((_, token), mark)| token <= mark);
        let problem = Problem {
            kind: format!(
                "{}{}",
                style.problems.unwrap_or("urn:fencepost:problem:"),
                self.word()
            ),
            title: self.row().title,
            status: self.status(style).as_u16(),
            detail: self.detail(style.reader(), subject),
            retry: self.retry().as_str(),
            resource: shown.map(|(key, _)| key.as_str()),
            token: shown.map(|(_, token)| token.to_string()),
            mark: mark.map(|mark| mark.to_string()),
            gap: gap.map(|((_, token), mark)| token.gap_to(mark).to_string()),
        };
        serde_json::to_string(&problem).unwrap_or_default()
    }

    /// gRPC's form of an answer without a message: status in the headers, HTTP 200
    /// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, Trailers-Only).
    fn trailers_only(
        &self,
        style: AnswerStyle<'_>,
        subject: Option<&Subject>,
    ) -> Response<ClientBody> {
        let mut response = Response::new(StatusCode::OK, full(bytes::Bytes::new()));
        let fields = &mut response.head.fields;
        fields.append(CONTENT_TYPE, "application/grpc");
        fields.append("grpc-status", self.row().grpc.to_string());
        let message = format!("{}: {}", self.word(), self.detail(style.reader(), subject));
        fields.append("grpc-message", grpc_message(&message));
        response
    }
}

/// A claim was granted.
#[must_use]
pub fn claimed() -> Response<ClientBody> {
    no_content("claimed")
}

fn no_content(outcome: &'static str) -> Response<ClientBody> {
    let empty = full(bytes::Bytes::new());
    let mut response = Response::new(StatusCode::NO_CONTENT, empty);
    response.head.fields.append(OUTCOME, outcome);
    response
}

/// Rounded up, and at least 1: a client that waits that long does not come too early.
fn whole_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    seconds.max(1)
}

/// Percent-encodes what gRPC's `grpc-message` may not hold as it is.
fn grpc_message(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::DecidedBy;
    use crate::proxy::refusal::Why;
    use crate::routing::{ResourceKey, Token};

    fn stale() -> Refusal {
        Refusal::Stale {
            mark: Token::new(i64::MAX).expect("a token"),
            decided_by: DecidedBy::Memory,
        }
    }

    fn subject() -> Subject {
        let key = ResourceKey::new("order:7").expect("a key");
        (key, Token::new(41).expect("a token"))
    }

    const STYLE: AnswerStyle<'_> = AnswerStyle {
        stale_status: 412,
        disclose: true,
        grpc: false,
        problems: None,
    };

    fn parsed(problem: &str) -> serde_json::Value {
        serde_json::from_str(problem).expect("JSON")
    }

    #[test]
    fn stale_is_a_verdict() {
        let response = stale().respond(STYLE, None);
        assert_eq!(response.status(), 412);
        let fields = &response.head.fields;
        assert_eq!(fields.get_str(OUTCOME), Some("stale-token"));
        assert!(!fields.contains(RETRY_AFTER));
        let problem = parsed(&stale().problem(STYLE, Some(&subject())));
        assert_eq!(problem["type"], "urn:fencepost:problem:stale-token");
        assert_eq!(problem["mark"], "9223372036854775807");
        assert_eq!(problem["gap"], "9223372036854775766");
        assert_eq!(problem["retry"], "never");
    }

    #[test]
    fn a_type_can_be_a_link() {
        let style = AnswerStyle {
            problems: Some("https://wiki.internal/fencepost/"),
            ..STYLE
        };
        let problem = parsed(&stale().problem(style, None));
        assert_eq!(
            problem["type"],
            "https://wiki.internal/fencepost/stale-token"
        );
    }

    #[test]
    fn what_is_not_to_be_disclosed_is_nowhere() {
        let style = AnswerStyle {
            disclose: false,
            ..STYLE
        };
        let text = stale().problem(style, Some(&subject()));
        assert!(
            !text.contains("order:7") && !text.contains("\"41\"") && !text.contains("9223"),
            "{text}"
        );
    }

    #[test]
    fn causes_are_for_the_log_alone() {
        let cause = "tcp connect error: 10.1.2.3:5432: Connection refused (os error 111)";
        let unavailable = || Refusal::StoreUnavailable {
            why: Why::of("The store of marks gave no answer", &cause),
            retry_after: Duration::ZERO,
            spent: false,
        };
        for refusal in [
            unavailable(),
            Refusal::unreachable(&cause, false),
            Refusal::refused(&cause, true),
            Refusal::Broken(Why::of("The exchange broke", &cause)),
        ] {
            for disclose in [true, false] {
                let style = AnswerStyle { disclose, ..STYLE };
                let problem = refusal.problem(style, None);
                let call = refusal.respond(
                    AnswerStyle {
                        grpc: true,
                        ..style
                    },
                    None,
                );
                let message = call.head.fields.get_str("grpc-message").expect("text");
                for text in [&*problem, message] {
                    assert!(
                        !text.contains("10.1") && !text.contains("os error"),
                        "{text}"
                    );
                }
            }
            assert!(
                refusal.detail(DetailReader::Log, None).contains(cause),
                "{refusal:?}"
            );
        }
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
