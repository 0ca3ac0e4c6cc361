//! The answers about marks as readable text.

use std::fmt::Write;

use crate::admin::api::{ActOutcome, Acted, MarkList, MarkReport};
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
    let outcome = match &answer.outcome {
        ActOutcome::Advanced { mark } => format!("the mark is {mark} now"),
        ActOutcome::Current { mark } => format!("the mark was {mark} already"),
        ActOutcome::Overridden { before, mark, era } => {
            format!("the mark was {before} and is {mark} now, in era {era}")
        }
        ActOutcome::Resolved { id } => format!("{} no longer counts as in flight", line(id)),
    };
    format!("{}: {outcome}\n", line(answer.resource.as_str()))
}
