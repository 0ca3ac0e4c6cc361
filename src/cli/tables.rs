//! The admin API's answers as tables. A missing value is shown as `-`; characters that are not
//! printable are written as numbers.

use std::fmt::Write as _;

use serde_json::Value;

use crate::printable::line;

pub(super) fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn columns(row: &Value, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| text(row, name)).collect()
}

pub(super) fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::String(text) if !text.is_empty() => line(text).into_owned(),
        Value::Number(number) => number.to_string(),
        _ => "-".to_owned(),
    }
}

pub(super) fn section(
    out: &mut String,
    title: &str,
    headings: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) {
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let _ = write!(out, "\n{title}\n{}", table(headings, rows));
    }
}

/// Columns as wide as their widest entry.
pub(super) fn table(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines: Vec<Vec<String>> = vec![headings.iter().map(ToString::to_string).collect()];
    lines.extend(rows);
    let widths: Vec<usize> = (0..headings.len())
        .map(|column| {
            let widths = lines.iter().map(|cells| cells[column].chars().count());
            widths.max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for cells in lines {
        let padded: Vec<_> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    }
    out
}
