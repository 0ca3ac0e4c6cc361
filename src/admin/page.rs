//! The page for people at `/` of the admin port, and one page for each resource.
//!
//! Server-rendered; works without JavaScript and loads nothing from elsewhere. A small script
//! reloads and replaces the main part. Read-only. maud escapes all texts.

use std::cmp::Reverse;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::api::{StatusView, rejections};
use super::tables::{self, Cell, Look, Table, span};
use super::{AdminState, marks, status};
use crate::build_info::VERSION;
use crate::config::Mode;
use crate::fencing::overview::Busy;
use crate::json_values::{rfc3339, wall_clock};
use crate::metrics::Outcome;
use crate::printable::line;
use crate::routing::ResourceKey;

/// The most rows of a table.
const ROWS: u16 = 50;
/// Nothing from elsewhere, nothing inline, and in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The page's own paths. `auth` knows them, to ask browsers for a password.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/", get(overview))
        .route("/resource", get(resource))
        .route(
            "/page.css",
            get(async || guarded("text/css", include_str!("page.css"))),
        )
        .route(
            "/page.js",
            get(async || guarded("text/javascript", include_str!("page.js"))),
        )
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

/// The latest refusals that are shown.
const REFUSALS: usize = 20;

/// `GET /`.
async fn overview(State(state): State<AdminState>) -> Response {
    let status = status::view(&state);
    let counts = &status.counts;
    let lease = state.fencing.lease().remaining();
    let numbers = [
        ("in flight", counts.in_flight.to_string()),
        ("waiting", counts.waiting.to_string()),
        ("unknown", counts.unknown.to_string()),
        ("lease left", lease.map_or_else(|| "-".to_owned(), span)),
        ("up for", span(Duration::from_secs(status.uptime_seconds))),
    ];
    let refused = rejections(state.rejections.latest(None, REFUSALS));
    let none = "Nothing was refused since the start.";
    let lists = [
        outcomes(&state),
        tables::waiting(&state.fencing.busy(Busy::Waiting)),
        tables::all_unknown(&state.fencing.busy(Busy::Unknown)),
        tables::rejections("Latest refusals", none, &refused, true),
        tables::routes(&status.routes),
        tables::instances(&state.fencing.instances()),
    ];
    let main = html! {
        @for (class, words) in verdict(&status) {
            div class={ "verdict " (class) } { p { (line(&words)) } }
        }
        (facts(&numbers))
        @for list in &lists { (section(list)) }
    };
    page(&state, &status.namespace, "Overview", "", &main)
}

/// The answers to the first questions of the person on call, each with its class.
fn verdict(status: &StatusView) -> Vec<(&'static str, String)> {
    let (ready, routes) = (&status.ready, &status.routes);
    let lax = routes.iter().filter(|route| route.mode != Mode::Enforce);
    let lax: Vec<_> = lax
        .map(|route| format!("{} ({})", route.route, route.mode.as_str()))
        .collect();
    let (all, enforced) = (routes.len(), routes.len() - lax.len());
    let lax = lax.join(", ");
    let enforcing = match enforced {
        0 => (
            "bad",
            "No route enforces: every stale write passes.".to_owned(),
        ),
        _ if enforced == all => ("good", "Enforcing on all routes.".to_owned()),
        _ => (
            "warn",
            format!("Enforcing on {enforced} of {all} routes. Not on: {lax}."),
        ),
    };
    let store = if ready.store == "up" {
        ("good", "The store answers.".to_owned())
    } else {
        let why = ready.store_error.as_deref();
        let why = why.unwrap_or("it was not reached yet");
        ("bad", format!("The store is {}: {why}", ready.store))
    };
    let mut verdict = vec![enforcing, store];
    if !ready.ready {
        let why = ready.not_ready_because.join("; ");
        verdict.push(("bad", format!("Not ready: {why}")));
    }
    if ready.draining {
        verdict.push(("warn", "Draining: no new requests are taken.".to_owned()));
    }
    if status.counts.unknown > 0 {
        let words = "Newer tokens of their resources wait until they settle.";
        let unknown = format!("Unknown outcomes: {}. {words}", status.counts.unknown);
        verdict.push(("warn", unknown));
    }
    if !ready.other_route_tables.is_empty() {
        let others = ready.other_route_tables.join(", ");
        verdict.push(("warn", format!("Other routes are served by: {others}")));
    }
    verdict
}

