//! The reaper: deletes the epochs of dead instances once their work has settled.
//!
//! It runs beside the renewals, which nothing may delay, and step by step: an instance may have had
//! hundreds of thousands of epochs open. It stays with one instance while there is more to delete,
//! and its pauses leave the store some of its time. Resources at which a request waits or was
//! refused go first. The latest read of the instances names the ones to reap; the statement that
//! deletes checks again that the instance is dead.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Membership;
use crate::store::{Cursor, InstanceId, StoreError};
use crate::throttle::Throttle;

/// The longest pause between two steps, and the pause after all were tried.
const PAUSE: Duration = Duration::from_secs(1);
/// The most resources that one step puts first.
const MAX_FIRST: usize = 1024;
/// How often all open epochs are searched for resources at which a request was refused.
const REFUSED: Duration = Duration::from_secs(1);

/// The dead instances to reap, by the latest read of the instances.
#[derive(Debug)]
pub struct ReapQueue {
    /// Dead, and settled. Short sections, never across an await.
    settled: Mutex<Vec<InstanceId>>,
    bell: Notify,
    /// Throttles the log lines of failed steps.
    undone: Throttle,
    /// Throttles the log lines of instances that could not be declared dead.
    pub(super) undeclared: Throttle,
}

impl Default for ReapQueue {
    fn default() -> Self {
        Self {
            settled: Mutex::default(),
            bell: Notify::new(),
            undone: Throttle::of_repeats(),
            undeclared: Throttle::of_repeats(),
        }
    }
}

/// How far the reaping of one instance has come.
#[derive(Debug, Default)]
pub(super) struct ReapProgress {
    after: Option<Cursor>,
    freed: usize,
    /// When resources with refused requests were last searched for.
    looked: Option<Instant>,
}

impl ReapQueue {
    /// Sets the instances to reap.
    pub(super) fn settled(&self, settled: Vec<InstanceId>) {
        *self.lock() = settled;
        self.bell.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<InstanceId>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one(&self, chance: u128) -> Option<InstanceId> {
        let settled = self.lock();
        let at = chance.checked_rem(settled.len() as u128)?;
        settled
            .get(usize::try_from(at).unwrap_or_default())
            .cloned()
    }

    fn names(&self, id: &InstanceId) -> bool {
        self.lock().contains(id)
    }

    fn done(&self, id: &InstanceId) {
        self.lock().retain(|other| other != id);
    }
}

impl Membership {
    pub(super) async fn reaping(&self) {
        let mut progress_of = HashMap::new();
        loop {
            if self.reap_one(&mut progress_of).await.is_none() {
                self.reap_queue.bell.notified().await;
            }
        }
    }

    /// Reaps one settled instance, at random, so that one which cannot be reaped delays no other.
    /// `None`: there is none.
    pub(super) async fn reap_one(
        &self,
        progress_of: &mut HashMap<InstanceId, ReapProgress>,
    ) -> Option<()> {
        let id = self.reap_queue.one((self.terms.random)())?;
        progress_of.retain(|id, _| self.reap_queue.names(id));
        let progress = progress_of.entry(id.clone()).or_default();
        while self.reap_queue.names(&id) {
            let began = Instant::now();
            match self.reap_some(&id, progress).await {
                Ok(true) => {}
                Ok(false) => {
                    self.reap_queue.done(&id);
                    // A read that was in progress meanwhile may name it once more.
                    if progress.freed > 0 {
                        tracing::info!(instance = %id, resources = progress.freed,
                            "a dead instance's work has settled");
                    }
                    break;
                }
                Err(error) => {
                    self.metrics.failed(&error);
                    let now = Instant::now();
                    if let Some(left_out) = self.reap_queue.undone.say_of(error.kind(), now) {
                        tracing::warn!(instance = %id, %error, left_out,
                            "a dead instance's epochs could not be deleted yet");
                    }
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
            // A store that is not shared has one connection for this and for requests.
            let share = if self.store.shared() { 2 } else { 1 };
            tokio::time::sleep(began.elapsed().min(PAUSE) / share).await;
        }
        Some(())
    }

    /// One step. Returns whether there is more.
    async fn reap_some(
        &self,
        id: &InstanceId,
        progress: &mut ReapProgress,
    ) -> Result<bool, StoreError> {
        let mut first = self.epoch_table.waiting_for(id);
        first.truncate(MAX_FIRST);
        let now = Instant::now();
        if progress
            .looked
            .is_none_or(|at| now.duration_since(at) >= REFUSED)
        {
            progress.looked = Some(now);
            first.extend(self.epoch_table.refused_for(id, MAX_FIRST - first.len()));
        }
        let step = self.store.bury(id, &first, progress.after.as_ref());
        let buried = self.bounded(step).await?;
        progress.freed += buried.freed.len();
        progress.after = buried.next;
        for key in buried.freed {
            if self.epoch_table.waits_for_others(&key) {
                self.writer.reread(key);
            }
        }
        Ok(progress.after.is_some())
    }
}
