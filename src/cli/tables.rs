//! The admin API's answers as text.

use std::fmt::Write as _;

use crate::admin::tables::Table;
use crate::printable::line;

/// Lines of a label and a value.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(label, _)| label.len()).max();
    let width = width.unwrap_or_default();
    let mut out = String::new();
    for (label, value) in facts {
        let _ = writeln!(out, "{label:<width$}  {}", line(value));
    }
    out
}

/// A table under its title, unless it has no rows.
pub(super) fn section(table: &Table) -> String {
    if table.rows.is_empty() {
        return String::new();
    }
    format!("\n{}\n{}", table.title, columns(table))
}

/// Columns as wide as their widest entry.
pub(super) fn columns(table: &Table) -> String {
    let headings = table.rows.iter().take(1).map(|row| {
        let headings = row.0.iter().map(|(heading, _)| heading.to_uppercase());
        headings.collect::<Vec<_>>()
    });
    let rows = table.rows.iter().map(|row| {
        let cells = row.0.iter().map(|(_, cell)| cell.text().into_owned());
        cells.collect()
    });
    let lines: Vec<Vec<String>> = headings.chain(rows).collect();
    let widths: Vec<usize> = (0..lines.first().map_or(0, Vec::len))
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    out
}
