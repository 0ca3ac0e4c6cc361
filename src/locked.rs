//! [`locked`]: a mutex whose sections are short, and leave nothing half done if one of them panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
