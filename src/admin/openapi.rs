//! `/v1/openapi.json`: the admin API in the words of `OpenAPI` 3.1.
//!
//! It is kept by hand beside the handlers. The tests send what it allows, and more, and compare each
//! answer with it.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /v1/openapi.json`.
pub async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}
