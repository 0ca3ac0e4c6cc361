//! The one place that maps what became of a request to HTTP: problem+json (RFC 9457), or for gRPC
//! calls a trailers-only response, and always `X-Fencing-Outcome`, so that a caller can tell the
//! proxy's own 503 from the upstream's.

use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::{DetailReader, Refusal, Subject};
use crate::metrics::Outcome;
use crate::proxy::body::{ClientBody, full};
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
            let body = self.problem(style, subject).to_string();
            let mut response = Response::new(full(body));
            *response.status_mut() = self.status(style);
            let kind = HeaderValue::from_static("application/problem+json");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        };
        let headers = response.headers_mut();
        headers.insert(OUTCOME, HeaderValue::from_static(word));
        headers.insert(RETRY, HeaderValue::from_static(self.retry().as_str()));
        if let Some(after) = self.retry_after() {
            headers.insert(RETRY_AFTER, whole_seconds(after).into());
        }
        if let Self::Unauthorized = self {
            let asks = HeaderValue::from_static("Bearer realm=\"fencepost claims\"");
            headers.insert(WWW_AUTHENTICATE, asks);
        }
        if let Self::MethodNotAllowed(allowed) = self
            && let Ok(allowed) = HeaderValue::from_str(allowed)
        {
            headers.insert(ALLOW, allowed);
        }
        response
    }

    fn problem(&self, style: AnswerStyle<'_>, subject: Option<&Subject>) -> Value {
        let mut problem = Map::new();
        problem.insert(
            "type".into(),
            json!(format!(
                "{}{}",
                style.problems.unwrap_or("urn:fencepost:problem:"),
                self.word()
            )),
        );
        problem.insert("title".into(), json!(self.row().title));
        problem.insert("status".into(), json!(self.status(style).as_u16()));
        problem.insert("detail".into(), json!(self.detail(style.reader(), subject)));
        problem.insert("retry".into(), json!(self.retry().as_str()));
        if style.disclose {
            // Numbers as strings: JavaScript would round those above 2^53.
            let mark = self.mark(subject);
            if let Some((key, token)) = subject {
                problem.insert("resource".into(), json!(key.as_str()));
                problem.insert("token".into(), json!(token.to_string()));
                if let Some(mark) = mark.filter(|mark| token <= mark) {
                    problem.insert("gap".into(), json!(token.gap_to(mark).to_string()));
                }
            }
            if let Some(mark) = mark {
                problem.insert("mark".into(), json!(mark.to_string()));
            }
        }
        Value::Object(problem)
    }

    /// gRPC's form of an answer without a message: status in the headers, HTTP 200
    /// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, Trailers-Only).
    fn trailers_only(
        &self,
        style: AnswerStyle<'_>,
        subject: Option<&Subject>,
    ) -> Response<ClientBody> {
        let mut response = Response::new(full(bytes::Bytes::new()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", u16::from(self.row().grpc).into());
        let message = format!("{}: {}", self.word(), self.detail(style.reader(), subject));
        if let Ok(message) = HeaderValue::from_str(&grpc_message(&message)) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// A claim was granted.
#[must_use]
pub fn claimed() -> Response<ClientBody> {
    no_content("claimed")
}

fn no_content(outcome: &'static str) -> Response<ClientBody> {
    let mut response = Response::new(full(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let outcome = HeaderValue::from_static(outcome);
    response.headers_mut().insert(OUTCOME, outcome);
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

    #[test]
    fn stale_is_a_verdict() {
        let response = stale().respond(STYLE, None);
        assert_eq!(response.status(), 412);
        assert_eq!(response.headers()["x-fencing-outcome"], "stale-token");
        assert!(!response.headers().contains_key(RETRY_AFTER));
        let problem = stale().problem(STYLE, Some(&subject()));
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
        let problem = stale().problem(style, None);
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
        let text = stale().problem(style, Some(&subject())).to_string();
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
                let problem = refusal.problem(style, None).to_string();
                let call = refusal.respond(
                    AnswerStyle {
                        grpc: true,
                        ..style
                    },
                    None,
                );
                let message = call.headers()["grpc-message"].to_str().expect("text");
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
        assert_eq!(response.headers()["grpc-status"], "9");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
    }

    #[test]
    fn retry_after_is_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(29_001)), 30);
        assert_eq!(whole_seconds(Duration::ZERO), 1);
    }
}
