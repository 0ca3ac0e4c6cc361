//! Lines of the log that standard error did not take in time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::metrics::Metrics;

/// How often they are counted.
const EVERY: Duration = Duration::from_secs(1);

/// Tells how many there are since the start.
#[derive(Clone)]
pub struct LostLines(Arc<dyn Fn() -> u64 + Send + Sync>);

impl LostLines {
    pub fn new(count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(count))
    }
}

impl fmt::Debug for LostLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LostLines").field(&(self.0)()).finish()
    }
}

/// Counts them, for as long as the process lives. They are reported once none was lost for a while: then
/// there is room for the line that says so.
pub(super) async fn count(lost: LostLines, metrics: Arc<Metrics>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut said) = (0, 0);
    loop {
        tick.tick().await;
        let now = (lost.0)();
        metrics.set_log_lines_dropped(now);
        if now == known && now > said {
            tracing::warn!(
                lines = now - said,
                "standard error was not read in time: lines of the log are missing here"
            );
            // Else this line is lost, too.
            if (lost.0)() == now {
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

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_counted() {
        let (count_of, metrics) = (Arc::new(AtomicU64::new(0)), Arc::new(Metrics::new(&[])));
        let seen = Arc::clone(&count_of);
        let lost = LostLines::new(move || seen.load(Ordering::Relaxed));
        let counting = tokio::spawn(count(lost, Arc::clone(&metrics)));
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
