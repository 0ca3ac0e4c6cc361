//! The page of one resource: its mark, what happens to it now, and its history since the start.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::parts::{cells, in_time, line, optional, page, refusals, table};
use crate::admin::AdminState;
use crate::fencing::operators::MarkView;
use crate::json_values::rfc3339_ms;
use crate::routing::ResourceKey;
use crate::store::AuditRow;

/// The most rows of a table.
const ROWS: u32 = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourceQuery {
    key: String,
}

/// `GET /resource?key=…`.
pub(super) async fn page_of(
    State(state): State<AdminState>,
    query: Result<Query<ResourceQuery>, QueryRejection>,
) -> Response {
    let sought = query.map_or_else(|_| String::new(), |Query(query)| query.key);
    let (status, main) = match ResourceKey::new(&sought) {
        Err(error) => {
            let main = html! {
                h2 { "No such resource" }
                p { "Not a resource key: " (line(&error.to_string())) }
            };
            (StatusCode::BAD_REQUEST, main)
        }
        Ok(key) => shown(&state, &key).await,
    };
    let body = page(&state, &line(&sought), &line(&sought), &main);
    (status, body).into_response()
}

async fn shown(state: &AdminState, key: &ResourceKey) -> (StatusCode, Markup) {
    let found = state.fencing.view(key).await;
    let audit = state.fencing.audit(key, ROWS).await.unwrap_or_default();
    let (status, mark) = match &found {
        Ok(Some(view)) => (StatusCode::OK, mark(view)),
        Ok(None) => {
            let none = "No token has been accepted for this key. Keys are compared byte by byte.";
            (StatusCode::NOT_FOUND, html! { p.none { (none) } })
        }
        Err(error) => {
            let told = html! {
                div.verdict.bad { p { "The store gave no answer: " (line(&error.to_string())) } }
            };
            (StatusCode::SERVICE_UNAVAILABLE, told)
        }
    };
    let latest = usize::try_from(ROWS).unwrap_or(usize::MAX);
    let refused = state.rejections.latest(Some(key), latest);
    let unknown = state.rejections.latest_unknown(Some(key), latest);
    let main = html! {
        h2 { "Resource " code { (line(key.as_str())) } }
        (mark)
        h2 { "Refusals since the start, the latest first" }
        (refusals(refused, false, "None is remembered."))
        h2 { "Unknown outcomes since the start, the latest first" }
        (refusals(unknown, false, "None is remembered."))
        h2 { "What operators did" }
        (acts(&audit))
    };
    (status, main)
}

fn mark(view: &MarkView) -> Markup {
    let row = &view.row;
    let unknown = view.unknown.iter().map(|one| {
        let settles = in_time(one.settles_in);
        let settles = settles.unwrap_or_else(|| "its instance lives".to_owned());
        cells![one.token, line(&one.id), settles]
    });
    let epochs = view
        .epochs
        .iter()
        .map(|one| cells![one.token, line(&one.instance)]);
    html! {
        dl.facts {
            div { dt { "Mark" } dd { (row.token) @if row.spent { small { " spent" } } } }
            div { dt { "Since" } dd.text { (rfc3339_ms(row.since_ms)) } }
            div { dt { "At the upstream" } dd { (view.in_flight) } }
            div { dt { "Waiting" } dd { (view.waiting) } }
            div { dt { "Unknown" } dd { (view.unknown.len()) } }
        }
        h2 { "Outcomes that are unknown now" }
        (table(&["token", "id", "settles"], &[], unknown, "None."))
        h2 { "Open epochs, of all instances" }
        (table(&["token", "instance"], &[], epochs, "None."))
    }
}

fn acts(audit: &[AuditRow]) -> Markup {
    let rows = audit.iter().map(|row| {
        cells![
            html! { time { (rfc3339_ms(row.at_ms)) } },
            line(&row.action),
            optional(row.before),
            optional(row.after),
            line(&row.actor),
            line(&row.reason),
        ]
    });
    let headings = ["time", "act", "before", "after", "who", "reason"];
    table(&headings, &[], rows, "Nothing.")
}
