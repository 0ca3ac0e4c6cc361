//! [`Shutdown`]: the signals that end a running proxy, or make it drain and stay.

use std::io;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio_util::sync::CancellationToken;

use super::log_writer::LogWriter;
use crate::fencing::Fencing;
use crate::fencing::overview::Busy;
use crate::signals::Signals;

/// A request to stop. SIGUSR1 drains, as `HAProxy`'s soft stop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopSignal {
    /// Drain, and end.
    Stop(&'static str),
    /// Drain, and stay until another signal ends the process.
    Drain,
}

impl StopSignal {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop(name) => name,
            Self::Drain => "SIGUSR1",
        }
    }
}

/// Asks a running proxy to drain and to end.
#[derive(Debug)]
pub struct Shutdown {
    pub(super) signals: Signals<StopSignal>,
    pub(super) log: LogWriter,
}

impl Shutdown {
    /// SIGTERM and SIGINT end the proxy, SIGUSR1 drains it. From this call on, the process handles
    /// them; by default each would end the process at once. A second SIGTERM or SIGINT flushes
    /// `log` and ends the process at once.
    pub fn on_signals(log: LogWriter) -> io::Result<Self> {
        let signals = Signals::catch([
            (SignalKind::terminate(), StopSignal::Stop("SIGTERM")),
            (SignalKind::interrupt(), StopSignal::Stop("SIGINT")),
            (SignalKind::user_defined1(), StopSignal::Drain),
        ])?;
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
                if let StopSignal::Stop(signal) = last {
                    if asked.is_cancelled() {
                        tracing::error!(
                            signal,
                            "a second signal: aborted, what was in flight stays recorded"
                        );
                        self.log.flush();
                        std::process::exit(1);
                    }
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
    let busy = fencing.busy(Busy::InFlight);
    let named = busy.iter().take(NAMED);
    let named: Vec<&str> = named.map(|one| one.resource.as_str()).collect();
    tracing::warn!(
        deadline = humantime::format_duration(deadline).to_string(),
        resources = named.join(", "),
        not_named = (busy.len() > NAMED).then(|| busy.len() - NAMED),
        "the deadline has come: what is still in flight is cut and stays recorded as unknown"
    );
}
