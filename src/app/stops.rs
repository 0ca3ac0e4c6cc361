//! The signals that end the process, or have it drain and stay.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::LogOutput;

/// What a signal asks for. SIGUSR1 drains, as `HAProxy`'s soft stop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Drain, and end.
    Stop(&'static str),
    /// Drain, and stay until the end is asked for.
    Drain,
}

impl Told {
    pub(super) fn signal(self) -> &'static str {
        match self {
            Self::Stop(name) => name,
            Self::Drain => "SIGUSR1",
        }
    }
}

/// Listened for from the start: by default each of these would end the process on the spot.
pub(super) struct Stops {
    term: Signal,
    int: Signal,
    usr1: Signal,
}

impl Stops {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            usr1: signal(SignalKind::user_defined1())?,
        })
    }

    pub(super) async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.term.recv() => Told::Stop("SIGTERM"),
            _ = self.int.recv() => Told::Stop("SIGINT"),
            _ = self.usr1.recv() => Told::Drain,
        }
    }

    /// Does the work, unless a signal comes first: the work is dropped then, wherever it is.
    pub(super) async fn or<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Told> {
        tokio::select! {
            done = work => Ok(done),
            told = self.next() => Err(told),
        }
    }

    /// The one that has come already, or the next.
    pub(super) async fn next_after(&mut self, come: Option<Told>) -> Told {
        match come {
            Some(told) => told,
            None => self.next().await,
        }
    }

    /// Minds the signals that come during the drain and after it. What it returns is cancelled once the process is to
    /// end; a second signal that says so ends it on the spot, with 1.
    pub(super) fn mind(mut self, first: Told, log: LogOutput) -> CancellationToken {
        let end = CancellationToken::new();
        let asked = end.clone();
        tokio::spawn(async move {
            let mut told = first;
            loop {
                if let Told::Stop(signal) = told {
                    if asked.is_cancelled() {
                        tracing::error!(
                            signal,
                            "a second signal: aborted, what was in flight stays recorded"
                        );
                        log.flush();
                        std::process::exit(1);
                    }
                    asked.cancel();
                }
                told = self.next().await;
            }
        });
        end
    }
}
