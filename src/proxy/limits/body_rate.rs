//! The least rate of a body: `limits.body_rate`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::network::Network;
use super::slow_clients::{SlowClient, SlowClients};

/// By how many samples at least a client that sends nothing is judged.
const SAMPLES: u32 = 16;
/// No sample is longer, so that a client that is behind by a second is known to be.
const LONGEST_SAMPLE: Duration = Duration::from_secs(1);

/// The least rate that bodies must have.
#[derive(Clone)]
pub(crate) struct LeastRate {
    /// Bytes a second.
    pub bytes: u64,
    /// A slower body is accepted until its permit is needed.
    pub until_needed: bool,
    pub slow: Arc<SlowClients>,
    /// The client's network; `None`: a Unix socket.
    pub network: Option<Network>,
}

/// The progress of one body against the least rate. Its client may fall behind by a certain time,
/// and each byte gives back the time that it may take at the least rate. So no body is slower on
/// average, and a client may pause.
///
/// Time is counted in samples: one counts where nothing has come at its end. The length of a wait
/// is no measure: a byte that has come may lie there until the upstream has room for it.
pub(crate) struct UploadRate {
    least: LeastRate,
    sample: Duration,
    next: Instant,
    behind: Duration,
    /// How far it may be behind.
    patience: Duration,
    /// Listed among the slow clients, from its first sample that counts.
    slow: Option<SlowClient>,
}

impl UploadRate {
    /// `patience`: how far the client may fall behind.
    pub(crate) fn new(least: &LeastRate, patience: Duration) -> Self {
        let sample = (patience / SAMPLES).clamp(Duration::from_millis(1), LONGEST_SAMPLE);
        Self {
            least: least.clone(),
            sample,
            next: Instant::now() + sample,
            behind: Duration::ZERO,
            patience,
            slow: None,
        }
    }

    /// The least rate, in bytes a second.
    pub(crate) fn least(&self) -> u64 {
        self.least.bytes
    }

    /// When the next sample ends.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let least = self.least.bytes;
        let rest = Duration::from_secs(bytes % least) / u32::try_from(least).unwrap_or(u32::MAX);
        let earned = Duration::from_secs(bytes / least) + rest;
        self.behind = self.behind.saturating_sub(earned);
        self.publish(self.behind);
    }

    /// A sample has ended. `counts`: nothing had come, and the client was to send. `false`: it is
    /// too slow.
    pub(crate) fn sampled(&mut self, counts: bool) -> bool {
        self.next = Instant::now() + self.sample;
        if !counts {
            self.publish(Duration::ZERO);
            return true;
        }
        self.behind += self.sample;
        if self.slow.is_none() {
            self.slow = Some(self.least.slow.add(self.least.network));
        }
        self.publish(self.behind);
        self.least.until_needed || self.behind < self.patience
    }

    /// Cancelled when the upload has to make room; `None`: its client has not been waited for yet.
    pub(crate) fn crowded(&self) -> Option<CancellationToken> {
        self.slow.as_ref().map(SlowClient::crowded)
    }

    fn publish(&self, behind: Duration) {
        if let Some(slow) = &self.slow {
            slow.is_behind(behind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(16);

    fn rate() -> UploadRate {
        let least = LeastRate {
            bytes: 100,
            until_needed: false,
            slow: Arc::default(),
            network: None,
        };
        UploadRate::new(&least, PATIENCE)
    }

    /// How long a client that sends `bytes` at this interval is accepted. `None`: for an hour.
    fn borne(bytes: usize, every: Duration) -> Option<Duration> {
        let mut rate = rate();
        let (mut passed, mut since) = (Duration::ZERO, Duration::ZERO);
        while passed < Duration::from_hours(1) {
            passed += rate.sample;
            since += rate.sample;
            if since >= every {
                rate.received(bytes);
                since = Duration::ZERO;
            }
            if !rate.sampled(true) {
                return Some(passed);
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn the_average_counts_and_not_the_pause() {
        let second = Duration::from_secs(1);
        assert_eq!(borne(0, second), Some(PATIENCE), "one that sends nothing");
        assert_eq!(borne(100, second), None, "just enough");
        assert_eq!(borne(1500, 15 * second), None, "the same in bursts");
        let half = borne(50, second).expect("too slow");
        assert!((30..=34).contains(&half.as_secs()), "{half:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_may_pause_and_makes_room() {
        let mut rate = rate();
        rate.least.until_needed = true;
        assert!((0..1000).all(|_| rate.sampled(true)));
        let all = Arc::clone(&rate.least.slow);
        let crowded = rate.crowded().expect("it has been waited for");
        all.make_room(1, Instant::now());
        assert!(crowded.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_before_buys_no_longer_pause() {
        let mut rate = rate();
        rate.received(1 << 30);
        let samples = std::iter::repeat_with(|| rate.sampled(true));
        assert_eq!(samples.take_while(|kept_up| *kept_up).count(), 15);
        // While the rate does not count, the client cannot fall behind.
        assert!(rate.sampled(false));
        let crowded = rate.crowded().expect("it has been waited for");
        rate.least.slow.make_room(1, Instant::now());
        assert!(!crowded.is_cancelled());
    }
}
