//! How many distinct resources were refused lately, in a fixed amount of memory.
//!
//! A set of the keys themselves would grow with whatever a client sends. A `HyperLogLog` (Flajolet
//! et al. 2007) per slice of time does not: 2,048 registers of one byte, a standard error of 2.3 %,
//! and near to exact for the few dozen that matter to a person. The window moves by dropping the
//! oldest slice.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The length of one slice of the window.
const SLICE: Duration = Duration::from_secs(30);
/// The slices kept: ten whole ones (5 minutes) and the one that runs now.
const SLICES: usize = 11;
/// The bits of the hash that choose a register.
const INDEX_BITS: u32 = 11;
const REGISTERS: usize = 1 << INDEX_BITS;

/// Counts the distinct keys recorded in the last 5 minutes (to 5 minutes 30, since slices are
/// dropped whole).
#[derive(Debug)]
pub struct RecentDistinct<S = RandomState> {
    /// Keyed at random by default, so that no client can choose keys that count for many.
    hasher: S,
    /// Held for a hash's worth of work; never across an await.
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    /// When slice 0 began: the first time recorded.
    base: Option<Instant>,
    slices: Vec<Slice>,
}

#[derive(Clone, Debug)]
struct Slice {
    /// Which slice since `base` the registers belong to.
    number: u64,
    registers: [u8; REGISTERS],
}

impl Default for RecentDistinct {
    fn default() -> Self {
        Self::with_hasher(RandomState::new())
    }
}

impl<S: BuildHasher> RecentDistinct<S> {
    /// An empty window.
    #[must_use]
    pub fn with_hasher(hasher: S) -> Self {
        let slices = vec![
            Slice {
                number: 0,
                registers: [0; REGISTERS]
            };
            SLICES
        ];
        Self {
            hasher,
            window: Mutex::new(Window { base: None, slices }),
        }
    }

    /// Notes a key at a time.
    pub fn record(&self, key: &str, now: Instant) {
        let hash = self.hasher.hash_one(key);
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let base = *window.base.get_or_insert(now);
        let number = slice_number(base, now);
        let slice = &mut window.slices[place(number)];
        if slice.number < number {
            *slice = Slice {
                number,
                registers: [0; REGISTERS],
            };
        }
        // A thread that was held up for a whole window would write into a newer slice; its key is
        // out of the window anyway.
        if slice.number == number {
            let (register, rank) = register_and_rank(hash);
            slice.registers[register] = slice.registers[register].max(rank);
        }
    }

    /// The estimate as of a time.
    #[must_use]
    pub fn estimate(&self, now: Instant) -> u64 {
        let mut merged = [0_u8; REGISTERS];
        {
            let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(base) = window.base else { return 0 };
            let current = slice_number(base, now);
            for slice in &window.slices {
                if current.saturating_sub(slice.number) < SLICES as u64 {
                    for (into, &from) in merged.iter_mut().zip(&slice.registers) {
                        *into = (*into).max(from);
                    }
                }
            }
        }
        estimate_of(&merged)
    }
}

fn slice_number(base: Instant, now: Instant) -> u64 {
    now.saturating_duration_since(base).as_secs() / SLICE.as_secs()
}

fn place(number: u64) -> usize {
    usize::try_from(number % SLICES as u64).expect("a remainder of 11 fits")
}

/// The register that a hash falls into, and one more than the zeros that its other bits begin with.
fn register_and_rank(hash: u64) -> (usize, u8) {
    let register = usize::try_from(hash >> (64 - INDEX_BITS)).expect("11 bits fit");
    // The bit set at the end bounds the rank by 54 and stands for "no further bits".
    let rest = (hash << INDEX_BITS) | (1 << (INDEX_BITS - 1));
    let rank = u8::try_from(rest.leading_zeros() + 1).expect("at most 54");
    (register, rank)
}

/// The estimator of the paper, with linear counting where registers are still empty. No correction
/// for large numbers: a 64-bit hash does not run out.
fn estimate_of(registers: &[u8; REGISTERS]) -> u64 {
    let m = f64::from(1_u32 << INDEX_BITS);
    let alpha = 0.7213 / (1.0 + 1.079 / m);
    let sum: f64 = registers
        .iter()
        .map(|&rank| (-f64::from(rank)).exp2())
        .sum();
    let raw = alpha * m * m / sum;
    let filled = registers.iter().filter(|&&rank| rank > 0).count();
    let empty = REGISTERS - filled;
    let estimate = if empty > 0 && raw <= 2.5 * m {
        let empty = f64::from(u32::try_from(empty).expect("at most 2,048"));
        m * (m / empty).ln()
    } else {
        raw
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and `as` saturates"
    )]
    let rounded = estimate.round() as u64;
    rounded
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;

    type Fixed = BuildHasherDefault<DefaultHasher>;

    fn sketch() -> RecentDistinct<Fixed> {
        RecentDistinct::with_hasher(Fixed::default())
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn empty_is_zero() {
        assert_eq!(sketch().estimate(Instant::now()), 0);
    }

    #[test]
    fn few_are_counted_nearly_exactly_and_once() {
        let (sketch, now) = (sketch(), Instant::now());
        for _ in 0..3 {
            for n in 0..20 {
                sketch.record(&format!("order:{n}"), now);
            }
        }
        let estimate = sketch.estimate(now);
        assert!((19..=21).contains(&estimate), "{estimate}");
    }

    #[test]
    fn many_are_within_a_tenth() {
        for size in [1_000_u64, 5_000, 20_000, 100_000] {
            let (sketch, now) = (sketch(), Instant::now());
            for n in 0..size {
                sketch.record(&format!("order:{n}"), now);
            }
            let estimate = sketch.estimate(now);
            assert!(
                estimate.abs_diff(size) * 10 <= size,
                "{size} estimated as {estimate}"
            );
        }
    }

    #[test]
    fn a_key_leaves_after_five_minutes_and_not_before() {
        let (sketch, start) = (sketch(), Instant::now());
        sketch.record("a", start);
        sketch.record("b", after(start, 29));
        assert_eq!(sketch.estimate(after(start, 329)), 2);
        assert_eq!(sketch.estimate(after(start, 330)), 0);
    }

    #[test]
    fn slices_move_one_by_one() {
        let (sketch, start) = (sketch(), Instant::now());
        for n in 0..100 {
            sketch.record(&format!("order:{n}"), after(start, n * 30));
        }
        // The slice that runs and the ten before it.
        assert_eq!(sketch.estimate(after(start, 99 * 30)), 11);
        assert_eq!(sketch.estimate(after(start, 104 * 30)), 6);
    }

    #[test]
    fn an_old_time_does_not_wipe_a_newer_slice() {
        let (sketch, start) = (sketch(), Instant::now());
        sketch.record("base", start);
        sketch.record("new", after(start, 330));
        sketch.record("late", start);
        assert_eq!(sketch.estimate(after(start, 330)), 1);
    }

    #[test]
    fn ranks_stay_in_bounds() {
        assert_eq!(register_and_rank(0), (0, 54));
        assert_eq!(register_and_rank(u64::MAX), (REGISTERS - 1, 1));
    }
}
