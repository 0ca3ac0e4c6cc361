//! The page at `/`: does it enforce, is the store there, what passes, what is refused and why, what
//! is stuck.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::chart::bars;
use super::history::{EndKind, Ends, kind};
use super::parts::{line, link, page, refusals, span, table};
use crate::admin::AdminState;
use crate::admin::readiness::ReadyReport;
use crate::config::Mode;
use crate::fencing::failure_detector::InstanceState;
use crate::fencing::overview::{Busy, BusyCounts, BusyResource};

/// The most rows of a table.
const ROWS: usize = 20;

/// `GET /`.
pub(super) async fn page_of(State(state): State<AdminState>) -> Response {
    let counts = state.fencing.busy_counts();
    let spans = state.history.spans(&state.metrics);
    let main = html! {
        (verdict(&state, &state.readiness.report(), counts))
        (facts(&state, counts))
        section.charts aria-label="The last hour" {
            (chart("Passed", "passed", &spans, |ends| ends.passed))
            (chart("Refused", "refused", &spans, |ends| ends.refused))
            (chart("Outcome unknown", "unknown", &spans, |ends| ends.unknown))
        }
        h2 { "How requests ended" }
        (outcomes(&state))
        h2 { "Waiting for older requests now" }
        (busy(&state.fencing.busy(Busy::Waiting), "Nothing waits."))
        h2 { "Outcomes that are unknown now" }
        (busy(&state.fencing.busy(Busy::Unknown), "No outcome is unknown."))
        h2 { "Latest refusals" }
        (refusals(state.rejections.latest(None, ROWS), true, "Nothing was refused since the start."))
        h2 { "Routes" }
        (routes(&state))
        h2 { "Instances of the namespace" }
        (instances(&state))
    };
    page(&state, "Overview", "", &main)
}

fn chart(title: &str, class: &str, spans: &[Ends], of: fn(&Ends) -> u64) -> Markup {
    let counts: Vec<u64> = spans.iter().map(of).collect();
    bars(title, class, &counts)
}

/// What the person who was woken wants to know first.
fn verdict(state: &AdminState, ready: &ReadyReport, counts: BusyCounts) -> Markup {
    let loaded = state.loaded.borrow();
    let routes = &loaded.settings().routes;
    let lax: Vec<_> = routes
        .iter()
        .filter(|route| route.mode != Mode::Enforce)
        .map(|route| format!("{} ({})", route.label, route.mode.as_str()))
        .collect();
    let enforced = routes.len() - lax.len();
    let (class, words) = match (enforced, lax.is_empty()) {
        (0, _) => (
            "bad",
            "No route enforces: every stale write passes.".to_owned(),
        ),
        (_, true) => ("good", "Enforcing on all routes.".to_owned()),
        (_, false) => (
            "warn",
            format!(
                "Enforcing on {enforced} of {} routes. Not on: {}.",
                routes.len(),
                lax.join(", ")
            ),
        ),
    };
    let (store_class, store) = if ready.store == "up" {
        ("good", "The store answers.".to_owned())
    } else {
        let why = ready.store_error.as_deref();
        let why = why.unwrap_or("it was not reached yet");
        ("bad", format!("The store is {}: {why}", ready.store))
    };
    html! {
        div class={ "verdict " (class) } { p { (line(&words)) } }
        div class={ "verdict " (store_class) } { p { (line(&store)) } }
        @if !ready.ready {
            div.verdict.bad {
                p { "Not ready: " (line(&ready.not_ready_because.join("; "))) }
            }
        }
        @if ready.draining {
            div.verdict.warn { p { "Draining: no new requests are taken." } }
        }
        @if counts.unknown > 0 {
            div.verdict.warn {
                p { "Unknown outcomes: " (counts.unknown) ". Newer tokens of their resources wait until they settle." }
            }
        }
        @if !ready.other_route_tables.is_empty() {
            div.verdict.warn {
                p { "Other routes are served by: " (line(&ready.other_route_tables.join(", "))) }
            }
        }
    }
}

