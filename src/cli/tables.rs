//! The admin API's answers as tables. A missing value is shown as `-`; characters that are not
//! printable are written as numbers.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use crate::printable::line;

/// A cell of a table.
pub(super) fn cell(value: impl Display) -> String {
    let text = value.to_string();
    if text.is_empty() {
        return "-".to_owned();
    }
    line(&text).into_owned()
}

pub(super) fn optional(value: Option<&impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), cell)
}

/// A span in seconds.
pub(super) fn seconds(span: Option<Duration>) -> Option<String> {
    span.map(|span| format!("{:.1} s", span.as_secs_f64()))
}

/// Lines of a label and a value.
pub(super) fn facts<const N: usize>(facts: [(&str, String); N]) -> String {
    let width = facts.iter().map(|(label, _)| label.len()).max();
    let width = width.unwrap_or_default();
    let mut out = String::new();
    for (label, value) in facts {
        let _ = writeln!(out, "{label:<width$}  {value}");
    }
    out
}

/// A table under a title, unless it has no rows.
pub(super) fn section<const N: usize>(
    out: &mut String,
    title: &str,
    headings: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        let _ = write!(out, "\n{title}\n{}", table(headings, rows));
    }
}

/// Columns as wide as their widest entry.
pub(super) fn table<const N: usize>(
    headings: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let lines: Vec<_> = std::iter::once(headings.map(str::to_owned))
        .chain(rows)
        .collect();
    let mut widths = [0; N];
    for cells in &lines {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for cells in lines {
        let padded: Vec<_> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    }
    out
}
