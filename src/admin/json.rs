//! The admin API's JSON: tokens and marks are strings, since JavaScript rounds numbers above 2^53;
//! times are RFC 3339 in UTC; unknown values are null, not absent.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::{self, Deserialize, Deserializer};
use serde::{Deserialize as DeriveDeserialize, Serialize};

use crate::fencing::operators::{MarkView, UnknownView};
use crate::printable;
use crate::rejections::RecentRejection;
use crate::routing::{Token, TokenFormat};
use crate::store::{AuditRow, EpochRow, InstanceId, MarkRow};

/// An answer as JSON that a terminal may show: characters that do not show as themselves are `\u`
/// escapes.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let Ok(text) = serde_json::to_string(&self.0) else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let text = printable::json(&text).into_owned();
        ([(header::CONTENT_TYPE, "application/json")], text).into_response()
    }
}

/// `GET /v1/marks`.
#[derive(Serialize)]
pub struct MarkList {
    pub marks: Vec<MarkLine>,
    /// The value of `after` for the next page. null: this was the last page.
    pub next: Option<String>,
}

#[derive(Serialize)]
pub struct MarkLine {
    pub resource: String,
    pub mark: String,
    pub spent: bool,
    pub era: i64,
    pub since: String,
}

impl From<MarkRow> for MarkLine {
    fn from(row: MarkRow) -> Self {
        Self {
            resource: row.resource.as_str().to_owned(),
            mark: row.token.to_string(),
            spent: row.spent,
            era: row.era,
            since: rfc3339_ms(row.since_ms),
        }
    }
}

/// `GET /v1/marks/{resource}`.
#[derive(Serialize)]
pub struct View {
    #[serde(flatten)]
    mark: MarkLine,
    /// The instance that answers: what is in flight, waits and was refused is its own.
    instance: String,
    in_flight: usize,
    waiting: usize,
    unknown: Vec<UnknownJson>,
    epochs: Vec<Epoch>,
    rejections: Vec<Rejection>,
    latest_unknown: Vec<Rejection>,
    audit: Vec<Audit>,
}

impl View {
    pub fn new(
        instance: &InstanceId,
        view: MarkView,
        rejections: Vec<RecentRejection>,
        latest_unknown: Vec<RecentRejection>,
        audit: Vec<AuditRow>,
    ) -> Self {
        Self {
            mark: view.row.into(),
            instance: instance.name().to_owned(),
            in_flight: view.in_flight,
            waiting: view.waiting,
            unknown: view.unknown.into_iter().map(UnknownJson::from).collect(),
            epochs: view.epochs.into_iter().map(Epoch::from).collect(),
            rejections: rejections.into_iter().map(Rejection::from).collect(),
            latest_unknown: latest_unknown.into_iter().map(Rejection::from).collect(),
            audit: audit.into_iter().map(Audit::from).collect(),
        }
    }
}

#[derive(Serialize)]
pub struct UnknownJson {
    id: String,
    token: String,
    settles_in_seconds: Option<f64>,
    instance: String,
    inherited: bool,
}

impl From<UnknownView> for UnknownJson {
    fn from(unknown: UnknownView) -> Self {
        Self {
            id: unknown.id,
            token: unknown.token.to_string(),
            settles_in_seconds: unknown.settles_in.map(|left| left.as_secs_f64()),
            instance: unknown.instance,
            inherited: unknown.inherited,
        }
    }
}

#[derive(Serialize)]
pub struct Epoch {
    instance: String,
    number: i64,
    token: String,
}

impl From<EpochRow> for Epoch {
    fn from(row: EpochRow) -> Self {
        Self {
            instance: row.instance.to_string(),
            number: row.opening,
            token: row.token.to_string(),
        }
    }
}

#[derive(Serialize)]
struct Audit {
    action: String,
    before: Option<String>,
    after: Option<String>,
    reason: String,
    actor: String,
    at: String,
}

impl From<AuditRow> for Audit {
    fn from(row: AuditRow) -> Self {
        Self {
            action: row.action,
            before: row.before.map(|token| token.to_string()),
            after: row.after.map(|token| token.to_string()),
            reason: row.reason,
            actor: row.actor,
            at: rfc3339_ms(row.at_ms),
        }
    }
}

/// `GET /v1/rejections`.
#[derive(Serialize)]
pub struct RejectionList {
    pub rejections: Vec<Rejection>,
}

