//! Operators' views and actions, as methods of [`Fencing`]: lists of what is stuck, and with whom,
//! from memory alone, so that a store that is down delays none of them; one mark; and the three
//! changes that an operator may make to one. The caller bounds the time of each. A change runs to
//! its end even if the caller leaves.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::epochs::{ResourceActivity, UnknownView};
use super::failure_detector::{InstanceState, InstanceView};
use super::{Fencing, Refused, Undecided};
use crate::routing::{Decision, ResourceKey, Token};
use crate::store::{Epoch, MarkRow, Notification, Opening, Override, Signature, StoreError};

/// How often an override waits for living instances to cede their idle epochs, and how long each
/// time.
const PATIENCE: (u32, Duration) = (20, Duration::from_millis(50));

/// A mark and its activity: the mark and the epochs as the store has them, the rest as this
/// instance sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MarkView {
    #[serde(flatten)]
    pub row: MarkRow,
    #[serde(flatten)]
    pub activity: ResourceActivity,
    /// Open epochs, of all instances.
    pub epochs: Vec<EpochView>,
}

/// An open epoch of a resource.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochView {
    pub instance: String,
    pub number: Opening,
    pub token: Token,
}

impl From<Epoch> for EpochView {
    fn from(epoch: Epoch) -> Self {
        Self {
            instance: epoch.instance.to_string(),
            number: epoch.opening,
            token: epoch.token,
        }
    }
}

/// One resource with requests under way here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BusyResource {
    pub resource: ResourceKey,
    #[serde(flatten)]
    pub activity: ResourceActivity,
}

/// How many there are, at all resources of this instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyCounts {
    pub in_flight: usize,
    pub waiting: usize,
    pub unknown: usize,
}

/// Why an operator's action failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The store failed. The action may still take effect.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The proxy refuses. The text says why, and what to do.
    #[error("{0}")]
    Refused(String),
}

/// The name of an inherited unknown outcome: its epoch. It stands for every unknown outcome of that
/// epoch.
fn inherited_id(epoch: &Epoch) -> String {
    format!("{}/{}", epoch.instance, epoch.opening)
}

impl Fencing {
    /// The resources with activity that is `wanted`, in the order of their keys.
    pub fn busy(&self, wanted: impl FnMut(&ResourceActivity) -> bool) -> Vec<BusyResource> {
        let all = self.epoch_table.activities(Instant::now(), wanted);
        let of = |(resource, activity)| BusyResource { resource, activity };
        let mut busy: Vec<_> = all.into_iter().map(of).collect();
        busy.sort_unstable_by(|one, two| one.resource.as_str().cmp(two.resource.as_str()));
        busy
    }

    /// The tokens of the older requests that a request waits for here.
    pub fn older(&self, key: &ResourceKey, token: Token) -> Vec<Token> {
        self.epoch_table.older(key, token)
    }

    /// The sums over all resources.
    pub fn busy_counts(&self) -> BusyCounts {
        let mut counts = BusyCounts::default();
        self.epoch_table.activities(Instant::now(), |activity| {
            counts.in_flight += activity.in_flight;
            counts.waiting += activity.waiting;
            counts.unknown += activity.unknown.len();
            false
        });
        counts
    }

    /// The instances of the namespace: this one first, the others in the order of their ids.
    pub fn instances(&self) -> Vec<InstanceView> {
        let this = InstanceView {
            id: self.instance().to_string(),
            state: InstanceState::This,
            silent_seconds: None,
            settles_in_seconds: None,
        };
        let mut others = self.detector.others(self.lease.clock().now());
        others.sort_unstable_by(|one, two| one.id.cmp(&two.id));
        std::iter::once(this).chain(others).collect()
    }

