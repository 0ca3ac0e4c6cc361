//! The one place that maps what became of a request to HTTP: problem+json (RFC 9457), or for gRPC
//! calls a trailers-only response, and always `X-Fencing-Outcome`, so that a caller can tell the
//! proxy's own 503 from the upstream's.

use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::headers::OUTCOME;
use super::headers::via::Loop;
use super::reply::{ClientBody, full};
use crate::metrics::{DecidedBy, Outcome};
use crate::routing::{ResourceKey, Token};
use crate::wire::request::{Kind, RequestError};

/// Why the proxy could not do its part. An error of the store or of a connection names hosts, ports,
/// files and certificates: that is for the log, and no client reads it, with `disclose` or without.
#[derive(Clone, Debug)]
pub(crate) struct Why {
    /// What anybody may read: a sentence without its full stop.
    said: &'static str,
    /// What only the log has.
    cause: Option<String>,
}

impl Why {
    pub(crate) const fn new(said: &'static str) -> Self {
        Self { said, cause: None }
    }

    pub(crate) fn of(said: &'static str, cause: &dyn std::fmt::Display) -> Self {
        Self {
            said,
            cause: Some(cause.to_string()),
        }
    }

    fn text(&self, reader: Reader) -> String {
        match (&self.cause, reader) {
            (Some(cause), Reader::Log) => format!("{}: {cause}", self.said),
            _ => self.said.to_owned(),
        }
    }
}

/// Who reads a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// With `disclose`, resource, token and mark are named.
    Client { disclose: bool },
    /// Everything is named.
    Log,
}

/// Why a request was not forwarded, or what broke when it was.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Stale {
        key: ResourceKey,
        token: Token,
        mark: Token,
        decided_by: DecidedBy,
    },
    /// `reuse: once`, and the token has been used.
    Spent {
        key: ResourceKey,
        token: Token,
    },
    /// Farther past the mark than the route believes; `None`: there is no mark.
    Implausible {
        key: ResourceKey,
        token: Token,
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
        key: ResourceKey,
        token: Token,
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

/// What a fenced request is about, once that has been derived: its resource and its token.
pub(crate) type Subject = (ResourceKey, Token);

/// How this route answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// 412 or 409.
    pub stale_status: u16,
    pub disclose: bool,
    pub grpc: bool,
}

impl Style {
    const fn reader(self) -> Reader {
        Reader::Client {
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
    pub(super) const UNKNOWN: u8 = 2;
    pub(super) const INVALID_ARGUMENT: u8 = 3;
    pub(super) const DEADLINE_EXCEEDED: u8 = 4;
    pub(super) const PERMISSION_DENIED: u8 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u8 = 8;
    pub(super) const FAILED_PRECONDITION: u8 = 9;
    pub(super) const UNIMPLEMENTED: u8 = 12;
    pub(super) const INTERNAL: u8 = 13;
    pub(super) const UNAVAILABLE: u8 = 14;
    pub(super) const UNAUTHENTICATED: u8 = 16;
}

/// What the caller may do next.
#[derive(Clone, Copy)]
enum Retry {
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

    const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::SameToken => "same-token",
            Self::CheckFirst => "check-first",
        }
    }
}

