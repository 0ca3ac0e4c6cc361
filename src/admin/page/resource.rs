//! The page of one resource: its mark, what happens to it now, and its history since the start.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::parts::{line, open_outcomes, page, refusals, table};
use crate::admin::AdminState;
use crate::admin::json::rfc3339_ms;
use crate::fencing::operators::MarkView;
use crate::routing::{ResourceKey, Token};
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
            let told = html! {
                p.none {
                    "No token has been accepted for this key. Keys are compared byte by byte."
                }
            };
            (StatusCode::NOT_FOUND, told)
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
    let epochs: Vec<Vec<Markup>> = view
        .epochs
        .iter()
        .map(|one| {
            vec![
                html! { (one.token) },
                html! { (line(&one.instance.to_string())) },
            ]
        })
        .collect();
    html! {
        dl.facts {
            div { dt { "Mark" } dd { (row.token) @if row.spent { small { " spent" } } } }
            div { dt { "Since" } dd.text { (rfc3339_ms(row.since_ms)) } }
            div { dt { "At the upstream" } dd { (view.in_flight) } }
            div { dt { "Waiting" } dd { (view.waiting) } }
            div { dt { "Unknown" } dd { (view.unknown.len()) } }
        }
        h2 { "Outcomes that are unknown now" }
        (table(&["token", "id", "settles"], &[], &open_outcomes(&view.unknown), "None."))
        h2 { "Open epochs, of all instances" }
        (table(&["token", "instance"], &[], &epochs, "None."))
    }
}

fn acts(audit: &[AuditRow]) -> Markup {
    let rows: Vec<Vec<Markup>> = audit
        .iter()
        .map(|row| {
            let token = |token: Option<Token>| {
                token.map_or_else(|| "-".to_owned(), |token| token.to_string())
            };
            vec![
                html! { time { (rfc3339_ms(row.at_ms)) } },
                html! { (line(&row.action)) },
                html! { (token(row.before)) },
                html! { (token(row.after)) },
                html! { (line(&row.actor)) },
                html! { (line(&row.reason)) },
            ]
        })
        .collect();
    let headings = ["time", "act", "before", "after", "who", "reason"];
    table(&headings, &[], &rows, "Nothing.")
}