    /// One mark; `None`: the resource has none.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn view(&self, resource: &ResourceKey) -> Result<Option<MarkView>, StoreError> {
        let Some((row, epochs)) = self.row(resource).await? else {
            return Ok(None);
        };
        let mut activity = self.epoch_table.activity(resource, Instant::now());
        let now = self.lease.clock().now();
        let me = self.instance();
        let others = epochs.iter().filter(|epoch| epoch.instance != me);
        let inherited = others.filter_map(|epoch| {
            Some(UnknownView {
                number: 0,
                id: inherited_id(epoch),
                token: epoch.token,
                settles_in_seconds: Some(
                    self.detector.settles_in(epoch.instance, now)?.as_secs_f64(),
                ),
                instance: epoch.instance.to_string(),
                inherited: true,
            })
        });
        activity.unknown.extend(inherited);
        Ok(Some(MarkView {
            row,
            activity,
            epochs: epochs.into_iter().map(EpochView::from).collect(),
        }))
    }

    /// Raises a mark, as a newer holder's request would, and audits it. `reason` may be empty.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn advance(
        &self,
        resource: &ResourceKey,
        token: Token,
        by: &Signature,
    ) -> Result<Decision, OperatorError> {
        let before = self.row(resource).await?;
        let before = before.map(|(mark, _)| mark.token);
        let advanced = match self.raise(None, resource, token).await {
            Ok(advanced) => advanced,
            Err(Refused::Stale { mark, .. }) => return Ok(Decision::Stale { mark }),
            Err(Refused::Unavailable(Undecided::NoAnswer(why))) => {
                return Err(StoreError::Connection(why.to_string()).into());
            }
            Err(refused) => {
                let error = format!("bounds were held against an operator: {refused:?}");
                return Err(StoreError::Statement(error).into());
            }
        };
        if !advanced {
            return Ok(Decision::Current);
        }
        // An instance that serves an older token from memory learns it now, not with its next look.
        self.epoch_table.errands.notifications.add([Notification {
            resource: resource.clone(),
            waits: Some(token),
            to: None,
        }]);
        let marks = (before, Some(token));
        self.store
            .record_audit(resource, "advance", marks, by)
            .await?;
        Ok(Decision::Advanced)
    }

    /// Sets a mark lower, and audits it.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        by: &Signature,
    ) -> Result<Override, OperatorError> {
        // An override gets an era that no instance knows yet, whatever a failover has lost.
        let known = self.epoch_table.era();
        if known > 0 {
            self.store.raise_era(known).await?;
        }
        let me = self.instance();
        for attempt in 0..=PATIENCE.0 {
            let done = self.store.override_mark(resource, token, by).await?;
            let open = match &done {
                Override::Done { era, .. } => {
                    self.epoch_table.adopt(*era);
                    return Ok(done);
                }
                Override::Absent => return Ok(done),
                Override::EpochsOpen(open) => open,
            };
            // Idle epochs have nothing in flight: they are ceded first, here and elsewhere.
            let idle = self.epoch_table.release(resource, me, open);
            let others = open.iter().filter(|epoch| epoch.instance != me);
            let is_dead = |epoch: &Epoch| self.detector.is_dead(epoch.instance);
            let stays = others.clone().next().is_none() || others.clone().any(is_dead);
            if attempt == PATIENCE.0 || idle.is_empty() && stays {
                return Ok(done);
            }
            if !idle.is_empty() {
                let idle = idle.into_iter().map(|epoch| (resource.clone(), epoch));
                self.store.cede(&idle.collect::<Vec<_>>()).await?;
            }
            let notify = |epoch: &Epoch| Notification::to(epoch.instance, resource, Token::MAX);
            let owners = others.map(notify);
            self.epoch_table.errands.notifications.add(owners);
            tokio::time::sleep(PATIENCE.1).await;
        }
        unreachable!("the last attempt returns")
    }

    /// Ends an unknown outcome that an operator knows now, and audits it. `false`: there is none
    /// with this id.
    ///
    /// # Errors
    ///
    /// The store gave no answer, or only another instance can resolve it.
    pub async fn resolve(
        &self,
        resource: &ResourceKey,
        unknown_id: &str,
        by: &Signature,
    ) -> Result<bool, OperatorError> {
        let now = Instant::now();
        let activity = self.epoch_table.activity(resource, now);
        let mut own = activity.unknown.iter();
        if let Some(own) = own.find(|own| own.id == unknown_id) {
            if self.lease.is_over() {
                return Err(OperatorError::Refused(
                    "this proxy has drained and closes no epochs any more: resolve it at a proxy that serves, once \
                     that one counts this one as dead"
                        .into(),
                ));
            }
            // The audit comes first: the outcome counts as known because this operator vouches for
            // it.
            let tokens = (Some(own.token), Some(own.token));
            self.store
                .record_audit(resource, "resolve", tokens, by)
                .await?;
            return Ok(self.epoch_table.settled(resource, own.number, now));
        }
        let open = self.row(resource).await?;
        let mut open = open.into_iter().flat_map(|(_, open)| open);
        let Some(epoch) = open.find(|epoch| inherited_id(epoch) == unknown_id) else {
            return Ok(false);
        };
        if !self.detector.is_dead(epoch.instance) {
            return Err(OperatorError::Refused(format!(
                "epoch {unknown_id} belongs to an instance that is not known to be dead: resolve its unknown \
                 outcomes at that instance"
            )));
        }
        let tokens = (Some(epoch.token), Some(epoch.token));
        self.store
            .record_audit(resource, "resolve", tokens, by)
            .await?;
        if self
            .store
            .cede(&[(resource.clone(), epoch)])
            .await?
            .is_empty()
        {
            return Err(OperatorError::Refused(
                "another session has locked the row of this resource: try again".into(),
            ));
        }
        self.epoch_table.errands.looks.add([resource.clone()]);
        Ok(true)
    }

    /// The mark, and the epochs of its resource that are not over.
    async fn row(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<Epoch>)>, StoreError> {
        let rows = self.store.look(std::slice::from_ref(resource)).await?;
        let row = rows.into_iter().next();
        Ok(row.map(|(mark, found)| (mark, found.open)))
    }
}

#[cfg(test)]
mod tests;
