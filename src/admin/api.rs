//! The admin API's JSON, as the admin port writes it and as `marks` and `status` read it: tokens and
//! marks are strings, since JavaScript rounds numbers above 2^53; times are RFC 3339 in UTC; unknown
//! values are null, not absent.

use std::collections::BTreeMap;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::active_requests::ActiveRequest;
use crate::config::Mode;
use crate::fencing::failure_detector::InstanceView;
use crate::fencing::operators::{BusyCounts, BusyResource, MarkView};
use crate::printable;
use crate::rejections::Rejection;
use crate::routing::{ResourceKey, Token, TokenFormat};
use crate::store::{AuditRow, MarkRow, UnknownOperation};

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

/// The body of an error (RFC 9457).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    #[serde(flatten)]
    pub members: serde_json::Map<String, serde_json::Value>,
}

/// `GET /livez`.
#[derive(Serialize, Deserialize)]
pub struct Live {
    pub live: bool,
    pub version: String,
}

/// `GET /readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyReport {
    /// `ready`, `draining`, or `alive`: it runs, and does not reach its store. It may count as ready
    /// nevertheless, see `admin.ready_follows_store`.
    pub state: String,
    /// The name of this instance, as in its log lines and in `Via`.
    pub instance: String,
    pub ready: bool,
    /// `up`, `down`, or `unknown` before it was first reached.
    pub store: String,
    /// Live instances of the namespace with another route table. They make no instance unready,
    /// because that would stop a roll-out.
    pub other_route_tables: Vec<String>,
    /// The reason why it is down, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    /// Empty when ready.
    pub not_ready_because: Vec<String>,
}

// A query or body that a command sends as it was given on the command line is also its arguments:
// its documentation is in `--help`.

/// A page of a list, ordered by key.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Only keys with this prefix
    #[arg(long, default_value = "")]
    #[serde(default)]
    pub prefix: String,
    /// Only keys after this one: the next page
    #[arg(long)]
    pub after: Option<String>,
    /// Maximum number of marks
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub limit: Option<u16>,
}

/// `GET /v1/marks`.
#[derive(Serialize, Deserialize)]
pub struct MarkList {
    pub marks: Vec<MarkRow>,
    /// The value of `after` for the next page. null: this was the last page.
    pub next: Option<String>,
}

/// `GET /v1/marks/{resource}`.
#[derive(Serialize, Deserialize)]
pub struct MarkReport {
    #[serde(flatten)]
    pub mark: MarkView,
    /// The instance that answers: what is in flight, waits and was refused is its own.
    pub instance: String,
    pub rejections: Vec<Rejection>,
    pub latest_unknown: Vec<Rejection>,
    pub audit: Vec<AuditRow>,
}

/// The reason and the actor of a write, for the audit table.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Why {
    /// Reason or evidence, for the audit table
    #[arg(long)]
    #[serde(default)]
    pub reason: String,
    /// Your name, for the audit table
    #[arg(long, env = "USER", default_value = "")]
    #[serde(default)]
    pub actor: String,
}

/// The body of `POST …/advance` and `…/override`.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMark {
    /// The new mark
    #[arg(value_parser = token)]
    pub token: Token,
    #[command(flatten)]
    #[serde(flatten)]
    pub why: Why,
}

fn token(text: &str) -> Result<Token, String> {
    TokenFormat::Decimal.parse(text.as_bytes())
}

/// The body of `POST …/resolve`.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolution {
    /// Id of the unknown outcome, from `get`
    pub id: String,
    #[command(flatten)]
    #[serde(flatten)]
    pub why: Why,
}

/// The answer to `POST …/advance`, `…/override` or `…/resolve`.
#[derive(Serialize, Deserialize)]
pub struct Acted {
    pub resource: ResourceKey,
    #[serde(flatten)]
    pub outcome: ActOutcome,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum ActOutcome {
    /// The mark was raised.
    Advanced { mark: Token },
    /// The mark was this token already.
    Current { mark: Token },
    Overridden {
        before: Token,
        mark: Token,
        era: i64,
    },
    /// The unknown outcome no longer counts as in flight.
    Resolved { id: String },
}

/// The query of `GET /v1/operations`.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationQuery {
    /// Only keys with this prefix
    #[arg(long, default_value = "")]
    #[serde(default)]
    pub prefix: String,
    /// Maximum number of operations
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub limit: Option<u16>,
}

/// `GET /v1/operations`.
#[derive(Serialize, Deserialize)]
pub struct OperationList {
    pub operations: Vec<UnknownOperation>,
    /// There are more than `limit`.
    pub more: bool,
}

/// The body of `POST /v1/operations/resolve`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationVerdict {
    pub resource: ResourceKey,
    pub operation: String,
    /// It took effect.
    pub done: bool,
    /// The status that its repetitions get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(flatten)]
    pub why: Why,
}

