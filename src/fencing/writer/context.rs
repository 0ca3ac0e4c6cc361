//! [`WriterContext`]: the parts that the writer works on.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::command::WriterCommand;
use crate::fencing::epochs::EpochTable;
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::growth::Growth;
use crate::fencing::lease::Lease;
use crate::metrics::StoreMetrics;
use crate::routing::Token;
use crate::store::{EpochRow, Era, MarkStore, Notification};

/// The parts that the writer works on.
pub(super) struct WriterContext {
    pub store: Arc<dyn MarkStore>,
    pub epoch_table: Arc<EpochTable>,
    pub lease: Arc<Lease>,
    pub detector: Arc<FailureDetector>,
    pub metrics: Arc<StoreMetrics>,
    pub growth: Arc<Growth>,
    /// Sends to the writer itself, for the tasks that it starts.
    pub tx: mpsc::WeakUnboundedSender<WriterCommand>,
}

impl WriterContext {
    /// Adds the notification that a request waits for this older epoch, if its owner lives. `era`:
    /// under which the epoch was read.
    pub(super) fn notify_owner(
        &self,
        notifications: &mut Vec<Notification>,
        older: &EpochRow,
        token: Token,
        era: Era,
    ) {
        self.detector.meet(&older.instance);
        if self.store.shared() && !self.detector.is_dead(&older.instance) {
            let item = Notification::Newer {
                resource: older.resource.clone(),
                token,
                era,
                owner: Some(older.instance.clone()),
            };
            if !notifications.contains(&item) {
                notifications.push(item);
            }
        }
    }

    pub(super) async fn announce(&self, notifications: Vec<Notification>) {
        if notifications.is_empty() || !self.store.shared() {
            return;
        }
        if let Err(error) = self.store.announce(&notifications).await {
            self.metrics.failed(&error);
            tracing::debug!(%error, "an announcement was lost; the other instances will poll");
        }
    }
}
