//! [`Growth`]: limits how many resources get their first mark, in all and from one client. A mark
//! is kept for ever, and usually every client of the data port can name resources.
//!
//! No client uses up the whole budget: its recent usage stays below three times what is left. So
//! one client leaves room for others, and many clients leave less, but some.
//!
//! Each request takes from the budget before the store is asked, because it is unknown here which
//! keys have a mark. If the resource had one, the request gives back what it took.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// How far a client, or all of them, may be ahead of the rate, in seconds. A start with many
/// resources comes in a burst.
const BURST_SECONDS: u32 = 10;
/// A client's recent usage is at most this multiple of what is left for all.
const SHARE: f64 = 3.0;
/// Beyond this number of clients, those without recent usage are forgotten.
const MAX_ORIGINS: usize = 4096;

/// A client, by its network: an IPv4 address, or the /64 of an IPv6 one.
pub type Origin = [u8; 8];

/// New resources per second; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub all: Option<u32>,
    /// Of one client whose address is known.
    pub each: Option<u32>,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    All,
    /// The limit of the client that asked.
    Each,
}

#[derive(Debug)]
struct Bucket {
    room: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: u32, now: Instant) -> Self {
        Self {
            room: most(rate),
            at: now,
        }
    }

    fn fill(&mut self, rate: u32, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.room = (self.room + passed * f64::from(rate)).min(most(rate));
        self.room
    }
}

fn most(rate: u32) -> f64 {
    f64::from(rate) * f64::from(BURST_SECONDS)
}

/// One client's.
#[derive(Debug)]
struct OriginQuota {
    bucket: Option<Bucket>,
    /// The recent usage: half of it is forgotten after seven seconds.
    lately: f64,
    at: Instant,
}

impl OriginQuota {
    const fn new(now: Instant) -> Self {
        Self {
            bucket: None,
            lately: 0.0,
            at: now,
        }
    }

    fn lately(&mut self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.lately *= (-passed / f64::from(BURST_SECONDS)).exp();
        self.lately
    }
}

#[derive(Debug)]
struct Buckets {
    rates: Rates,
    all: Option<Bucket>,
    each: HashMap<Origin, OriginQuota>,
}

