//! The page at `/`: does it enforce, is the store there, what passes, what is refused and why, what
//! is stuck.

use std::cmp::Reverse;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use maud::html;

use super::parts::{facts, page, section};
use crate::admin::api::{StatusView, rejections};
use crate::admin::tables::{self, Cell, Look, Table, span};
use crate::admin::{AdminState, status};
use crate::config::Mode;
use crate::fencing::overview::Busy;
use crate::metrics::Outcome;
use crate::printable::line;

/// The latest refusals that are shown.
const REFUSALS: usize = 20;

/// `GET /`.
pub(super) async fn page_of(State(state): State<AdminState>) -> Response {
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
