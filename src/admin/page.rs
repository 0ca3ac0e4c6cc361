//! The page for operators at `/` and `/resource?key=…`: static files whose script reads `/v1`, with
//! the rights that its reader has there. It loads nothing from elsewhere, and writes nothing.

use axum::Router;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::routing::get;

/// Nothing from elsewhere, nothing inline, and in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The page's files, which hold no data and are open to everyone.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = ("text/html; charset=utf-8", include_str!("page.html"));
    let files = [
        ("/", page),
        ("/resource", page),
        ("/page.css", ("text/css", include_str!("page.css"))),
        ("/page.js", ("text/javascript", include_str!("page.js"))),
    ];
    files
        .into_iter()
        .fold(Router::new(), |router, (path, (kind, text))| {
            let headers = [
                (CONTENT_TYPE, kind),
                (CONTENT_SECURITY_POLICY, POLICY),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (X_FRAME_OPTIONS, "DENY"),
                (REFERRER_POLICY, "no-referrer"),
            ];
            router.route(path, get(async move || (headers, text)))
        })
}
