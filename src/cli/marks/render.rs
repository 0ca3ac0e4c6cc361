//! The answers about marks as readable text.

use std::fmt::Write;

use crate::admin::api::{Acted, Advance, MarkList, MarkReport, Rejection};
use crate::cli::tables::{cell, facts, optional, seconds, section, table};
use crate::json_values::rfc3339_ms;
use crate::printable::line;
use crate::store::MarkRow;

/// `marks list`.
pub fn list(answer: &MarkList) -> String {
    if answer.marks.is_empty() {
        return "no marks\n".to_owned();
    }
    let rows = answer.marks.iter().map(|mark| {
        [
            cell(&mark.resource),
            cell(mark.token),
            rfc3339_ms(mark.since_ms),
            spent(mark).to_owned(),
        ]
    });
    let mut out = table(["RESOURCE", "MARK", "SINCE", "NOTE"], rows);
    if let Some(next) = &answer.next {
        let next = line(next).replace('\'', "'\\''");
        let _ = writeln!(out, "There are more: --after '{next}'");
    }
    out
}

/// `marks get`.
pub fn view(answer: &MarkReport) -> String {
    let mark = &answer.mark;
    let row = &mark.row;
    let mut out = facts([
        ("resource", cell(&row.resource)),
        (
            "mark",
            format!("{} {}", row.token, spent(row))
                .trim_end()
                .to_owned(),
        ),
        ("since", rfc3339_ms(row.since_ms)),
        ("instance", cell(&answer.instance)),
        ("in flight", cell(mark.in_flight)),
        ("waiting", cell(mark.waiting)),
    ]);
    section(
        &mut out,
        "Unknown outcomes",
        ["ID", "TOKEN", "SETTLES IN", "INSTANCE", "NOTE"],
        mark.unknown.iter().map(|unknown| {
            let settles = seconds(unknown.settles_in);
            let note = if unknown.inherited { "inherited" } else { "" };
            [
                cell(&unknown.id),
                cell(unknown.token),
                settles.unwrap_or_else(|| "its instance decides".to_owned()),
                cell(&unknown.instance),
                note.to_owned(),
            ]
        }),
    );
    section(
        &mut out,
        "Open epochs",
        ["TOKEN", "INSTANCE", "NUMBER"],
        mark.epochs
            .iter()
            .map(|epoch| [cell(epoch.token), cell(&epoch.instance), cell(epoch.number)]),
    );
    requests(&mut out, "Latest refusals", &answer.rejections);
    requests(&mut out, "Latest unknown outcomes", &answer.latest_unknown);
    section(
        &mut out,
        "Operator actions",
        ["AT", "ACTION", "BEFORE", "AFTER", "ACTOR", "REASON"],
        answer.audit.iter().map(|row| {
            [
                rfc3339_ms(row.at_ms),
                cell(&row.action),
                optional(row.before.as_ref()),
                optional(row.after.as_ref()),
                cell(&row.actor),
                cell(&row.reason),
            ]
        }),
    );
    out
}

/// Requests that were refused, or whose outcome is unknown.
fn requests(out: &mut String, title: &str, requests: &[Rejection]) {
    section(
        out,
        title,
        [
            "AT",
            "OUTCOME",
            "TOKEN",
            "MARK",
            "METHOD",
            "PATH",
            "CLIENT",
            "REQUEST ID",
        ],
        requests.iter().map(|row| {
            [
                cell(&row.at),
                cell(&row.outcome),
                optional(row.token.as_ref()),
                optional(row.mark.as_ref()),
                optional(row.request.method.as_ref()),
                optional(row.request.path.as_ref()),
                cell(&row.client),
                optional(row.request.request_id.as_ref()),
            ]
        }),
    );
}

/// `marks advance`, `override` and `resolve`.
pub fn acted(answer: &Acted) -> String {
    let (resource, done) = match answer {
        Acted::Advanced {
            resource,
            outcome: Advance::Current,
            mark,
        } => (resource, format!("the mark was {mark} already")),
        Acted::Advanced { resource, mark, .. } => (resource, format!("the mark is {mark} now")),
        Acted::Overridden {
            resource,
            before,
            mark,
            era,
        } => (
            resource,
            format!("the mark was {before} and is {mark} now, in era {era}"),
        ),
        Acted::Resolved { resource, id, .. } => (
            resource,
            format!("{} no longer counts as in flight", line(id)),
        ),
    };
    format!("{}: {done}\n", cell(resource))
}

fn spent(mark: &MarkRow) -> &'static str {
    if mark.spent { "spent" } else { "" }
}