impl Refusal {
    /// Nothing was sent.
    pub(crate) fn unreachable(why: &dyn std::fmt::Display, spent: bool) -> Self {
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

    /// The refusal of a head that is not taken.
    pub(crate) fn of_head(error: RequestError) -> Self {
        let what = format!("The head of the request: {error}. Nothing was forwarded.");
        match error.kind() {
            Kind::Malformed => Self::Ambiguous(what),
            Kind::Method => Self::MethodNotAllowed(String::new()),
            Kind::Version => Self::VersionNotSupported,
            Kind::TargetLong => Self::TargetTooLong(what),
            Kind::HeadBytes | Kind::HeadFields => Self::HeadTooLarge(what),
            Kind::Slow => Self::ClientGone(format!("The request: {error}")),
        }
    }

    /// Its row: outcome, status, gRPC status, what to do next, title. `Stale` and `Spent` have the status
    /// that the route says in place of 412.
    #[rustfmt::skip]
    fn row(&self) -> Row {
        use Outcome as O;
        use Retry::{CheckFirst, Never, SameToken};
        use StatusCode as S;
        let (outcome, status, grpc, retry, title) = match self {
            Self::Stale { .. } =>
                (O::StaleToken, S::PRECONDITION_FAILED, grpc::FAILED_PRECONDITION, Never, "Stale fencing token"),
            Self::Spent { .. } =>
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

    pub(crate) fn outcome(&self) -> Outcome {
        self.row().outcome
    }

    /// The last word of the problem type, and the value of `X-Fencing-Outcome`.
    fn word(&self) -> &'static str {
        self.outcome().as_str()
    }

    fn status(&self, style: Style) -> StatusCode {
        let Row {
            outcome, status, ..
        } = self.row();
        match outcome {
            Outcome::StaleToken => StatusCode::from_u16(style.stale_status).unwrap_or(status),
            _ => status,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded(_) => Some(Duration::from_secs(1)),
            Self::StoreUnavailable { retry_after, .. }
            | Self::OlderInFlight { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// What a person reads.
    pub(crate) fn detail(&self, reader: Reader) -> String {
        match self {
            Self::Stale { key, token, mark, .. }
                if reader != (Reader::Client { disclose: false }) => format!(
                "Token {token} is lower than {mark}, the highest token accepted for {key}: the lock has \
                 passed to another holder. Nothing was forwarded. Acquire the lock again, and read the \
                 state before writing."
            ),
            Self::Stale { .. } => "A higher token has been accepted for this resource: the lock has \
                 passed to another holder. Nothing was forwarded. Acquire the lock again, and read the \
                 state before writing."
                .into(),
            Self::Spent { .. } => "This route accepts each token once (reuse: once), and this token \
                 was used before. Nothing was forwarded. Acquire the lock again for another operation."
                .into(),
            Self::Implausible { key, token, mark } => {
                let disclose = reader != (Reader::Client { disclose: false });
                let what = match mark {
                    Some(mark) if disclose => format!(
                        "Token {token} is further above {mark}, the highest token accepted for {key}, than this route \
                         allows (token.max_jump, token.max)"
                    ),
                    None if disclose => format!(
                        "Token {token} is higher than this route allows for {key}, which has no mark yet (token.max)"
                    ),
                    _ => "The token is further above the highest token accepted than this route allows".to_owned(),
                };
                format!(
                    "{what}. Nothing was forwarded, and the mark has not changed. If the lock service did grant this \
                     token, an operator can accept it: fencepost marks advance."
                )
            }
            Self::TokenRequired => "Send the token of your lock in X-Fencing-Token.".into(),
            Self::MalformedToken(why) => format!("X-Fencing-Token: {why}"),
            Self::Loop(why) => format!(
                "{why}. Nothing was forwarded. Check whether upstream.url leads back to this proxy."
            ),
            Self::Ambiguous(why)
            | Self::TooLarge(why)
            | Self::HeadTooLarge(why)
            | Self::TargetTooLong(why) => why.clone(),
            Self::VersionNotSupported => "Send HTTP/1.0, HTTP/1.1 or HTTP/2; over TLS, the version agreed on by ALPN.".into(),
            Self::NoRoute => "No route of this proxy matches the path, and only safe methods pass \
                 without a route. Add a route to the configuration."
                .into(),
            Self::MethodNotAllowed(allowed) if allowed.is_empty() => {
                "This proxy does not forward TRACE or CONNECT.".into()
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
            Self::UpgradeRefused => "The proxy cannot fence single requests inside a tunnel. With `upgrade: allow` this \
                 route opens tunnels over HTTP/1.1, and closes them when a newer token arrives. In \
                 bypass mode nothing is fenced."
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
            Self::ClientGone(why) => format!("{why}. Nothing was forwarded."),
        }
    }

    /// Resource, token and mark, as far as they are known: by this refusal itself, else from the request.
    pub(crate) fn facts<'a>(
        &'a self,
        subject: Option<&'a Subject>,
    ) -> (Option<&'a ResourceKey>, Option<Token>, Option<Token>) {
        match self {
            Self::Stale {
                key, token, mark, ..
            } => (Some(key), Some(*token), Some(*mark)),
            Self::Spent { key, token } => (Some(key), Some(*token), Some(*token)),
            Self::Implausible { key, token, mark } => (Some(key), Some(*token), *mark),
            Self::OlderInFlight { key, token, .. } => (Some(key), Some(*token), None),
            _ => subject.map_or((None, None, None), |(key, token)| {
                (Some(key), Some(*token), None)
            }),
        }
    }

    /// The answer.
    pub(crate) fn respond(&self, style: Style, subject: Option<&Subject>) -> Response<ClientBody> {
        let word = self.word();
        let mut response = if style.grpc {
            self.trailers_only(style)
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

    fn problem(&self, style: Style, subject: Option<&Subject>) -> Value {
        let mut problem = Map::new();
        problem.insert(
            "type".into(),
            json!(format!("urn:fencepost:problem:{}", self.word())),
        );
        problem.insert("title".into(), json!(self.row().title));
        problem.insert("status".into(), json!(self.status(style).as_u16()));
        problem.insert("detail".into(), json!(self.detail(style.reader())));
        problem.insert("retry".into(), json!(self.row().retry.as_str()));
        if style.disclose {
            // Numbers as strings: JavaScript would round those above 2^53.
            let (key, token, mark) = self.facts(subject);
            if let Some(key) = key {
                problem.insert("resource".into(), json!(key.as_str()));
            }
            if let Some(token) = token {
                problem.insert("token".into(), json!(token.to_string()));
            }
            if let Some(mark) = mark {
                problem.insert("mark".into(), json!(mark.to_string()));
            }
            if let (Some(token), Some(mark)) = (token, mark)
                && token <= mark
            {
                problem.insert("gap".into(), json!(token.gap_to(mark).to_string()));
            }
        }
        Value::Object(problem)
    }

    /// gRPC's form of an answer without a message: status in the headers, HTTP 200
    /// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>, Trailers-Only).
    fn trailers_only(&self, style: Style) -> Response<ClientBody> {
        let mut response = Response::new(full(bytes::Bytes::new()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", u16::from(self.row().grpc).into());
        let message = format!("{}: {}", self.word(), self.detail(style.reader()));
        if let Ok(message) = HeaderValue::from_str(&grpc_message(&message)) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// A claim was granted.
pub(crate) fn claimed() -> Response<ClientBody> {
    let mut response = Response::new(full(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(OUTCOME, HeaderValue::from_static("claimed"));
    response
}

/// This proxy is the one that an OPTIONS was sent to; `allowed`: what the route takes.
pub(crate) fn last_hop(allowed: &str) -> Response<ClientBody> {
    let mut response = Response::new(full(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(OUTCOME, HeaderValue::from_static("answered"));
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        headers.insert(ALLOW, allowed);
    }
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

    fn stale() -> Refusal {
        Refusal::Stale {
            key: ResourceKey::new("order:7").expect("a key"),
            token: Token::new(41).expect("a token"),
            mark: Token::new(i64::MAX).expect("a token"),
            decided_by: DecidedBy::Memory,
        }
    }

    const STYLE: Style = Style {
        stale_status: 412,
        disclose: true,
        grpc: false,
    };

    #[test]
    fn stale_is_a_verdict() {
        let response = stale().respond(STYLE, None);
        assert_eq!(response.status(), 412);
        assert_eq!(response.headers()["x-fencing-outcome"], "stale-token");
        assert!(!response.headers().contains_key(RETRY_AFTER));
        let problem = stale().problem(STYLE, None);
        assert_eq!(problem["type"], "urn:fencepost:problem:stale-token");
        assert_eq!(problem["mark"], "9223372036854775807");
        assert_eq!(problem["gap"], "9223372036854775766");
        assert_eq!(problem["retry"], "never");
    }

    #[test]
    fn what_is_not_to_be_disclosed_is_nowhere() {
        let style = Style {
            disclose: false,
            ..STYLE
        };
        let text = stale().problem(style, None).to_string();
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
                let style = Style { disclose, ..STYLE };
                let problem = refusal.problem(style, None).to_string();
                let call = refusal.respond(
                    Style {
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
            assert!(refusal.detail(Reader::Log).contains(cause), "{refusal:?}");
        }
    }

    #[test]
    fn grpc_gets_trailers_only() {
        let style = Style {
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
