//! [`StoreMetrics`]: the series of the store's side, and why the store does not answer.

use std::sync::{Arc, Mutex};

use super::families::Families;
use crate::locked::locked;
use crate::store::StoreError;

/// The series that the store's side keeps, whatever the store is made of.
#[derive(Debug)]
pub struct StoreMetrics {
    pub series: Arc<Families>,
    /// The latest error, while the store does not answer. Short sections, never across an await.
    trouble: Mutex<Option<Arc<str>>>,
}

impl StoreMetrics {
    pub(super) fn new(series: Arc<Families>) -> Self {
        for kind in StoreError::KINDS {
            series.store_errors.with_label_values(&[kind]);
        }
        Self {
            series,
            trouble: Mutex::default(),
        }
    }

    /// A call has failed. A lock timeout says nothing about the store itself.
    pub fn failed(&self, error: &StoreError) {
        let errors = &self.series.store_errors;
        errors.with_label_values(&[error.kind()]).inc();
        if !matches!(error, StoreError::LockTimeout(_)) {
            self.series.store_up.set(0);
            *locked(&self.trouble) = Some(error.to_string().into());
        }
    }

    /// A call has been answered.
    pub fn answered(&self) {
        if self.series.store_up.get() != 1 {
            *locked(&self.trouble) = None;
            self.series.store_up.set(1);
        }
    }

    /// Returns true if the store answered last, and otherwise why not.
    #[must_use]
    pub fn status(&self) -> (bool, Option<Arc<str>>) {
        let trouble = locked(&self.trouble);
        (self.series.store_up.get() == 1, trouble.clone())
    }
}
