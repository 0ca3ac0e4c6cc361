//! The answers about marks as readable text.

use std::fmt::Write;

use crate::admin::api::{Acted, Advance, MarkList, MarkReport};
use crate::admin::tables;
use crate::cli::tables::{columns, facts, section};
use crate::printable::line;

/// `marks list`.
pub fn list(answer: &MarkList) -> String {
    if answer.marks.is_empty() {
        return "no marks\n".to_owned();
    }
    let mut out = columns(&tables::marks(answer));
    if let Some(next) = &answer.next {
        let next = line(next).replace('\'', "'\\''");
        let _ = writeln!(out, "There are more: --after '{next}'");
    }
    out
}

/// `marks get`.
pub fn view(answer: &MarkReport) -> String {
    let MarkReport {
        mark,
        instance,
        rejections,
        latest_unknown,
        audit,
    } = answer;
    let mut numbers = tables::mark(mark);
    numbers.push(("instance", instance.clone()));
    let lists = tables::of_resource(Some(mark), rejections, latest_unknown, audit);
    let lists: String = lists.iter().map(section).collect();
    facts(&numbers) + &lists
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
    format!("{}: {done}\n", line(resource.as_str()))
}
