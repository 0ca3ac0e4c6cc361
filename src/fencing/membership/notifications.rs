//! Handles notifications as hints. Any login of the database can send one, so the membership task
//! trusts none of them: each makes it read the store.
//!
//! A hint that a newer token is durable leads to one read of that mark, over a connection that
//! neither the writer nor the lease waits for. The same statement deletes the epoch if it is not
//! used. Hints that come meanwhile share the next read. After a read in which no hint proved true
//! there is a pause, since an epoch gives no permit while it is read: a flood of forged hints must
//! not keep it from that. A hint that an older epoch was closed makes the writer read once more.

use std::time::Duration;

use super::Membership;
use super::hints::Hints;
use crate::fencing::epochs::{Ceded, Hint};
use crate::routing::ResourceKey;
use crate::store::{EpochRow, Era, Heard, InstanceId, MarkRow, Notification};

/// The pause after a read in which no hint proved true.
const PAUSE: Duration = Duration::from_millis(50);

impl Membership {
    /// Receives notifications.
    pub(super) async fn notifications(&self, hints: &Hints) {
        let Some(mut heard) = self.store.listen() else {
            return;
        };
        self.writer.begin_walks();
        while let Some(item) = heard.recv().await {
            match item {
                Heard::Notification(Notification::Newer {
                    resource,
                    token,
                    owner,
                    ..
                }) => match self.epoch_table.hinted(&resource, token) {
                    Hint::Known => {}
                    // The hint is about another instance's epoch.
                    Hint::NoEpoch if owner.is_some_and(|owner| owner != self.own_id()) => {}
                    // It may be an opening whose answer was lost, which only the store knows.
                    Hint::NoEpoch => self.writer.hint(resource),
                    Hint::ReadMark if hints.newer.add(resource, token) => {}
                    Hint::ReadMark => self.writer.poll(),
                },
                Heard::Notification(Notification::Closed { resource }) => {
                    // Beyond the limit, the upkeep reads the resources at which a request waits.
                    hints.closed.add(resource, ());
                }
                Heard::Resumed => {
                    // Another server may answer now, one that was behind, even if no call has
                    // failed.
                    self.writer.reconcile();
                    self.writer.poll();
                    hints.change_server();
                    for key in self.epoch_table.waiting_for_others() {
                        self.writer.reread(key);
                    }
                }
            }
        }
    }

    /// Reads the marks that hints have named.
    pub(super) async fn follow(&self, hints: &Hints) {
        loop {
            let mut ceding = Vec::new();
            let mut reading = Vec::new();
            for (key, token) in hints.newer.next().await {
                // A walk over the own rows may have answered the hint meanwhile.
                if self.epoch_table.hinted(&key, token) != Hint::ReadMark {
                    continue;
                }
                let rows = self.epoch_table.cede(&key, token);
                if rows.is_empty() {
                    reading.push(key);
                }
                ceding.extend(rows);
            }
            if ceding.is_empty() && reading.is_empty() {
                continue;
            }
            let mut proved = !ceding.is_empty() && self.cede(&ceding).await;
            proved |= !reading.is_empty() && self.read_marks(&reading).await;
            if !proved {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Has the store delete the rows of epochs that are not used here, if the mark is above them.
    /// `false`: none was deleted, or that is unknown.
    async fn cede(&self, rows: &[EpochRow]) -> bool {
        // As in `read_marks`.
        let era = self.epoch_table.era();
        let connections = self.store.connections();
        let marks = match self.store.cede(rows).await {
            Ok(marks) => marks,
            Err(error) => {
                self.metrics.failed(&error);
                tracing::debug!(%error, "epochs that a notification hints at could not be closed yet");
                for row in rows {
                    self.epoch_table.ceded(row, Ceded::Unknown);
                }
                self.writer.poll();
                return false;
            }
        };
        self.metrics.answered();
        // After a new connection, the rows in the store are compared with those in memory, but not
        // with these. So an answer from before it no longer proves that a row is there.
        let steady = self.store.connections() == connections;
        let mut proved = false;
        for row in rows {
            let mut marks = marks.iter().filter(|mark| mark.resource == row.resource);
            let deleted = marks.any(|mark| mark.token > row.token);
            proved |= deleted;
            let fate = match (deleted, steady) {
                (true, _) => Ceded::Deleted,
                (false, true) => Ceded::Kept,
                (false, false) => Ceded::Unknown,
            };
            self.epoch_table.ceded(row, fate);
        }
        self.learn(marks, era) || proved
    }

    /// Has the writer read the resources at which an epoch was closed, if a request waits for it.
    /// The answer that makes one wait may still be on its way to the writer.
    pub(super) async fn closings(&self, hints: &Hints) {
        loop {
            let hints = hints.closed.next().await.into_iter();
            self.writer
                .closed(hints.map(|(key, ())| key).collect())
                .await;
        }
    }

    fn own_id(&self) -> InstanceId {
        self.lease.identity().instance
    }

    /// Learns these marks from the store. `false`: none of them is new, or that is unknown.
    async fn read_marks(&self, keys: &[ResourceKey]) -> bool {
        // The era is taken before the read, so that a mark is not learned if its era is over when
        // the answer comes.
        let era = self.epoch_table.era();
        let rows = match self.store.marks(keys).await {
            Ok(rows) => rows,
            Err(error) => {
                self.metrics.failed(&error);
                tracing::debug!(%error, "the marks that a notification hints at could not be read");
                self.writer.poll();
                return false;
            }
        };
        self.metrics.answered();
        self.learn(rows, era)
    }

    /// Learns durable marks that were read in this era or a later one. Returns whether any closes
    /// an epoch here.
    fn learn(&self, rows: Vec<MarkRow>, era: Era) -> bool {
        let mut closes = false;
        for row in rows {
            if row.era > era {
                // The mark was overridden, which is not known here yet.
                self.epoch_table.adopt(row.era);
                self.writer.poll();
            } else {
                closes |= self.epoch_table.learn(&row.resource, row.token, era, true);
            }
        }
        closes
    }
}
