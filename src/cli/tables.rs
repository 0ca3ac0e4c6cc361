//! The tables that `fencepost marks` and `status` print, over the admin API's typed answers.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{Display, Write as _};
use std::time::Duration;

use crate::admin::api::{MarkList, MarkReport, Rejection, RouteView};
use crate::fencing::failure_detector::{InstanceState, InstanceView};
use crate::fencing::operators::UnknownView;
use crate::fencing::overview::BusyResource;
use crate::json_values::rfc3339_ms;
use crate::printable::line;

/// The most resources that [`refused_most`] lists.
const MOST: usize = 10;

/// Lines of a label and a value.
pub fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(label, _)| label.len()).max();
    let width = width.unwrap_or_default();
    let mut out = String::new();
    for (label, value) in facts {
        let _ = writeln!(out, "{label:<width$}  {}", line(value));
    }
    out
}

/// A table under its title; nothing if it has no rows.
fn section<const N: usize>(
    title: &str,
    headings: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut lines = vec![headings.map(str::to_uppercase)];
    let rows = rows.into_iter();
    lines.extend(rows.map(|row| row.map(|cell| line(&cell).into_owned())));
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = title.to_owned();
    for line in &lines {
        let cells = line.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}  "));
        let _ = writeln!(out, "{}", cells.collect::<String>().trim_end());
    }
    if lines.len() > 1 { out } else { String::new() }
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// `30.0 s`; above two minutes as `3m 20s`.
fn span(span: Duration) -> String {
    if span < Duration::from_mins(2) {
        format!("{:.1} s", span.as_secs_f64())
    } else {
        humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
    }
}

pub fn marks(list: &MarkList) -> String {
    let headings = ["resource", "mark", "since", "note"];
    let rows = list.marks.iter().map(|mark| {
        let note = if mark.spent { "spent" } else { "" };
        [
            mark.resource.to_string(),
            mark.token.to_string(),
            rfc3339_ms(mark.since_ms),
            note.to_owned(),
        ]
    });
    section("", headings, rows)
}

/// `marks get`: the numbers, and what is and was at the resource.
pub fn mark(report: &MarkReport) -> String {
    let (mark, row) = (&report.mark, &report.mark.row);
    let spent = if row.spent { " spent" } else { "" };
    let unknown = mark.unknown.iter().map(settling);
    let epochs = mark.epochs.iter().map(|epoch| {
        let (token, number) = (epoch.token.to_string(), epoch.number.to_string());
        [token, epoch.instance.clone(), number]
    });
    let acts = report.audit.iter().map(|act| {
        [
            rfc3339_ms(act.at_ms),
            act.action.clone(),
            or_dash(act.before),
            or_dash(act.after),
            act.actor.clone(),
            act.reason.clone(),
        ]
    });
    let acts_have = ["at", "action", "before", "after", "actor", "reason"];
    facts(&[
        ("resource", row.resource.to_string()),
        ("mark", format!("{}{spent}", row.token)),
        ("since", rfc3339_ms(row.since_ms)),
        ("in flight", mark.in_flight.to_string()),
        ("waiting", mark.waiting.to_string()),
        ("instance", report.instance.clone()),
    ]) + &section("\nUnknown outcomes\n", SETTLING, unknown)
        + &section("\nOpen epochs\n", ["token", "instance", "number"], epochs)
        + &rejections("\nLatest refusals\n", &report.rejections)
        + &rejections("\nLatest unknown outcomes\n", &report.latest_unknown)
        + &section("\nOperator actions\n", acts_have, acts)
}

const SETTLING: [&str; 5] = ["id", "token", "settles in", "instance", "note"];

fn settling(unknown: &UnknownView) -> [String; 5] {
    let settles = unknown.settles_in.map(span);
    let note = if unknown.inherited { "inherited" } else { "" };
    [
        unknown.id.clone(),
        unknown.token.to_string(),
        settles.unwrap_or_else(|| "its instance decides".to_owned()),
        unknown.instance.clone(),
        note.to_owned(),
    ]
}

