//! The number of distinct resources that were refused in the last 5 minutes: exact up to 1,000, and
//! 1,000 beyond.
//!
//! A set of all refused keys would grow with everything that clients send. This one is bounded:
//! when it is full, a new key replaces the one refused longest ago. So it never counts too many.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::locked::locked;

/// A refused key counts for this long.
const WINDOW: Duration = Duration::from_mins(5);
/// The most keys that are counted. The alert on a reset token source fires at 20.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(1_000).expect("not zero");

/// Counts the distinct keys recorded in the last 5 minutes, up to 1,000.
#[derive(Debug)]
pub struct RecentDistinct {
    /// Keyed at random, so that no client can choose keys that count as one.
    hasher: RandomState,
    /// The last refusal of each key, by the key's hash: 8 bytes in place of up to 1,024, and two of
    /// 1,000 keys share one about once in 10^13. Held for a lookup; never across an await.
    refused: Mutex<LruCache<u64, Instant>>,
}

impl Default for RecentDistinct {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            refused: Mutex::new(LruCache::new(MAX_KEYS)),
        }
    }
}

impl RecentDistinct {
    /// Records a key, refused at this time.
    pub fn record(&self, key: &str, now: Instant) {
        let hash = self.hasher.hash_one(key);
        let mut refused = locked(&self.refused);
        refused.put(hash, now);
    }

    /// The number of keys as of a time. At 1,000 there may be more.
    #[must_use]
    pub fn count(&self, now: Instant) -> usize {
        let mut refused = locked(&self.refused);
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= WINDOW;
        while refused.peek_lru().is_some_and(|(_, at)| is_old(at)) {
            refused.pop_lru();
        }
        refused.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn empty_is_zero() {
        assert_eq!(RecentDistinct::default().count(Instant::now()), 0);
    }

    #[test]
    fn each_key_counts_once() {
        let (distinct, now) = (RecentDistinct::default(), Instant::now());
        for _ in 0..3 {
            for n in 0..999 {
                distinct.record(&format!("order:{n}"), now);
            }
        }
        assert_eq!(distinct.count(now), 999);
    }

    #[test]
    fn beyond_the_bound_the_count_stays_at_the_bound() {
        let (distinct, start) = (RecentDistinct::default(), Instant::now());
        for n in 0..5_000 {
            distinct.record(&format!("order:{n}"), start);
        }
        assert_eq!(distinct.count(start), 1_000);
        // The keys that were forgotten are those refused longest ago.
        for n in 0..600 {
            distinct.record(&format!("invoice:{n}"), after(start, 200));
        }
        assert_eq!(distinct.count(after(start, 299)), 1_000);
        assert_eq!(distinct.count(after(start, 300)), 600);
    }

    #[test]
    fn a_key_leaves_five_minutes_after_its_last_refusal() {
        let (distinct, start) = (RecentDistinct::default(), Instant::now());
        distinct.record("a", start);
        distinct.record("b", after(start, 1));
        distinct.record("a", after(start, 29));
        assert_eq!(distinct.count(after(start, 300)), 2);
        assert_eq!(distinct.count(after(start, 301)), 1);
        assert_eq!(distinct.count(after(start, 328)), 1);
        assert_eq!(distinct.count(after(start, 329)), 0);
    }
}
