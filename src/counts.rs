//! Counts what each holder has: in-flight permits by client network, for example.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The count of each holder; a holder without any has no entry.
#[derive(Debug)]
pub(crate) struct Counts<K>(
    /// Locked to read and to count, never across an await.
    Mutex<HashMap<K, usize>>,
);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash> Counts<K> {
    fn held(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The count of `holder`.
    pub(crate) fn of(&self, holder: K) -> usize {
        self.held().get(&holder).copied().unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// Counts one more for `holder`, if `gives` allows it for the number that it has.
    pub(crate) fn take(
        self: &Arc<Self>,
        holder: K,
        gives: impl FnOnce(usize) -> bool,
    ) -> Option<CountGuard<K>> {
        let mut held = self.held();
        let own = held.get(&holder).copied().unwrap_or_default();
        if !gives(own) {
            return None;
        }
        held.insert(holder, own + 1);
        drop(held);
        Some(CountGuard {
            counts: Arc::clone(self),
            holder,
            is_one: AtomicBool::new(true),
        })
    }
}

/// One of what a holder has.
#[must_use = "it counts until this is dropped"]
#[derive(Debug)]
pub(crate) struct CountGuard<K: Copy + Eq + Hash> {
    counts: Arc<Counts<K>>,
    holder: K,
    is_one: AtomicBool,
}

impl<K: Copy + Eq + Hash> CountGuard<K> {
    pub(crate) const fn holder(&self) -> K {
        self.holder
    }

    /// Stops counting this one, or counts it again.
    pub(crate) fn count(&self, counted: bool) {
        let mut held = self.counts.held();
        if self.is_one.swap(counted, Ordering::Relaxed) == counted {
            return;
        }
        let own = held.entry(self.holder).or_default();
        *own = if counted { *own + 1 } else { *own - 1 };
        if *own == 0 {
            held.remove(&self.holder);
        }
    }
}

impl<K: Copy + Eq + Hash> Drop for CountGuard<K> {
    fn drop(&mut self) {
        self.count(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_counts_no_more_and_leaves_no_entry() {
        let counts: Arc<Counts<char>> = Arc::default();
        let take = |holder| counts.take(holder, |own| own < 2);
        let (first, second) = (take('a'), take('a'));
        assert!(first.is_some() && second.is_some());
        assert!(take('a').is_none());
        assert!(take('b').is_some());
        drop(first);
        let third = take('a').expect("one of two is given back");
        // One that counts no more leaves room, and may count again.
        third.count(false);
        let fourth = take('a');
        assert!(fourth.is_some());
        third.count(true);
        assert_eq!(counts.of('a'), 3);
        assert!(take('a').is_none());
        third.count(false);
        drop((second, third, fourth));
        assert!(counts.is_empty());
    }
}
