//! Counts what each holder has: in-flight permits by client network, for example.

use std::collections::HashMap;
use std::hash::Hash;
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
        })
    }
}

/// One of what a holder has.
#[must_use = "it counts until this is dropped"]
#[derive(Debug)]
pub(crate) struct CountGuard<K: Copy + Eq + Hash> {
    counts: Arc<Counts<K>>,
    holder: K,
}

impl<K: Copy + Eq + Hash> CountGuard<K> {
    pub(crate) const fn holder(&self) -> K {
        self.holder
    }
}

impl<K: Copy + Eq + Hash> Drop for CountGuard<K> {
    fn drop(&mut self) {
        let mut held = self.counts.held();
        if let Some(own) = held.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.holder);
            }
        }
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
        let third = take('a');
        assert!(third.is_some(), "one of two is given back");
        assert_eq!(counts.of('a'), 2);
        drop((second, third));
        assert!(counts.is_empty());
    }
}
