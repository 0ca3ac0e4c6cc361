//! [`Shutdown`]: the signals that end a running proxy, or make it drain and stay.

use std::io;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

use super::log::LogOutput;
use crate::fencing::Fencing;
use crate::signals::Signals;

/// A request to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StopSignal {
    pub name: &'static str,
    /// The process ends after the drain. Otherwise it stays until another signal ends it, as after
    /// the soft stop of `HAProxy`.
    pub ends: bool,
}

/// Asks a running proxy to drain and to end.
#[derive(Debug)]
pub struct Shutdown {
    pub(super) signals: Signals<StopSignal>,
    pub(super) log: LogOutput,
}

impl Shutdown {
    /// SIGTERM and SIGINT end the proxy, SIGUSR1 drains it. From this call on, the process handles
    /// them; by default each would end the process at once. A second SIGTERM or SIGINT flushes
    /// `log` and ends the process at once.
    pub fn on_signals(log: LogOutput) -> io::Result<Self> {
        let signals = [
            (SignalKind::terminate(), "SIGTERM", true),
            (SignalKind::interrupt(), "SIGINT", true),
            (SignalKind::user_defined1(), "SIGUSR1", false),
        ];
        let signals = signals.map(|(kind, name, ends)| (kind, StopSignal { name, ends }));
        let signals = Signals::catch(signals)?;
        Ok(Self { signals, log })
    }

    /// Handles the signals that come during the drain and after it. The returned token is cancelled
    /// once the process must end. A second SIGTERM or SIGINT ends it at once, with exit status 1.
    pub(super) fn handle_during_drain(mut self, first: StopSignal) -> CancellationToken {
        let end = CancellationToken::new();
        let asked = end.clone();
        tokio::spawn(async move {
            let mut last = first;
            loop {
                if last.ends && asked.is_cancelled() {
                    tracing::error!(
                        signal = last.name,
                        "a second signal: aborted, what was in flight stays recorded"
                    );
                    self.log.writer.flush();
                    std::process::exit(1);
                }
                if last.ends {
                    asked.cancel();
                }
                last = self.signals.next().await;
            }
        });
        end
    }
}

/// The most resources in the line about what a deadline cuts.
const NAMED: usize = 50;

/// Says what the deadline of a stop is about to cut.
pub(super) fn say_what_is_cut(fencing: &Fencing, deadline: Duration) {
    let busy = fencing.busy(|activity| activity.in_flight > 0);
    let named = busy.iter().take(NAMED);
    let named: Vec<&str> = named.map(|one| one.resource.as_str()).collect();
    tracing::warn!(
        deadline = humantime::format_duration(deadline).to_string(),
        resources = named.join(", "),
        not_named = (busy.len() > NAMED).then(|| busy.len() - NAMED),
        "the deadline has come: what is still in flight is cut and stays recorded as unknown"
    );
}
