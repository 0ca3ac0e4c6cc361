//! [`Progress`]: shows how far a long command has come, and notices that it is to stop. On a
//! terminal it is a bar; elsewhere a line on standard error every ten seconds.

use std::io::{self, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::signal::unix::SignalKind;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use crate::signals::Signals;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);
/// Between two drawings of a bar.
const REDRAW: Duration = Duration::from_millis(200);

/// How far a command has come.
pub struct Progress {
    /// Suspend it to write to the terminal.
    pub bar: ProgressBar,
    what: &'static str,
    /// Cancelled by the first SIGINT or SIGTERM.
    stop: CancellationToken,
}

impl Progress {
    /// `what`: such as `importing marks`. `total`: the number to come, if it is known.
    pub fn start(what: &'static str, total: Option<u64>) -> io::Result<Self> {
        let signals = [SignalKind::interrupt(), SignalKind::terminate()];
        let signals = Signals::catch(signals.map(|signal| (signal, ())))?;
        let stop = CancellationToken::new();
        let template = if total.is_some() {
            "{bar:30} {msg}, {eta} left"
        } else {
            "{spinner} {msg}, {elapsed}"
        };
        let style = ProgressStyle::with_template(template).map_err(io::Error::other)?;
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        bar.set_style(style);
        bar.set_message(what);
        bar.enable_steady_tick(REDRAW);
        tokio::spawn(attend(bar.clone(), signals, stop.clone()));
        Ok(Self { bar, what, stop })
    }

    /// So many more are done.
    pub fn add(&self, done: u64) {
        self.bar.inc(done);
        let of = self.bar.length().map(|total| format!(" of {total}"));
        let (what, of) = (self.what, of.unwrap_or_default());
        self.bar
            .set_message(format!("{what}: {}{of}", self.bar.position()));
    }

    /// The command is to stop before its next step.
    pub fn interrupted(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for a step, or for a signal: `None`.
    pub async fn or_interrupted<F: Future>(&self, step: F) -> Option<F::Output> {
        self.stop.run_until_cancelled(step).await
    }
}

/// Writes the lines. The first signal asks the command to stop. The next one ends the process,
/// whatever the command waits for: so this is a task of its own.
async fn attend(bar: ProgressBar, mut signals: Signals<()>, stop: CancellationToken) {
    let mut lines = interval_at(Instant::now() + EVERY, EVERY);
    loop {
        // If standard error is gone, there is no other place for it.
        let _ = tokio::select! {
            () = signals.next() => {
                if stop.is_cancelled() {
                    std::process::exit(1);
                }
                stop.cancel();
                writeln!(io::stderr(), "stopping; a second signal ends it at once")
            }
            _ = lines.tick(), if bar.is_hidden() && !bar.is_finished() => {
                let seconds = bar.elapsed().as_secs();
                writeln!(io::stderr(), "{}, after {seconds} s", bar.message())
            }
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
