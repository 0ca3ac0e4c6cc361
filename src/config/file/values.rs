//! Checks of single values that all blocks share: durations, counts, and text that is parsed. A
//! wrong value is reported, and the checks go on.

use std::time::Duration;

use super::units::Time;
use crate::config::yaml::{Report, Wrong};

/// A duration that must not be zero.
pub(super) fn positive(at: &str, time: Time, report: &mut Report) -> Duration {
    if time.0.is_zero() {
        report.error(at, "must be greater than zero", "such as 5s");
    }
    time.0
}

/// A number that must not be zero, and that fits into 32 bits.
pub(super) fn count(at: &str, given: u64, report: &mut Report) -> usize {
    let most = u64::from(u32::MAX);
    if given == 0 {
        report.error(at, "must be greater than zero", "");
    } else if given > most {
        report.error(at, format!("{given} is too large"), "");
    }
    usize::try_from(given.clamp(1, most)).unwrap_or(usize::MAX)
}

/// The result of parsing a value. A wrong value is reported.
pub(super) fn taken<T>(at: &str, result: Result<T, Wrong>, report: &mut Report) -> Option<T> {
    result
        .map_err(|(message, hint)| report.error(at, message, hint))
        .ok()
}

/// The entries of a list that parse. An empty entry is the empty text.
pub(super) fn entries<T>(
    at: &str,
    list: Vec<Option<String>>,
    parse: impl Fn(&str) -> Result<T, Wrong>,
    report: &mut Report,
) -> Vec<T> {
    let entries = list.into_iter().enumerate();
    let parsed = entries.filter_map(|(i, text)| {
        taken(
            &format!("{at}[{i}]"),
            parse(&text.unwrap_or_default()),
            report,
        )
    });
    parsed.collect()
}
