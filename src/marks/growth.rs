//! [`Growth`]: how many resources get their first mark, in all and from one client. A mark is for
//! ever, and mostly each client of the data port can name resources.
//!
//! A place is taken before the store is asked, since nobody knows here which keys have a mark
//! there, and given back where it turns out that there was one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// For so many seconds' worth a client, or all of them, may be ahead of the rate: a start with many
/// resources comes in a burst.
const BURST_SECONDS: u32 = 10;
/// Beyond so many clients those that have used nothing lately are forgotten.
const MOST_ORIGINS: usize = 4096;

/// A client, by its network: an IPv4 address, or the /64 of an IPv6 one.
pub type Origin = [u8; 8];

/// New resources per second; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub all: Option<u32>,
    /// Of one client whose address is known.
    pub each: Option<u32>,
}

/// Which limit there was no room in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    All,
    /// That of the client that asked.
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

#[derive(Debug)]
struct Buckets {
    rates: Rates,
    all: Option<Bucket>,
    each: HashMap<Origin, Bucket>,
}

/// See the module's page.
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

    /// Other limits from now on.
    pub fn set(&self, rates: Rates) {
        self.with(|buckets| buckets.rates = rates);
    }

    /// Takes a place for a resource that may be new.
    ///
    /// # Errors
    ///
    /// Where there is none.
    pub fn take(&self, origin: Option<Origin>, now: Instant) -> Result<(), Full> {
        self.with(|buckets| {
            let Buckets { rates, all, each } = buckets;
            if let Some(rate) = rates.all
                && all
                    .get_or_insert_with(|| Bucket::new(rate, now))
                    .fill(rate, now)
                    < 1.0
            {
                return Err(Full::All);
            }
            if let (Some(rate), Some(origin)) = (rates.each, origin) {
                if each.len() >= MOST_ORIGINS && !each.contains_key(&origin) {
                    each.retain(|_, bucket| bucket.fill(rate, now) < most(rate));
                    if each.len() >= MOST_ORIGINS {
                        // So many at once are the other limit's business.
                        each.clear();
                    }
                }
                let own = each.entry(origin).or_insert_with(|| Bucket::new(rate, now));
                if own.fill(rate, now) < 1.0 {
                    return Err(Full::Each);
                }
                own.room -= 1.0;
            }
            if let (Some(_), Some(all)) = (rates.all, all) {
                all.room -= 1.0;
            }
            Ok(())
        })
    }

    /// Gives a place back that was not needed.
    pub fn give_back(&self, origin: Option<Origin>) {
        self.with(|buckets| {
            if let Some(all) = &mut buckets.all {
                all.room += 1.0;
            }
            if let Some(own) = origin.and_then(|origin| buckets.each.get_mut(&origin)) {
                own.room += 1.0;
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
        assert_eq!(taken(&growth, ONE, now), 70);
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
    async fn clients_are_forgotten() {
        let growth = Growth::new(Rates {
            all: None,
            each: Some(1),
        });
        let now = Instant::now();
        for number in 0..20_000_u64 {
            assert_eq!(growth.take(Some(number.to_be_bytes()), now), Ok(()));
        }
        assert!(growth.with(|buckets| buckets.each.len()) <= MOST_ORIGINS);
    }
}