/// The unknown outcomes of all resources.
pub fn all_unknown(list: &[BusyResource]) -> String {
    let [id, token, settles, instance, note] = SETTLING;
    let headings = ["resource", id, token, settles, instance, note];
    let rows = list.iter().flat_map(|busy| {
        busy.unknown.iter().map(|unknown| {
            let [id, token, settles, instance, note] = settling(unknown);
            let resource = busy.resource.to_string();
            [resource, id, token, settles, instance, note]
        })
    });
    section("\nUnknown outcomes\n", headings, rows)
}

pub fn waiting(list: &[BusyResource]) -> String {
    let headings = ["resource", "waiting", "in flight", "unknown", "settles in"];
    let rows = list.iter().map(|busy| {
        let settles = busy.unknown.iter().filter_map(|unknown| unknown.settles_in);
        [
            busy.resource.to_string(),
            busy.waiting.to_string(),
            busy.in_flight.to_string(),
            busy.unknown.len().to_string(),
            or_dash(settles.max().map(span)),
        ]
    });
    section("\nWaiting for older requests\n", headings, rows)
}

/// Requests to one resource that were refused, or whose outcome is unknown.
fn rejections(title: &str, list: &[Rejection]) -> String {
    let headings = [
        "at",
        "outcome",
        "status",
        "token",
        "mark",
        "client",
        "method",
        "path",
        "request id",
    ];
    let rows = list.iter().map(|one| {
        [
            one.at.clone(),
            one.outcome.clone(),
            one.status.to_string(),
            or_dash(one.token),
            or_dash(one.mark),
            one.client.clone(),
            or_dash(one.request.method.as_ref()),
            or_dash(one.request.path.as_ref()),
            or_dash(one.request.request_id.as_ref()),
        ]
    });
    section(title, headings, rows)
}

/// The refusals of a list by their resource: who fights over what. `latest`: the newest first.
pub fn refused_most(latest: &[Rejection]) -> String {
    let mut groups: BTreeMap<&str, Vec<&Rejection>> = BTreeMap::new();
    for one in latest {
        if let Some(resource) = &one.resource {
            groups.entry(resource.as_str()).or_default().push(one);
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, refusals)| std::cmp::Reverse(refusals.len()));
    let headings = [
        "resource", "times", "clients", "latest", "outcome", "token", "mark", "client", "agent",
    ];
    let rows = groups.iter().take(MOST).map(|(resource, refusals)| {
        let clients: HashSet<_> = refusals.iter().map(|one| &one.client).collect();
        let latest = refusals[0];
        [
            (*resource).to_owned(),
            refusals.len().to_string(),
            clients.len().to_string(),
            latest.at.clone(),
            latest.outcome.clone(),
            or_dash(latest.token),
            or_dash(latest.mark),
            latest.client.clone(),
            or_dash(latest.request.user_agent.as_ref()),
        ]
    });
    let title = format!("\nRefused most, of the latest {}\n", latest.len());
    section(&title, headings, rows)
}

pub fn routes(list: &[RouteView]) -> String {
    let rows = list.iter().map(|route| {
        [
            route.route.clone(),
            route.path.clone(),
            route.mode.as_str().to_owned(),
            or_dash(route.resource.as_ref()),
        ]
    });
    section("\nRoutes\n", ["route", "path", "mode", "key"], rows)
}

pub fn instances(list: &[InstanceView]) -> String {
    let rows = list.iter().map(|instance| {
        let state = match instance.state {
            InstanceState::This => "this",
            InstanceState::Alive => "alive",
            InstanceState::Dead => "dead",
        };
        [
            instance.id.clone(),
            state.to_owned(),
            or_dash(instance.silent_for.map(span)),
            or_dash(instance.settles_in.map(span)),
        ]
    });
    let headings = ["id", "state", "silent for", "settles in"];
    section("\nInstances\n", headings, rows)
}
