//! Which worker a thread is: what is kept per core is found by this number.

use std::cell::Cell;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread's worker; 0 where there is one, or none.
#[must_use]
pub fn index() -> usize {
    INDEX.get()
}

/// Makes this thread the worker with that number.
pub fn set_index(index: usize) {
    INDEX.set(index);
}
