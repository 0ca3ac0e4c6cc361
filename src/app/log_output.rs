//! [`LogOutput`]: the log's way to standard error, the lines lost on it, and its filter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::log_filter::LogFilter;
use crate::metrics::Metrics;

/// The interval at which lost lines are counted.
const EVERY: Duration = Duration::from_secs(1);

/// Lines of the log are written by a thread of their own, and some may be lost.
#[derive(Clone)]
pub struct LogOutput {
    dropped: Arc<dyn Fn() -> u64 + Send + Sync>,
    flush: Arc<dyn Fn() + Send + Sync>,
    pub(super) filter: Arc<LogFilter>,
}

impl LogOutput {
    /// `dropped` counts the lines lost since the start. `flush` waits a moment until all are
    /// written.
    pub fn new(
        dropped: impl Fn() -> u64 + Send + Sync + 'static,
        flush: impl Fn() + Send + Sync + 'static,
        filter: LogFilter,
    ) -> Self {
        Self {
            dropped: Arc::new(dropped),
            flush: Arc::new(flush),
            filter: Arc::new(filter),
        }
    }

    /// Waits a moment until all lines are written. Blocks.
    pub(super) fn flush(&self) {
        (self.flush)();
    }
}

impl fmt::Debug for LogOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = (self.dropped)();
        f.debug_struct("LogOutput")
            .field("dropped", &dropped)
            .finish_non_exhaustive()
    }
}

/// Counts lost lines, for as long as the process lives. They are reported once none was lost for a
/// while: then there is room for the line that says so.
pub(super) async fn count(log: LogOutput, metrics: Arc<Metrics>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut said) = (0, 0);
    loop {
        tick.tick().await;
        let now = (log.dropped)();
        metrics.set_log_lines_dropped(now);
        if now == known && now > said {
            tracing::warn!(
                lines = now - said,
                "standard error was not read in time: lines of the log are missing here"
            );
            // Else this line is lost, too.
            if (log.dropped)() == now {
                said = now;
            }
        }
        known = now;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::config::LogLevel;

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_counted() {
        let (count_of, metrics) = (Arc::new(AtomicU64::new(0)), Arc::new(Metrics::new(&[])));
        let seen = Arc::clone(&count_of);
        let log = LogOutput::new(
            move || seen.load(Ordering::Relaxed),
            || (),
            LogFilter::new(LogLevel::default(), |_| Ok(())),
        );
        let counting = tokio::spawn(count(log, Arc::clone(&metrics)));
        for total in [0, 7, 7, 12] {
            count_of.store(total, Ordering::Relaxed);
            tokio::time::sleep(EVERY * 2).await;
            let text = metrics.encode(std::time::Instant::now());
            let line = format!("\nfencepost_log_lines_dropped_total {total}\n");
            assert!(text.contains(&line), "{total}");
        }
        counting.abort();
    }
}
