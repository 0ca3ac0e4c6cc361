//! [`Growth`]: limits how many resources get their first mark (`limits.new_resources`). A mark is kept
//! until an operator prunes it, and usually every client of the data port can name resources.
//!
//! It is unknown here which keys have a mark. So each request for a key that may be new takes from
//! the bucket before the store is asked, and gives back what it took if the resource had a mark.

use std::sync::Mutex;

use tokio::time::Instant;

use crate::locked::locked;

/// How many seconds' worth the bucket holds. A start with many resources comes in a burst.
const BURST_SECONDS: u32 = 10;

/// A token bucket. See the module's documentation.
#[derive(Debug)]
pub struct Growth(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// New resources per second; `None`: no limit.
    rate: Option<u32>,
    room: f64,
    at: Instant,
}

impl Growth {
    #[must_use]
    pub fn new(rate: Option<u32>) -> Self {
        Self(Mutex::new(Bucket {
            rate,
            room: f64::INFINITY,
            at: Instant::now(),
        }))
    }

    /// Changes the limit. What was unlimited begins with a full bucket.
    pub fn set(&self, rate: Option<u32>) {
        self.with(|bucket| bucket.rate = rate);
    }

    /// Takes a place for a resource that may be new. `false`: there is none.
    #[must_use]
    pub fn take(&self) -> bool {
        self.with(|bucket| {
            let free = bucket.room >= 1.0;
            if free {
                bucket.room -= 1.0;
            }
            free
        })
    }

    /// Returns true if a place is free.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.with(|bucket| bucket.room >= 1.0)
    }

    /// Gives back a place that was not needed.
    pub fn give_back(&self) {
        self.with(|bucket| bucket.room += 1.0);
    }

    /// A short section, never across an await.
    fn with<R>(&self, f: impl FnOnce(&mut Bucket) -> R) -> R {
        let mut bucket = locked(&self.0);
        let now = Instant::now();
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.at = now;
        bucket.room = bucket.rate.map_or(f64::INFINITY, |rate| {
            let most = f64::from(rate) * f64::from(BURST_SECONDS);
            (bucket.room + passed * f64::from(rate)).min(most)
        });
        f(&mut bucket)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn taken(growth: &Growth) -> usize {
        (0..1000).take_while(|_| growth.take()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
        let growth = Growth::new(Some(7));
        assert_eq!(taken(&growth), 70);
        assert!(!growth.has_room());
        advance(Duration::from_secs(3)).await;
        assert_eq!(taken(&growth), 21);
        advance(Duration::from_hours(1)).await;
        assert_eq!(taken(&growth), 70, "no more than the burst is saved up");
        growth.give_back();
        assert_eq!(taken(&growth), 1);
        growth.set(None);
        assert_eq!(taken(&growth), 1000, "no limit");
        growth.set(Some(2));
        assert_eq!(taken(&growth), 20);
    }
}
