//! The tables that `fencepost marks` and `status` print. A column is a member of the admin API's
//! JSON, by its name there.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::admin::api::{MarkReport, RequestList, StatusView};
use crate::fencing::operators::BusyResource;
use crate::printable::line;

/// These members of an answer, each in a line behind its name.
pub fn facts(members: &str, answer: impl Serialize) -> String {
    let answer = json!(answer);
    let lines = members.split(' ');
    aligned(lines.map(|name| vec![name.replace('_', " "), cell(&answer[name])]))
}

/// A table under its title; nothing if it has no rows.
pub fn section<T: Serialize>(
    title: &str,
    columns: &str,
    rows: impl IntoIterator<Item = T>,
) -> String {
    let columns = columns.split(' ');
    let rows = rows.into_iter().map(|row| {
        let row = serde_json::to_value(row).unwrap_or_default();
        columns.clone().map(|column| cell(&row[column])).collect()
    });
    let mut lines: Vec<Vec<String>> = rows.collect();
    if lines.is_empty() {
        return String::new();
    }
    let headings = columns.map(|name| name.replace('_', " "));
    lines.insert(0, headings.map(|name| name.to_uppercase()).collect());
    format!("{title}{}", aligned(lines.into_iter()))
}

/// The words of a value; seconds are in tenths.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => line(text).into_owned(),
        Value::Array(list) if list.is_empty() => "-".to_owned(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join("; "),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(seconds) => format!("{seconds:.1}"),
            None => number.to_string(),
        },
        Value::Object(_) => String::new(),
    }
}

/// Columns as wide as their widest entry.
fn aligned(lines: impl Iterator<Item = Vec<String>>) -> String {
    let lines: Vec<_> = lines.collect();
    let mut widths = vec![0; lines.first().map_or(0, Vec::len)];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    out
}

/// Of unknown outcomes.
const SETTLING: &str = "id token settles_in_seconds instance inherited";
/// Of requests that were refused, or whose outcome is unknown.
const REJECTION: &str = "at times first_at outcome status token mark client method path request_id";

const MARK: &str = "resource mark spent since in_flight waiting instance";

/// `marks get`: the numbers, and what is and was at the resource.
pub fn mark(report: &MarkReport) -> String {
    let mark = &report.mark;
    let epochs = "token instance number";
    let acts = "at action before after actor reason";
    facts(MARK, report)
        + &section("\nUnknown outcomes\n", SETTLING, &mark.activity.unknown)
        + &section("\nOpen epochs\n", epochs, &mark.epochs)
        + &section("\nLatest refusals\n", REJECTION, &report.rejections)
        + &section(
            "\nLatest unknown outcomes\n",
            REJECTION,
            &report.latest_unknown,
        )
        + &section("\nOperator actions\n", acts, &report.audit)
}

/// A row, with further columns.
fn with<const N: usize>(row: impl Serialize, more: [(&str, Value); N]) -> Value {
    let mut row = json!(row);
    for (name, value) in more {
        row[name] = value;
    }
    row
}

/// The unknown outcomes of all resources.
pub fn all_unknown(list: &[BusyResource]) -> String {
    let rows = list.iter().flat_map(|busy| {
        let one = |unknown| with(unknown, [("resource", json!(busy.resource))]);
        busy.activity.unknown.iter().map(one)
    });
    section(
        "\nUnknown outcomes\n",
        &format!("resource {SETTLING}"),
        rows,
    )
}

pub fn waiting(list: &[BusyResource]) -> String {
    let rows = list.iter().map(|busy| {
        let unknown = &busy.activity.unknown;
        let settles = unknown.iter().filter_map(|one| one.settles_in_seconds);
        let (settles, unknown) = (json!(settles.reduce(f64::max)), json!(unknown.len()));
        with(
            busy,
            [("settles_in_seconds", settles), ("unknown", unknown)],
        )
    });
    let columns = "resource waiting in_flight unknown settles_in_seconds";
    section("\nWaiting for older requests\n", columns, rows)
}

/// How requests ended: lately, and since the start.
pub fn outcomes(status: &StatusView) -> String {
    let rows = status.requests.iter().map(|(outcome, count)| {
        let lately = status.requests_last_minute.get(outcome).unwrap_or(&0);
        json!({ "outcome": outcome, "last_minute": lately, "since_the_start": count })
    });
    let columns = "outcome last_minute since_the_start";
    section("\nHow requests ended\n", columns, rows)
}

/// The requests in progress.
pub fn in_progress(list: &RequestList) -> String {
    let title = format!("\nOldest requests in progress, of {}\n", list.total);
    let columns = "age_seconds waits_for ends_in_seconds older method route resource token client \
                   request_id";
    section(&title, columns, &list.requests)
}
