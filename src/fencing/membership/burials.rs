//! Burials: the epochs of the dead are deleted once their work has settled.
//!
//! Beside the renewals, which nothing may hold up, and step by step: an instance may have had hundreds of
//! thousands of epochs open. It is gone on with the same one while there is more, with pauses that leave
//! the store some of its time. Resources that somebody here waits for go first, and those that somebody
//! was refused. The latest look at the instances says whom to bury; the statement that deletes looks again
//! whether it is dead.

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
const MOST_FIRST: usize = 1024;
/// How often those that were refused are looked for, among all that is open here.
const REFUSED: Duration = Duration::from_secs(1);

/// What the latest look at the instances has said of the dead.
#[derive(Debug)]
pub struct Burials {
    /// Dead, and settled. Short sections, never across an await.
    settled: Mutex<Vec<InstanceId>>,
    bell: Notify,
    /// What was logged lately of burials that failed.
    undone: Throttle,
    /// And of instances that could not be declared dead.
    pub(super) undeclared: Throttle,
}

impl Default for Burials {
    fn default() -> Self {
        Self {
            settled: Mutex::default(),
            bell: Notify::new(),
            undone: Throttle::of_repeats(),
            undeclared: Throttle::of_repeats(),
        }
    }
}

/// A burial that is under way.
#[derive(Debug, Default)]
pub(super) struct Grave {
    after: Option<Cursor>,
    freed: usize,
    /// When those that were refused were last looked for.
    looked: Option<Instant>,
}

impl Burials {
    /// Those and no others are to be buried from now on.
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
    pub(super) async fn burials(&self) {
        let mut graves = HashMap::new();
        loop {
            if self.bury_one(&mut graves).await.is_none() {
                self.burials.bell.notified().await;
            }
        }
    }

    /// Buries one of those that have settled; from another one each time, so that one which cannot be buried
    /// keeps none of the others waiting. `None`: there is none.
    pub(super) async fn bury_one(&self, graves: &mut HashMap<InstanceId, Grave>) -> Option<()> {
        let id = self.burials.one((self.bits)())?;
        graves.retain(|id, _| self.burials.names(id));
        let grave = graves.entry(id.clone()).or_default();
        while self.burials.names(&id) {
            let began = Instant::now();
            match self.bury_some(&id, grave).await {
                Ok(true) => {}
                Ok(false) => {
                    self.burials.done(&id);
                    // A look that was under way meanwhile may name it once more.
                    if grave.freed > 0 {
                        tracing::info!(instance = %id, resources = grave.freed,
                            "a dead instance's work has settled");
                    }
                    break;
                }
                Err(error) => {
                    self.meters.failed(&error);
                    let now = Instant::now();
                    if let Some(left_out) = self.burials.undone.say_of(error.kind(), now) {
                        tracing::warn!(instance = %id, %error, left_out,
                            "a dead instance's epochs could not be deleted yet");
                    }
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
            // Where the store is not shared, requests share its connection with this.
            let share = if self.store.shared() { 2 } else { 1 };
            tokio::time::sleep(began.elapsed().min(PAUSE) / share).await;
        }
        Some(())
    }

    /// One step of a burial. Returns whether there is more.
    async fn bury_some(&self, id: &InstanceId, grave: &mut Grave) -> Result<bool, StoreError> {
        let mut first = self.epoch_table.waiting_for(id);
        first.truncate(MOST_FIRST);
        let now = Instant::now();
        if grave
            .looked
            .is_none_or(|at| now.duration_since(at) >= REFUSED)
        {
            grave.looked = Some(now);
            first.extend(self.epoch_table.refused_for(id, MOST_FIRST - first.len()));
        }
        let step = self.store.bury(id, &first, grave.after.as_ref());
        let buried = self.bounded(step).await?;
        grave.freed += buried.freed.len();
        grave.after = buried.next;
        for key in buried.freed {
            if self.epoch_table.waits_for_others(&key) {
                self.writer.look(key);
            }
        }
        Ok(grave.after.is_some())
    }
}
