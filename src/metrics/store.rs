//! [`StoreMetrics`]: the series of the store's side, and why the store does not answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge};

use super::families::Families;
use crate::store::StoreError;

/// The series that the store's side keeps, whatever the store is made of.
#[derive(Debug)]
pub struct StoreMetrics {
    /// Resources that got their first mark from this instance.
    pub new_resources: IntCounter,
    pub batch_size: Histogram,
    pub commit_seconds: Histogram,
    /// Label: kind.
    errors: IntCounterVec,
    pub regressions: IntCounter,
    pub open_epochs: IntGauge,
    pub unknown_outcomes: IntGauge,
    pub route_table_mismatch: IntGauge,
    lease_remaining: Gauge,
    /// 1 while the store answers.
    up: IntGauge,
    /// The latest error, while the store does not answer. Short sections, never across an await.
    trouble: Mutex<Option<Arc<str>>>,
}

impl StoreMetrics {
    pub(super) fn new(families: &Families) -> Self {
        for kind in StoreError::KINDS {
            families.store_errors.with_label_values(&[kind]);
        }
        Self {
            new_resources: families.new_resources.clone(),
            batch_size: families.store_batch_size.clone(),
            commit_seconds: families.store_commit_seconds.clone(),
            errors: families.store_errors.clone(),
            regressions: families.mark_regressions.clone(),
            open_epochs: families.open_epochs.clone(),
            unknown_outcomes: families.unknown_outcomes.clone(),
            route_table_mismatch: families.route_table_mismatch.clone(),
            lease_remaining: families.lease_remaining_seconds.clone(),
            up: families.store_up.clone(),
            trouble: Mutex::default(),
        }
    }

    /// A call has failed. A lock timeout says nothing about the store itself.
    pub fn failed(&self, error: &StoreError) {
        self.errors.with_label_values(&[error.kind()]).inc();
        if !matches!(error, StoreError::LockTimeout(_)) {
            self.up.set(0);
            self.set_trouble(Some(error.to_string().into()));
        }
    }

    /// The store could not be reached yet. The probe says so without a reason.
    pub fn unreached(&self, error: &StoreError) {
        self.errors.with_label_values(&[error.kind()]).inc();
        self.up.set(0);
    }

    /// A call has been answered.
    pub fn answered(&self) {
        if self.up.get() != 1 {
            self.set_trouble(None);
            self.up.set(1);
        }
    }

    /// Returns true if the store answered last, and otherwise why not.
    #[must_use]
    pub fn status(&self) -> (bool, Option<Arc<str>>) {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        (self.up.get() == 1, trouble.clone())
    }

    /// Sets the time left of the lease; `None`: there is nothing to renew any more.
    pub fn set_lease_remaining(&self, left: Option<Duration>) {
        let seconds = left.map_or(f64::INFINITY, |left| left.as_secs_f64());
        self.lease_remaining.set(seconds);
    }

    fn set_trouble(&self, why: Option<Arc<str>>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}