fn facts(state: &AdminState, counts: BusyCounts) -> Markup {
    let uptime = state.readiness.started().elapsed().unwrap_or_default();
    let lease = state.fencing.lease().remaining();
    html! {
        dl.facts {
            div { dt { "At the upstream" } dd { (counts.in_flight) } }
            div { dt { "Waiting" } dd { (counts.waiting) } }
            div { dt { "Unknown" } dd { (counts.unknown) } }
            div {
                dt { "Lease left" }
                dd.text { @if let Some(left) = lease { (format!("{:.1} s", left.as_secs_f64())) } @else { "-" } }
            }
            div { dt { "Up for" } dd.text { (span(uptime)) } }
        }
    }
}

fn outcomes(state: &AdminState) -> Markup {
    let mut found = state.history.outcomes(&state.metrics);
    found.sort_by_key(|(outcome, [_, hour, total])| {
        (
            kind(*outcome) == EndKind::Passed,
            std::cmp::Reverse((*hour, *total)),
        )
    });
    let rows: Vec<Vec<Markup>> = found
        .into_iter()
        .map(|(outcome, [minutes, hour, total])| {
            let (class, word) = match kind(outcome) {
                EndKind::Passed => ("good", "passed"),
                EndKind::Refused => ("warn", "refused"),
                EndKind::Unknown => ("bad", "unknown"),
            };
            vec![
                html! { (outcome.as_str()) },
                html! { span class={ "word " (class) } { (word) } },
                html! { (minutes) },
                html! { (hour) },
                html! { (total) },
            ]
        })
        .collect();
    let headings = ["outcome", "", "5 minutes", "an hour", "since the start"];
    table(
        &headings,
        &[2, 3, 4],
        &rows,
        "No request has ended since the start.",
    )
}

fn busy(list: &[BusyResource], none: &str) -> Markup {
    let rows: Vec<Vec<Markup>> = list
        .iter()
        .take(ROWS)
        .map(|one| {
            let settles = one
                .unknown
                .iter()
                .filter_map(|unknown| unknown.settles_in)
                .max();
            vec![
                link(one.resource.as_str()),
                html! { (one.in_flight) },
                html! { (one.waiting) },
                html! { (one.unknown.len()) },
                html! { @if let Some(left) = settles { "in " (span(left)) } @else { "-" } },
            ]
        })
        .collect();
    let headings = [
        "resource",
        "at the upstream",
        "waiting",
        "unknown",
        "settles",
    ];
    html! {
        (table(&headings, &[1, 2, 3], &rows, none))
        @if list.len() > ROWS {
            p.soft { "and " (list.len() - ROWS) " more: " code { "fencepost status" } " lists them." }
        }
    }
}

fn routes(state: &AdminState) -> Markup {
    let loaded = state.loaded.borrow();
    let routes = loaded.settings().routes.iter();
    let rows: Vec<Vec<Markup>> = routes
        .map(|route| {
            let class = if route.mode == Mode::Enforce {
                "good"
            } else {
                "warn"
            };
            vec![
                html! { (line(&route.label)) },
                html! { span class={ "word " (class) } { (route.mode.as_str()) } },
                html! { (line(route.key.as_ref().map_or("-", |key| key.as_str()))) },
            ]
        })
        .collect();
    table(
        &["route", "mode", "key"],
        &[],
        &rows,
        "There are no routes.",
    )
}

fn instances(state: &AdminState) -> Markup {
    let rows: Vec<Vec<Markup>> = state
        .fencing
        .instances()
        .into_iter()
        .take(ROWS)
        .map(|one| {
            let (class, word) = match one.state {
                InstanceState::This => ("good", "this one"),
                InstanceState::Alive => ("good", "alive"),
                InstanceState::Dead => ("bad", "dead"),
            };
            let settles = one.settles_in.map(|left| format!("in {}", span(left)));
            let silent = one.silent_for.map(span);
            vec![
                html! { (line(&one.id)) },
                html! { span class={ "word " (class) } { (word) } },
                html! { (silent.as_deref().unwrap_or("-")) },
                html! { (settles.as_deref().unwrap_or("-")) },
            ]
        })
        .collect();
    let headings = ["instance", "state", "silent for", "its requests settle"];
    table(&headings, &[], &rows, "None is known.")
}
