//! The number of a thread's worker: each runtime that serves connections has one. Data that is kept
//! for each core is found by this number.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use crate::locked::locked;

/// The most copies.
const MOST_COPIES: usize = 64;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread's worker; 0 on all other threads.
pub(crate) fn index() -> usize {
    INDEX.get()
}

/// Makes this thread the worker with this number.
pub(crate) fn set_index(index: usize) {
    INDEX.set(index);
}

/// A value that every request reads and that rarely changes: a copy for each worker, so that no
/// core waits for a cache line that another one has just written.
#[derive(Debug)]
pub(crate) struct PerWorker<T>(Box<[OwnLine<T>]>);

/// On cache lines of its own. Short sections, never across an await.
#[derive(Debug)]
#[repr(align(128))]
struct OwnLine<T>(Mutex<T>);

impl<T> PerWorker<T> {
    pub(crate) fn new(mut make: impl FnMut() -> T) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let copies = (0..cores.min(MOST_COPIES)).map(|_| OwnLine(Mutex::new(make())));
        Self(copies.collect())
    }

    /// This worker's copy.
    pub(crate) fn own(&self) -> MutexGuard<'_, T> {
        self.of(index())
    }

    /// The copy of the worker with this number.
    pub(crate) fn of(&self, worker: usize) -> MutexGuard<'_, T> {
        locked(&self.0[worker % self.0.len()].0)
    }

    /// All copies, this worker's first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Mutex<T>> {
        let (before, own) = self.0.split_at(index() % self.0.len());
        own.iter().chain(before).map(|line| &line.0)
    }

    /// Changes one copy after the other: until this returns, workers may find different values.
    pub(crate) fn change(&self, mut change: impl FnMut(&mut T)) {
        for copy in &self.0 {
            change(&mut locked(&copy.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reaches_the_copies_of_all_workers() {
        let value = PerWorker::new(|| 1);
        value.change(|copy| *copy += 1);
        for worker in 0..200 {
            set_index(worker);
            assert_eq!(*value.own(), 2);
        }
        set_index(0);
    }
}
