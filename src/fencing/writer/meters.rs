//! [`Meters`]: the metrics of the writer, and whether the store answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use crate::store::StoreError;

/// The metrics of the writer.
#[derive(Clone, Debug)]
pub struct Meters {
    /// Resources that got their first mark from this instance.
    pub new_resources: IntCounter,
    pub batch_size: Histogram,
    pub commit_seconds: Histogram,
    /// Label: kind.
    pub errors: IntCounterVec,
    pub regressions: IntCounter,
    /// 1 while the store answers.
    pub up: IntGauge,
    pub trouble: Arc<Trouble>,
}

/// Why the store is not up, for people.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<Option<Arc<str>>>);

impl Trouble {
    #[must_use]
    pub fn why(&self) -> Option<Arc<str>> {
        self.of().clone()
    }

    fn of(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meters {
    pub(crate) fn failed(&self, error: &StoreError) {
        self.errors.with_label_values(&[error.kind()]).inc();
        if !matches!(error, StoreError::LockTimeout(_)) {
            self.up.set(0);
            *self.trouble.of() = Some(error.to_string().into());
        }
    }

    pub(crate) fn answered(&self) {
        if self.up.get() != 1 {
            *self.trouble.of() = None;
            self.up.set(1);
        }
    }
}