/// The answer to `POST /v1/operations/resolve`.
#[derive(Serialize, Deserialize)]
pub struct ResolvedOperation {
    pub resource: ResourceKey,
    pub operation: String,
    pub done: bool,
    /// null: it may be sent again.
    pub status: Option<u16>,
}

/// The body of `POST /v1/prune`.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruneBody {
    /// Only marks that have not changed for this long: 720h; at least 1h, and longer than any
    /// holder of a token can be away
    #[arg(long, value_name = "TIME")]
    pub unchanged_for: String,
    /// Only keys with this prefix
    #[arg(long, default_value = "")]
    #[serde(default)]
    pub prefix: String,
    /// Where the next step begins.
    #[arg(skip)]
    pub after: Option<String>,
    /// Only count them
    #[arg(long)]
    #[serde(default)]
    pub dry_run: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub why: Why,
}

/// The answer to `POST /v1/prune`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub enum PruneAnswer {
    Announced {
        announced: bool,
        again_in_seconds: u64,
    },
    Step {
        deleted: u64,
        open: u64,
        dry_run: bool,
        next: Option<String>,
    },
}

/// `GET /v1/requests`, the oldest first.
#[derive(Serialize, Deserialize)]
pub struct RequestList {
    pub requests: Vec<ActiveRequest>,
    /// The number of all requests in progress.
    pub total: usize,
}

/// `GET /v1/rejections`, the newest first.
#[derive(Serialize, Deserialize)]
pub struct RejectionList {
    pub rejections: Vec<Rejection>,
}

/// `GET /v1/status`.
#[derive(Serialize, Deserialize)]
pub struct StatusView {
    pub version: String,
    /// `unknown` in a debug build.
    pub commit: String,
    pub started: String,
    pub uptime_seconds: u64,
    #[serde(flatten)]
    pub ready: ReadyReport,
    pub namespace: String,
    /// `sqlite` or `postgres`.
    pub store_kind: String,
    /// null: the lease does not end, or has ended for good.
    pub lease_remaining_seconds: Option<f64>,
    #[serde(flatten)]
    pub counts: BusyCounts,
    /// Operations of the namespace whose outcome is unknown and has settled, as of the last minute.
    pub operations_unknown: u64,
    /// Since when the oldest of them is; null: there is none.
    pub operations_unknown_since: Option<String>,
    /// The requests that have ended since the start, by their outcome.
    pub requests: BTreeMap<String, u64>,
    /// Those of the last minute.
    pub requests_last_minute: BTreeMap<String, u64>,
    /// Signs of trouble, in sentences.
    pub hints: Vec<String>,
    pub routes: Vec<RouteView>,
    pub log_level: String,
    pub config_loaded: String,
    /// The first error of the latest reload; null: it has not failed.
    pub reload_error: Option<String>,
    pub reload_failed: Option<String>,
    /// As in `fencepost_config_info`.
    pub config_digest: String,
}

#[derive(Serialize, Deserialize)]
pub struct RouteView {
    pub route: String,
    pub path: String,
    pub mode: Mode,
    pub resource: Option<String>,
}

/// `GET /v1/instances`.
#[derive(Serialize, Deserialize)]
pub struct InstanceList {
    pub instances: Vec<InstanceView>,
}

/// `GET /v1/waiting`.
#[derive(Serialize, Deserialize)]
pub struct WaitingList {
    pub waiting: Vec<BusyResource>,
    pub next: Option<String>,
}

/// `GET /v1/unknown`.
#[derive(Serialize, Deserialize)]
pub struct UnknownOutcomes {
    pub open: Vec<BusyResource>,
    pub next: Option<String>,
    pub unknown: Vec<Rejection>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        serde_json::from_str::<NewMark>(body)
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn tokens_are_strings_only() {
        let body: NewMark =
            serde_json::from_str(r#"{"token":"9223372036854775807"}"#).expect("taken");
        assert_eq!(body.token, Token::MAX);
        for number in [
            "43",
            "43.0",
            "-1",
            "18446744073709551616",
            "true",
            "[\"43\"]",
        ] {
            let error = error(&format!("{{\"token\":{number}}}"));
            assert!(error.contains("expected a string"), "{number}: {error}");
        }
        for text in ["", "9223372036854775808", "-1", "0x1", "4 3", "٤"] {
            error(&format!("{{\"token\":\"{text}\"}}"));
        }
    }

    #[test]
    fn unknown_and_double_members_are_refused() {
        assert!(error(r#"{"token":"1","tokn":"2"}"#).contains("unknown field `tokn`"));
        assert!(error(r#"{"token":"1","token":"2"}"#).contains("duplicate field `token`"));
    }
}
