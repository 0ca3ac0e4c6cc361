//! Lists of statuses that leave the outcome of a request unknown: of HTTP and of gRPC, at the top
//! level and in a route.

use std::ops::Range;
use std::sync::Arc;

use crate::config::yaml::Report;

/// The statuses that a list may have.
pub(super) struct StatusKind {
    range: Range<u16>,
    name: &'static str,
    hint: &'static str,
}

pub(super) const HTTP: StatusKind = StatusKind {
    range: 200..600,
    name: "the status of a final response",
    hint: "200 to 599; a gateway that has lost its upstream mostly answers 502 or 504",
};

pub(super) const GRPC: StatusKind = StatusKind {
    range: 1..17,
    name: "the status of a gRPC call that has failed",
    hint: "1 to 16; a gateway that has lost its upstream mostly answers 14",
};

/// A list as it is written in a file, where an entry may be empty.
pub(super) fn written(statuses: &[u16]) -> Vec<Option<u16>> {
    statuses.iter().copied().map(Some).collect()
}

impl StatusKind {
    /// Checks a list.
    pub(super) fn read(&self, at: &str, list: Vec<Option<u16>>, report: &mut Report) -> Arc<[u16]> {
        let mut statuses = Vec::new();
        for (i, status) in list.into_iter().enumerate() {
            let at = format!("{at}[{i}]");
            match status {
                None => report.error(at, "this status is empty", ""),
                Some(status) if !self.range.contains(&status) => {
                    report.error(at, format!("{status} is not {}", self.name), self.hint);
                }
                Some(status) if statuses.contains(&status) => {
                    report.warn(at, format!("{status} is listed twice"), "");
                }
                Some(status) => statuses.push(status),
            }
        }
        statuses.into()
    }
}
