//! The page for people at `/` of the admin port, and one page for each resource.
//!
//! Server-rendered; works without JavaScript and loads nothing from elsewhere. A small script
//! reloads and replaces the main part. Read-only.

mod overview;
mod parts;
mod resource;

use axum::Router;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::Markup;

use super::AdminState;

/// Nothing from elsewhere, nothing inline, and in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The page's own paths. `auth` knows them, to ask browsers for a password.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/", get(overview::page_of))
        .route("/resource", get(resource::page_of))
        .route(
            "/page.css",
            get(async || guarded("text/css", include_str!("page.css"))),
        )
        .route(
            "/page.js",
            get(async || guarded("text/javascript", include_str!("page.js"))),
        )
}

fn html(markup: Markup) -> Response {
    guarded("text/html; charset=utf-8", markup.into_string())
}

fn guarded(kind: &'static str, body: impl IntoResponse) -> Response {
    let headers: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, body).into_response()
}
