//! The page at `/`: does it enforce, is the store there, what passes, what is refused and why, what
//! is stuck.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::chart::bars;
use super::history::{EndKind, Ends, kind};
use super::parts::{cells, in_time, line, link, optional, page, refusals, span, table, word};
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
            (chart("Passed", "passed", &spans, EndKind::Passed))
            (chart("Refused", "refused", &spans, EndKind::Refused))
            (chart("Outcome unknown", "unknown", &spans, EndKind::Unknown))
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

fn chart(title: &str, class: &str, spans: &[Ends], kind: EndKind) -> Markup {
    let counts: Vec<u64> = spans.iter().map(|ends| ends[kind as usize]).collect();
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
    let mut said = vec![match (enforced, lax.is_empty()) {
        (0, _) => (
            "bad",
            "No route enforces: every stale write passes.".to_owned(),
        ),
        (_, true) => ("good", "Enforcing on all routes.".to_owned()),
        (_, false) => {
            let (all, lax) = (routes.len(), lax.join(", "));
            (
                "warn",
                format!("Enforcing on {enforced} of {all} routes. Not on: {lax}."),
            )
        }
    }];
    said.push(if ready.store == "up" {
        ("good", "The store answers.".to_owned())
    } else {
        let why = ready.store_error.as_deref();
        let why = why.unwrap_or("it was not reached yet");
        ("bad", format!("The store is {}: {why}", ready.store))
    });
    if !ready.ready {
        let why = ready.not_ready_because.join("; ");
        said.push(("bad", format!("Not ready: {why}")));
    }
    if ready.draining {
        said.push(("warn", "Draining: no new requests are taken.".to_owned()));
    }
    if counts.unknown > 0 {
        let words = "Newer tokens of their resources wait until they settle.";
        said.push((
            "warn",
            format!("Unknown outcomes: {}. {words}", counts.unknown),
        ));
    }
    if !ready.other_route_tables.is_empty() {
        let others = ready.other_route_tables.join(", ");
        said.push(("warn", format!("Other routes are served by: {others}")));
    }
    html! {
        @for (class, words) in &said {
            div class={ "verdict " (class) } { p { (line(words)) } }
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
    let rows = found.into_iter().map(|(outcome, [minutes, hour, total])| {
        let end = match kind(outcome) {
            EndKind::Passed => word("good", "passed"),
            EndKind::Refused => word("warn", "refused"),
            EndKind::Unknown => word("bad", "unknown"),
        };
        cells![outcome.as_str(), end, minutes, hour, total]
    });
    let headings = ["outcome", "", "5 minutes", "an hour", "since the start"];
    let none = "No request has ended since the start.";
    table(&headings, &[2, 3, 4], rows, none)
}

fn busy(list: &[BusyResource], none: &str) -> Markup {
    let rows = list.iter().take(ROWS).map(|one| {
        let settles = one.unknown.iter().filter_map(|unknown| unknown.settles_in);
        cells![
            link(one.resource.as_str()),
            one.in_flight,
            one.waiting,
            one.unknown.len(),
            optional(in_time(settles.max())),
        ]
    });
    let headings = [
        "resource",
        "at the upstream",
        "waiting",
        "unknown",
        "settles",
    ];
    html! {
        (table(&headings, &[1, 2, 3], rows, none))
        @if list.len() > ROWS {
            p.soft { "and " (list.len() - ROWS) " more: " code { "fencepost status" } " lists them." }
        }
    }
}

fn routes(state: &AdminState) -> Markup {
    let loaded = state.loaded.borrow();
    let rows = loaded.settings().routes.iter().map(|route| {
        let class = match route.mode {
            Mode::Enforce => "good",
            Mode::Observe | Mode::Bypass => "warn",
        };
        let key = route.key.as_ref().map(crate::routing::KeyTemplate::as_str);
        let mode = word(class, route.mode.as_str());
        cells![line(&route.label), mode, optional(key)]
    });
    let none = "There are no routes.";
    table(&["route", "mode", "key"], &[], rows, none)
}

fn instances(state: &AdminState) -> Markup {
    let known = state.fencing.instances().into_iter().take(ROWS);
    let rows = known.map(|one| {
        let word = match one.state {
            InstanceState::This => word("good", "this one"),
            InstanceState::Alive => word("good", "alive"),
            InstanceState::Dead => word("bad", "dead"),
        };
        let silent = optional(one.silent_for.map(span));
        cells![
            line(&one.id),
            word,
            silent,
            optional(in_time(one.settles_in))
        ]
    });
    let headings = ["instance", "state", "silent for", "its requests settle"];
    table(&headings, &[], rows, "None is known.")
}
