//! Does the [`Errands`](crate::fencing::epochs::Errands): reads rows, cedes epochs, notifies other
//! instances, writes back what was lost, and hears notifications.
//!
//! Any login of the database can send a notification, so none is trusted: it closes an epoch that
//! is idle here, or has the row read.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{LOOK_AGAIN, Membership, RETRY};
use crate::routing::ResourceKey;
use crate::store::{Found, Heard, Repair, StoreError};

/// How long a resource that could not be repaired by itself waits for its next turn.
const POSTPONED: Duration = Duration::from_secs(30);
/// The most resources that are repaired together.
const REPAIRED: usize = 256;
/// The most rows that one read asks for.
const READ: usize = 1024;

impl Membership {
    /// Hears notifications.
    pub(super) async fn hearing(&self) {
        let Some(mut heard) = self.fencing.store.listen() else {
            return;
        };
        while let Some(heard) = heard.recv().await {
            match heard {
                Heard::Notification(notification) => {
                    let me = self.fencing.lease.identity().instance;
                    if notification.to.is_none_or(|to| to == me) {
                        self.table().hinted(&notification);
                    }
                }
                Heard::Resumed => {
                    // Notifications may have been missed.
                    self.table().errands.recheck.notify_one();
                    self.look_for_waiting();
                }
            }
        }
    }

    pub(super) async fn looking(&self) {
        loop {
            let keys = self.table().errands.looks.next().await;
            if let Err(error) = self.look(&keys).await {
                // Not retried: a waiting request asks again.
                self.fencing.metrics.store_failed(&error);
                tracing::debug!(%error, "rows could not be read");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    async fn look(&self, keys: &[ResourceKey]) -> Result<(), StoreError> {
        // The era is taken before the read, so that a mark is not learned if its era is over when
        // the answer comes.
        let (era, by) = (self.table().era(), self.fencing.lease.identity());
        let looking = self.table().looking(keys, &by);
        let rows = self.fencing.store.look(keys).await?.into_iter();
        self.fencing.metrics.store_answered();
        let rows: HashMap<ResourceKey, Found> =
            rows.map(|(mark, found)| (mark.resource, found)).collect();
        let holds = self.fencing.lease.holds(by.incarnation);
        let none = Found::default();
        for one in &looking {
            let found = rows.get(&one.key).unwrap_or(&none);
            self.table().looked(one, found, (era, &by, holds));
        }
        Ok(())
    }

    /// Reads all rows of open epochs again, whenever another server may answer.
    pub(super) async fn rechecking(&self) {
        loop {
            self.table().errands.recheck.notified().await;
            for open in self.table().with_epochs() {
                for keys in open.chunks(READ) {
                    while let Err(error) = self.look(keys).await {
                        self.fencing.metrics.store_failed(&error);
                        tracing::debug!(%error, "rows could not be read yet");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        }
    }

    pub(super) async fn ceding(&self) {
        loop {
            let epochs = self.table().errands.cedes.next().await;
            if let Err(error) = self.fencing.store.cede(&epochs).await {
                self.fencing.metrics.store_failed(&error);
                tracing::debug!(%error, "epochs could not be ceded; they are over with the next publication");
            }
        }
    }

    pub(super) async fn notifying(&self) {
        loop {
            let notifications = self.table().errands.notifications.next().await;
            if let Err(error) = self.fencing.store.notify(&notifications).await {
                self.fencing.metrics.store_failed(&error);
                tracing::debug!(%error, "a notification was lost; waiting requests poll");
            }
        }
    }

    /// Writes back what was lost. A failover can lose very many marks at once, so each statement
    /// writes many. After one that fails, the next has half as many, down to a single resource,
    /// which is then left out for a while, so that no other waits for it.
    pub(super) async fn repairing(&self) {
        let mut most = REPAIRED;
        let mut postponed: HashMap<ResourceKey, Instant> = HashMap::new();
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let now = Instant::now();
            let repairs = &self.table().errands.repairs;
            let due = postponed.extract_if(|_, at| *at <= now);
            repairs.must(due.map(|(key, _)| key));
            loop {
                let keys = repairs.take(most);
                if keys.is_empty() {
                    break;
                }
                match self.repair(&keys).await {
                    Ok(true) => most = REPAIRED.min(most * 2),
                    // The lease does not hold: all wait for the next one.
                    Ok(false) => {
                        repairs.must(keys);
                        break;
                    }
                    Err(error) => {
                        self.fencing.metrics.store_failed(&error);
                        tracing::debug!(%error, "what was lost could not be written back yet");
                        let of_a_row =
                            matches!(error, StoreError::LockTimeout(_) | StoreError::Statement(_));
                        match keys.as_slice() {
                            [key] if of_a_row => {
                                postponed.insert(key.clone(), now + POSTPONED);
                            }
                            _ => {
                                most = (keys.len() / 2).max(1);
                                repairs.must(keys);
                            }
                        }
                        if !of_a_row {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Only under a lease that held after the mark was read: an instance that was declared dead may
    /// have missed an override, and would write back the mark from before it. An override that was
    /// made while the epochs were missing from the store, or that comes later, has a later era than
    /// the mark that is written back. `false`: the lease does not hold.
    async fn repair(&self, keys: &[ResourceKey]) -> Result<bool, StoreError> {
        let by = self.fencing.lease.identity();
        let repairs: Vec<Repair> = self.table().to_repair(keys, &by);
        if !self.fencing.lease.holds(by.incarnation) {
            return Ok(false);
        }
        if !repairs.is_empty() {
            let found = self.fencing.store.repair(&repairs).await?;
            for (repair, found) in repairs.iter().zip(&found) {
                self.table().repaired(repair, found, Instant::now());
            }
        }
        let known = |key: &&ResourceKey| repairs.iter().any(|repair| repair.resource == **key);
        for key in keys.iter().filter(|key| !known(key)) {
            self.table().nothing_to_repair(key, Instant::now());
        }
        Ok(true)
    }
}
