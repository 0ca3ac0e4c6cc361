//! The log lines of `fencepost attach` at its end.

use std::time::Duration;

use super::hold::Counts;

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The command has ended by itself.
    Exited,
    /// A newer holder was found.
    Stale,
    /// A claim was not granted.
    NotClaimed,
    /// A signal, without a command to pass it on to.
    Signal,
    /// The command could not be started.
    NotStarted,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Stale => "stale",
            Self::NotClaimed => "not-claimed",
            Self::Signal => "signal",
            Self::NotStarted => "not-started",
        }
    }
}

/// Logs the numbers of one run.
pub(super) fn log(reason: Reason, code: u8, held: Duration, claims: u64, counts: &Counts) {
    let refused: u64 = counts.refused.values().sum();
    if refused > 0 {
        let by_outcome = counts.refused.iter();
        let by_outcome: Vec<String> = by_outcome
            .map(|(outcome, count)| format!("{outcome} {count}"))
            .collect();
        tracing::warn!(
            "requests without an answer of the service: {}",
            by_outcome.join(", ")
        );
    }
    if reason == Reason::Exited && counts.requests == claims {
        tracing::warn!(
            "the command sent no request through fencepost attach, so what it wrote was not \
             fenced: its requests must go to FENCEPOST_URL, or use http_proxy (--http-proxy)"
        );
    }
    tracing::info!(
        end = reason.as_str(),
        exit_code = code,
        held_seconds = held.as_secs_f64(),
        claims,
        requests = counts.requests,
        retries = counts.retries,
        stale = counts.stale,
        refused,
        "the hold has ended"
    );
}