/// How requests ended since the start: those that did not pass first, and the most of them.
fn outcomes(state: &AdminState) -> Table {
    let counts = state.metrics.requests_by_outcome();
    let mut outcomes: Vec<_> = Outcome::ALL.iter().zip(counts).collect();
    outcomes.retain(|(_, count)| *count > 0);
    outcomes.sort_by_key(|(outcome, count)| (end(**outcome).0 == Look::Good, Reverse(*count)));
    let none = "No request has ended since the start.";
    Table::new(
        "How requests ended",
        none,
        outcomes,
        |row, (outcome, count)| {
            let (look, word) = end(*outcome);
            row.add("outcome", outcome.as_str())
                .add("", Cell::new(look, word))
                .add("since the start", count)
        },
    )
}

/// How a request with this outcome has ended, in a word.
fn end(outcome: Outcome) -> (Look, &'static str) {
    match outcome {
        Outcome::Advanced | Outcome::Current | Outcome::Claimed | Outcome::Unfenced => {
            (Look::Good, "passed")
        }
        Outcome::OutcomeUnknown => (Look::Bad, "unknown"),
        // Observe mode passes the requests that it would refuse.
        other if other.as_str().starts_with("observed-") => (Look::Good, "passed"),
        _ => (Look::Warn, "refused"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceQuery {
    key: String,
}

/// `GET /resource?key=…`.
async fn resource(State(state): State<AdminState>, uri: Uri) -> Response {
    let query = marks::query::<ResourceQuery>(&uri);
    let key = query.map_or_else(|_| String::new(), |query| query.key);
    let (status, main) = match ResourceKey::new(&key) {
        Ok(key) => mark(&state, &key).await,
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

async fn mark(state: &AdminState, key: &ResourceKey) -> (StatusCode, Markup) {
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

/// A whole page around this main part. `sought`: what stands in the field of the search.
fn page(state: &AdminState, namespace: &str, title: &str, sought: &str, main: &Markup) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · fencepost" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
                noscript { meta http-equiv="refresh" content="10"; }
            }
            body {
                header {
                    h1 { a href="/" { "fencepost" } }
                    span { "namespace " strong { (line(namespace)) } }
                    span.soft { "instance " (state.fencing.instance().name()) ", version " (VERSION) }
                    form action="/resource" method="get" role="search" {
                        input type="search" name="key" value=(sought) required
                            placeholder="resource key" aria-label="Resource key";
                        button { "Show" }
                    }
                }
                main {
                    (main)
                    p.soft { "State of this instance at " (rfc3339(wall_clock())) "." }
                }
                footer { span id="refreshed" role="status" {} }
            }
        }
    };
    guarded("text/html; charset=utf-8", page.into_string())
}

/// The values at the top of a page.
fn facts(facts: &[(&str, String)]) -> Markup {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    html! {
        dl.facts {
            @for (name, value) in facts {
                @let class = (!number(value)).then_some("text");
                div { dt { (name) } dd class=[class] { (line(value)) } }
            }
        }
    }
}

/// A table under its title.
fn section(table: &Table) -> Markup {
    let class = |cell: &Cell| (cell.look == Look::Number).then_some("num");
    let more = table.rows.len().saturating_sub(ROWS.into());
    html! {
        h2 { (table.title) }
        @if let Some(first) = table.rows.first() {
            div.scroll tabindex="0" {
                table {
                    thead {
                        tr {
                            @for (heading, cell) in &first.0 {
                                th scope="col" class=[class(cell)] { (heading) }
                            }
                        }
                    }
                    tbody {
                        @for row in table.rows.iter().take(ROWS.into()) {
                            tr {
                                @for (_, cell) in &row.0 { td class=[class(cell)] { (shown(cell)) } }
                            }
                        }
                    }
                }
            }
            @if more > 0 {
                p.soft { "and " (more) " more: " code { "fencepost status" } " lists them." }
            }
        } @else {
            p.none { (table.none) }
        }
    }
}

fn shown(cell: &Cell) -> Markup {
    let text = cell.text();
    let word = |class| html! { span class={ "word " (class) } { (text) } };
    match cell.look {
        Look::Plain | Look::Number => html! { (text) },
        Look::Good => word("good"),
        Look::Warn => word("warn"),
        Look::Bad => word("bad"),
        Look::Long => html! { span.long title=(text) { (text) } },
        Look::Key => {
            let key = utf8_percent_encode(cell.raw(), NON_ALPHANUMERIC);
            html! { a.long href={ "/resource?key=" (key) } title=(text) { (text) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_refused_has_passed() {
        for outcome in Outcome::ALL {
            let observed = outcome.as_str().starts_with("observed-");
            assert!(!observed || end(*outcome).1 == "passed", "{outcome}");
        }
        assert_eq!(end(Outcome::StaleToken).1, "refused");
        assert_eq!(end(Outcome::OutcomeUnknown).1, "unknown");
    }
}
