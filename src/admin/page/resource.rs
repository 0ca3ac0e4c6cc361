//! The page of one resource: its mark, what happens to it now, and its history since the start.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::parts::{facts, page, section};
use crate::admin::api::rejections;
use crate::admin::{AdminState, marks, status, tables};
use crate::printable::line;
use crate::routing::ResourceKey;

/// The most rows of a table.
const ROWS: u16 = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceQuery {
    key: String,
}

/// `GET /resource?key=…`.
pub(super) async fn page_of(State(state): State<AdminState>, uri: Uri) -> Response {
    let query = marks::query::<ResourceQuery>(&uri);
    let key = query.map_or_else(|_| String::new(), |query| query.key);
    let (status, main) = match ResourceKey::new(&key) {
        Ok(key) => shown(&state, &key).await,
        Err(error) => {
            let main = html! {
                h2 { "No such resource" }
                p { "Not a resource key: " (line(&error)) }
            };
            (StatusCode::BAD_REQUEST, main)
        }
    };
    let namespace = status::view(&state).namespace;
    let body = page(&state, &namespace, &line(&key), &line(&key), &main);
    (status, body).into_response()
}

async fn shown(state: &AdminState, key: &ResourceKey) -> (StatusCode, Markup) {
    let view = state.fencing.view(key).await;
    let audit = state.fencing.audit(key, ROWS.into()).await;
    let (status, numbers) = match &view {
        Ok(Some(view)) => (StatusCode::OK, facts(&tables::mark(view)[1..])),
        Ok(None) => {
            let none = "No token has been accepted for this key. Keys are compared byte by byte.";
            (StatusCode::NOT_FOUND, html! { p.none { (none) } })
        }
        Err(error) => {
            let error = line(&error.to_string()).into_owned();
            let failed = html! {
                div.verdict.bad { p { "The store gave no answer: " (error) } }
            };
            (StatusCode::SERVICE_UNAVAILABLE, failed)
        }
    };
    let refused = rejections(state.rejections.latest(Some(key), ROWS.into()));
    let unknown = rejections(state.rejections.latest_unknown(Some(key), ROWS.into()));
    let mark = view.ok().flatten();
    let lists = tables::of_resource(
        mark.as_ref(),
        &refused,
        &unknown,
        &audit.unwrap_or_default(),
    );
    let main = html! {
        h2 { "Resource " code { (line(key.as_str())) } }
        (numbers)
        @for list in &lists { (section(list)) }
    };
    (status, main)
}
