//! [`LogOutput`]: the log's way to standard error, and its filter. [`count`] reports lost lines.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::log_writer::LogWriter;
use crate::log_filter::LogFilter;
use crate::metrics::Metrics;

/// The interval at which lost lines are counted.
const EVERY: Duration = Duration::from_secs(1);

/// The log of this process.
#[derive(Clone, Debug)]
pub struct LogOutput {
    pub writer: LogWriter,
    pub filter: Arc<LogFilter>,
}

/// Counts lost lines, for as long as the process lives. They are reported once none was lost for a
/// while: then there is room for the line that says so.
pub(super) async fn count(log: LogWriter, metrics: Arc<Metrics>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut said) = (0, 0);
    loop {
        tick.tick().await;
        let now = log.dropped();
        metrics.set_log_lines_dropped(now);
        if now == known && now > said {
            tracing::warn!(
                lines = now - said,
                "standard error was not read in time: lines of the log are missing here"
            );
            // Else this line is lost, too.
            if log.dropped() == now {
                said = now;
            }
        }
        known = now;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::*;
    use crate::app::LineStyle;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_counted() {
        let metrics = Arc::new(Metrics::new(&[]));
        let mut log = LogWriter::start(Closed, LineStyle::Text, None).expect("a thread");
        let counting = tokio::spawn(count(log.clone(), Arc::clone(&metrics)));
        let mut total = 0;
        for lost in [0, 7, 0, 5] {
            for _ in 0..lost {
                log.write_all(b"a line\n").expect("it is taken");
            }
            LogWriter::flush(&log);
            total += lost;
            tokio::time::sleep(EVERY * 2).await;
            let text = metrics.encode(std::time::Instant::now());
            let line = format!("\nfencepost_log_lines_dropped_total {total}\n");
            assert!(text.contains(&line), "{total}");
        }
        counting.abort();
    }
}
