//! Checks of single values, which all blocks share: durations, counts, and text that is read as
//! something else. A value that is wrong is reported, and the checks go on.

use std::time::Duration;

use super::addresses;
use super::problems::{Report, Wrong};
use super::settings::Listen;
use super::units::Time;

/// A duration that must not be zero.
pub(super) fn positive(at: &str, time: Duration, report: &mut Report) -> Duration {
    if time.is_zero() {
        report.error(at, "must be greater than zero", "such as 5s");
    }
    time
}

/// A duration that is given, or its default; not zero.
pub(super) fn time(
    at: &str,
    given: Option<Time>,
    default: Duration,
    report: &mut Report,
) -> Duration {
    given.map_or(default, |time| positive(at, time.0, report))
}

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A number that is given, or its default; not zero.
pub(super) fn count(at: &str, given: Option<u64>, default: usize, report: &mut Report) -> usize {
    let Some(given) = given else { return default };
    match usize::try_from(given) {
        Ok(0) => {
            report.error(at, "must be greater than zero", "");
            default
        }
        Ok(number) if u32::try_from(number).is_ok() => number,
        _ => {
            report.error(at, format!("{given} is too large"), "");
            default
        }
    }
}

/// The result of reading a value. A wrong value is reported.
pub(super) fn taken<T>(at: &str, result: Result<T, Wrong>, report: &mut Report) -> Option<T> {
    result
        .map_err(|(message, hint)| report.error(at, message, hint))
        .ok()
}

/// An address to listen on, or its default.
pub(super) fn listen(
    at: &str,
    given: Option<&str>,
    default: &str,
    report: &mut Report,
) -> Option<Listen> {
    taken(at, addresses::listen(given.unwrap_or(default)), report)
}
