//! Which of the runtimes that serve connections a thread belongs to. What is kept for each core is
//! found by this number.

use std::cell::Cell;

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
