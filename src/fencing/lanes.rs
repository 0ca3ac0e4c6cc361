//! The lanes: tasks that send the statements of requests to the store, many requests in each (group
//! commit).
//!
//! Each lane has one statement on its way at a time. While a large statement commits, resources that
//! are due at any lane gather. A main lane runs on the worker of its number, if there is one. Where
//! there are as many lanes as workers, a lone request waits for no other thread.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::Fencing;
use crate::store::{Lane, Notification, StoreError};

/// The pause after a row that another session has locked was tried by itself.
const LOCKED: Duration = Duration::from_millis(50);

impl Fencing {
    /// Starts all lanes: each main one on the runtime of its worker if there are as many, the
    /// others here.
    pub(super) fn start_lanes(self: &Arc<Self>, workers: &[Handle]) -> JoinSet<()> {
        let mut lanes = JoinSet::new();
        let main = (0..self.epoch_table.lanes()).map(Lane::Main);
        for lane in main.chain([Lane::Aside]) {
            let task = Arc::clone(self).run_lane(lane);
            let worker = match lane {
                Lane::Main(index) => workers.get(index),
                Lane::Aside => None,
            };
            match worker {
                Some(worker) => lanes.spawn_on(task, worker),
                None => lanes.spawn(task),
            };
        }
        lanes
    }

    /// Runs until it is dropped.
    async fn run_lane(self: Arc<Self>, lane: Lane) {
        loop {
            self.epoch_table.due(lane).await;
            self.turn(lane).await;
        }
    }

    /// Sends the lane's next statement, if there is one, and enters its answer.
    pub(super) async fn turn(&self, lane: Lane) {
        let by = self.lease.identity();
        let incarnation = by.incarnation;
        let holds = || self.lease.holds(incarnation);
        let (composed, answers) = self.epoch_table.compose(lane, by, holds, Instant::now());
        answers.deliver();
        let Some(composed) = composed else {
            return;
        };
        let batch = composed.batch();
        #[allow(clippy::cast_precision_loss, reason = "a batch is small")]
        let size = batch.asks.len() as f64;
        let series = &self.metrics.series;
        series.store_batch_size.observe(size);
        let timer = series.store_commit_seconds.start_timer();
        let result = self.store.advance(lane, batch).await;
        let locked = matches!(result, Err(StoreError::LockTimeout(_)));
        match &result {
            Ok(_) => {
                timer.observe_duration();
                self.metrics.store_answered();
            }
            Err(error) => {
                timer.stop_and_discard();
                self.metrics.store_failed(error);
                if let Some(left_out) = self.refused_batches.say_of(error.kind(), Instant::now()) {
                    // After a row lock, its resources are asked for one by one.
                    tracing::warn!(%error, kind = error.kind(), resources = batch.asks.len(),
                        left_out, "the store did not take a batch");
                }
            }
        }
        let entering = self
            .epoch_table
            .answered(composed, result, holds(), Instant::now());
        entering.answers.deliver();
        self.tell(entering.older);
        if locked && lane == Lane::Aside {
            tokio::time::sleep(LOCKED).await;
        }
    }

    /// Has the owners of older epochs notified, if they live.
    pub(super) fn tell(&self, mut owners: Vec<Notification>) {
        owners.retain(|owner| {
            owner.to.is_none_or(|id| {
                self.detector.meet(id);
                self.store.shared() && !self.detector.is_dead(id)
            })
        });
        self.epoch_table.errands.notifications.add(owners);
    }
}

#[cfg(test)]
mod tests;