/// The latest unknown outcomes.
#[derive(Serialize)]
pub struct UnknownList {
    unknown: Vec<Rejection>,
}

impl UnknownList {
    pub fn of(latest: Vec<RecentRejection>) -> Self {
        let unknown = latest.into_iter().map(Rejection::from).collect();
        Self { unknown }
    }
}

/// A request that was refused, or whose outcome is unknown.
#[derive(Serialize)]
pub struct Rejection {
    at: String,
    route: String,
    resource: Option<String>,
    token: Option<String>,
    mark: Option<String>,
    gap: Option<String>,
    outcome: &'static str,
    status: u16,
    method: Option<String>,
    path: Option<String>,
    client: String,
    forwarded_for: Option<String>,
    user_agent: Option<String>,
    request_id: Option<String>,
    trace_id: Option<String>,
}

impl From<RecentRejection> for Rejection {
    fn from(refusal: RecentRejection) -> Self {
        let since_epoch = refusal.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            at: rfc3339_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)),
            route: refusal.route.to_string(),
            resource: refusal.resource.as_ref().map(ToString::to_string),
            token: refusal.token.map(|token| token.to_string()),
            mark: refusal.mark.map(|mark| mark.to_string()),
            gap: refusal.gap().map(|gap| gap.to_string()),
            outcome: refusal.outcome.as_str(),
            status: refusal.status,
            method: refusal.request.method,
            path: refusal.request.path,
            client: refusal.peer,
            forwarded_for: refusal.request.forwarded_for,
            user_agent: refusal.request.user_agent,
            request_id: refusal.request.request_id,
            trace_id: refusal.request.trace_id,
        }
    }
}

/// The body of `POST …/advance`.
#[derive(Debug, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvanceBody {
    pub token: TokenText,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub actor: String,
}

/// The body of `POST …/override`.
#[derive(Debug, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct OverrideBody {
    pub token: TokenText,
    pub reason: String,
    #[serde(default)]
    pub actor: String,
}

/// The body of `POST …/resolve`.
#[derive(Debug, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveBody {
    pub id: String,
    pub reason: String,
    #[serde(default)]
    pub actor: String,
}

/// A token as a JSON string of decimal digits; a JSON number is refused, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct TokenText(pub Token);

impl<'de> Deserialize<'de> for TokenText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TokenText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token as a JSON string, such as \"43\" (JSON numbers lose digits)")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TokenText, E> {
                TokenFormat::Decimal
                    .parse(text.as_bytes())
                    .map(TokenText)
                    .map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A time of the store as RFC 3339, UTC, in milliseconds. Times outside the years 1970 to 9999 are
/// clamped.
#[must_use]
pub fn rfc3339_ms(ms_since_epoch: i64) -> String {
    const LAST: u64 = 253_402_300_799_999;
    let ms = u64::try_from(ms_since_epoch).unwrap_or(0).min(LAST);
    let at: SystemTime = UNIX_EPOCH + Duration::from_millis(ms);
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        serde_json::from_str::<AdvanceBody>(body)
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn tokens_are_strings_only() {
        let body: AdvanceBody =
            serde_json::from_str(r#"{"token":"9223372036854775807"}"#).expect("taken");
        assert_eq!(body.token.0.get(), i64::MAX);
        for number in [
            "43",
            "43.0",
            "-1",
            "18446744073709551616",
            "null",
            "true",
            "[\"43\"]",
        ] {
            let error = error(&format!("{{\"token\":{number}}}"));
            assert!(
                error.contains("a token as a JSON string"),
                "{number}: {error}"
            );
        }
        for text in ["", "9223372036854775808", "-1", "0x1", "4 3", "٤"] {
            error(&format!("{{\"token\":\"{text}\"}}"));
        }
    }

    #[test]
    fn unknown_and_double_members_are_refused() {
        assert!(error(r#"{"token":"1","tokn":"2"}"#).contains("unknown field `tokn`"));
        assert!(error(r#"{"token":"1","token":"2"}"#).contains("duplicate field `token`"));
        assert!(error("{}").contains("missing field `token`"));
    }

    #[test]
    fn times() {
        assert_eq!(rfc3339_ms(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339_ms(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(rfc3339_ms(-5), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339_ms(i64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
