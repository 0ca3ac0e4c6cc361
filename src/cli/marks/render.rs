//! The admin API's answers as readable text. A missing value is shown as `-`; characters that are
//! not printable are written as numbers.

use std::fmt::Write;

use serde_json::Value;

use crate::cli::tables::{columns, items, section, table, text};
use crate::printable::line;

/// `marks list`.
pub fn list(answer: &Value) -> String {
    let marks = items(answer, "marks");
    if marks.is_empty() {
        return "no marks\n".to_owned();
    }
    let rows = marks
        .iter()
        .map(|mark| {
            vec![
                text(mark, "resource"),
                text(mark, "mark"),
                text(mark, "since"),
                spent(mark),
            ]
        })
        .collect();
    let mut out = table(&["RESOURCE", "MARK", "SINCE", "NOTE"], rows);
    if let Some(next) = answer["next"].as_str() {
        let _ = writeln!(
            out,
            "There are more: --after '{}'",
            line(next).replace('\'', "'\\''")
        );
    }
    out
}

/// `marks get`.
pub fn view(answer: &Value) -> String {
    let mut out = String::new();
    for (label, value) in [
        ("resource", text(answer, "resource")),
        (
            "mark",
            format!("{} {}", text(answer, "mark"), spent(answer))
                .trim_end()
                .to_owned(),
        ),
        ("since", text(answer, "since")),
        ("instance", text(answer, "instance")),
        ("in flight", text(answer, "in_flight")),
        ("waiting", text(answer, "waiting")),
    ] {
        let _ = writeln!(out, "{label:<10} {value}");
    }
    section(
        &mut out,
        "Unknown outcomes",
        &["ID", "TOKEN", "SETTLES IN", "INSTANCE", "NOTE"],
        items(answer, "unknown").iter().map(|unknown| {
            let settles = unknown["settles_in_seconds"].as_f64().map_or_else(
                || "its instance decides".to_owned(),
                |left| format!("{left:.1} s"),
            );
            let note = if unknown["inherited"] == true {
                "inherited"
            } else {
                ""
            };
            vec![
                text(unknown, "id"),
                text(unknown, "token"),
                settles,
                text(unknown, "instance"),
                note.to_owned(),
            ]
        }),
    );
    section(
        &mut out,
        "Open epochs",
        &["TOKEN", "INSTANCE", "NUMBER"],
        items(answer, "epochs")
            .iter()
            .map(|epoch| columns(epoch, &["token", "instance", "number"])),
    );
    refusals(&mut out, answer);
    section(
        &mut out,
        "Operator actions",
        &["AT", "ACTION", "BEFORE", "AFTER", "ACTOR", "REASON"],
        items(answer, "audit")
            .iter()
            .map(|row| columns(row, &["at", "action", "before", "after", "actor", "reason"])),
    );
    out
}

/// The refusals, and the requests whose outcome is unknown.
fn refusals(out: &mut String, answer: &Value) {
    section(
        out,
        "Latest refusals",
        &[
            "AT",
            "OUTCOME",
            "TOKEN",
            "MARK",
            "METHOD",
            "PATH",
            "CLIENT",
            "REQUEST ID",
        ],
        items(answer, "rejections").iter().map(|row| {
            let fields = [
                "at",
                "outcome",
                "token",
                "mark",
                "method",
                "path",
                "client",
                "request_id",
            ];
            columns(row, &fields)
        }),
    );
    section(
        out,
        "Latest unknown outcomes",
        &["AT", "TOKEN", "METHOD", "PATH", "CLIENT", "REQUEST ID"],
        items(answer, "latest_unknown").iter().map(|row| {
            columns(
                row,
                &["at", "token", "method", "path", "client", "request_id"],
            )
        }),
    );
}

/// `marks advance`.
pub fn advanced(answer: &Value) -> String {
    let (resource, mark) = (text(answer, "resource"), text(answer, "mark"));
    if answer["outcome"] == "current" {
        format!("{resource}: the mark was {mark} already\n")
    } else {
        format!("{resource}: the mark is {mark} now\n")
    }
}

/// `marks override`.
pub fn overridden(answer: &Value) -> String {
    format!(
        "{}: the mark was {} and is {} now, in era {}\n",
        text(answer, "resource"),
        text(answer, "before"),
        text(answer, "mark"),
        text(answer, "era"),
    )
}

/// `marks resolve`.
pub fn resolved(answer: &Value) -> String {
    format!(
        "{}: {} no longer counts as in flight\n",
        text(answer, "resource"),
        text(answer, "id")
    )
}

fn spent(mark: &Value) -> String {
    if mark["spent"] == true {
        "spent".to_owned()
    } else {
        String::new()
    }
}