impl Buckets {
    /// The quota of a client.
    fn own(&mut self, origin: Origin, now: Instant) -> &mut OriginQuota {
        if self.each.len() >= MAX_ORIGINS && !self.each.contains_key(&origin) {
            let rate = self.rates.each;
            self.each.retain(|_, own| {
                let full = |bucket: &mut Bucket| {
                    rate.is_none_or(|rate| bucket.fill(rate, now) >= most(rate))
                };
                own.lately(now) >= 1.0 || !own.bucket.as_mut().is_none_or(full)
            });
            if self.each.len() >= MAX_ORIGINS {
                // With this many active clients, the limit over all of them is the bound.
                self.each.clear();
            }
        }
        self.each
            .entry(origin)
            .or_insert_with(|| OriginQuota::new(now))
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Growth {
    /// Short sections, never across an await.
    buckets: Mutex<Buckets>,
}

impl Growth {
    #[must_use]
    pub fn new(rates: Rates) -> Self {
        Self {
            buckets: Mutex::new(Buckets {
                rates,
                all: None,
                each: HashMap::new(),
            }),
        }
    }

    /// Changes the limits.
    pub fn set(&self, rates: Rates) {
        self.with(|buckets| buckets.rates = rates);
    }

    /// Takes from the budget for a resource that may be new.
    ///
    /// # Errors
    ///
    /// A limit is reached.
    pub fn take(&self, origin: Option<Origin>, now: Instant) -> Result<(), Full> {
        self.with(|buckets| {
            let rates = buckets.rates;
            let mut left = None;
            if let Some(rate) = rates.all {
                let all = buckets.all.get_or_insert_with(|| Bucket::new(rate, now));
                let room = all.fill(rate, now);
                if room < 1.0 {
                    return Err(Full::All);
                }
                left = Some(room);
            }
            if let Some(origin) = origin
                && (left.is_some() || rates.each.is_some())
            {
                let own = buckets.own(origin, now);
                if left.is_some_and(|left| own.lately(now) >= SHARE * left) {
                    return Err(Full::Each);
                }
                if let Some(rate) = rates.each {
                    let bucket = own.bucket.get_or_insert_with(|| Bucket::new(rate, now));
                    if bucket.fill(rate, now) < 1.0 {
                        return Err(Full::Each);
                    }
                    bucket.room -= 1.0;
                }
                own.lately += 1.0;
            }
            if let (Some(_), Some(all)) = (rates.all, &mut buckets.all) {
                all.room -= 1.0;
            }
            Ok(())
        })
    }

    /// Gives back what was taken and not needed.
    pub fn give_back(&self, origin: Option<Origin>) {
        self.with(|buckets| {
            if let Some(all) = &mut buckets.all {
                all.room += 1.0;
            }
            if let Some(own) = origin.and_then(|origin| buckets.each.get_mut(&origin)) {
                own.lately = (own.lately - 1.0).max(0.0);
                if let Some(bucket) = &mut own.bucket {
                    bucket.room += 1.0;
                }
            }
        });
    }

    fn with<R>(&self, f: impl FnOnce(&mut Buckets) -> R) -> R {
        f(&mut self.buckets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: Option<Origin> = Some([1; 8]);
    const OTHER: Option<Origin> = Some([2; 8]);

    fn taken(growth: &Growth, origin: Option<Origin>, now: Instant) -> usize {
        (0..1000)
            .take_while(|_| growth.take(origin, now).is_ok())
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
        let growth = Growth::new(Rates {
            all: Some(7),
            each: None,
        });
        let now = Instant::now();
        assert_eq!(taken(&growth, None, now), 70);
        assert_eq!(growth.take(OTHER, now), Err(Full::All));
        assert_eq!(taken(&growth, None, now + Duration::from_secs(3)), 21);
        assert_eq!(
            taken(&growth, None, now + Duration::from_hours(1)),
            70,
            "no more than the burst is saved up"
        );
        growth.give_back(None);
        assert_eq!(taken(&growth, None, now + Duration::from_hours(1)), 1);
        growth.set(Rates::default());
        assert_eq!(taken(&growth, None, now), 1000, "no limit");
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_leaves_room_for_the_others() {
        let growth = Growth::new(Rates {
            all: Some(20),
            each: Some(5),
        });
        let now = Instant::now();
        assert_eq!(taken(&growth, ONE, now), 50);
        assert_eq!(growth.take(ONE, now), Err(Full::Each));
        assert_eq!(
            taken(&growth, OTHER, now),
            50,
            "what is refused takes no place of the others'"
        );
        growth.give_back(OTHER);
        assert_eq!(growth.take(ONE, now), Err(Full::Each));
        assert_eq!(growth.take(OTHER, now), Ok(()));
        assert_eq!(
            taken(&growth, None, now),
            100,
            "without an address only the total counts"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_client_uses_up_what_is_there_for_all() {
        let growth = Growth::new(Rates {
            all: Some(20),
            each: None,
        });
        let mut now = Instant::now();
        assert_eq!(taken(&growth, ONE, now), 150);
        assert_eq!(growth.take(ONE, now), Err(Full::Each));
        // Two that take all they get: one that takes little is never refused.
        let (mut one, mut other) = (0, 0);
        for round in 0..600 {
            now += Duration::from_millis(100);
            one += taken(&growth, ONE, now);
            other += taken(&growth, OTHER, now);
            if round % 5 == 0 {
                assert_eq!(growth.take(Some([3; 8]), now), Ok(()));
            }
        }
        // It has two a second, and they share the rest.
        assert!((400..650).contains(&one), "{one}");
        assert!((400..650).contains(&other), "{other}");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_forgotten() {
        let growth = Growth::new(Rates {
            all: None,
            each: Some(1),
        });
        let now = Instant::now();
        for number in 0..20_000_u64 {
            assert_eq!(growth.take(Some(number.to_be_bytes()), now), Ok(()));
        }
        assert!(growth.with(|buckets| buckets.each.len()) <= MAX_ORIGINS);
    }
}
