//! Prunes marks that have not changed for long: the one way in which a mark is forgotten.
//!
//! Without its mark, a resource accepts any token. So only an operator prunes, with an age that no
//! holder of an old token can reach. A resource with an epoch open is left out: something may be in
//! flight there.
//!
//! Other instances have marks in memory. A mark that is missing in the store and known to an
//! instance counts as lost: it is written back, and the resource is refused for a while. So a prune
//! is announced first, by a new era, in which each instance forgets the marks that it knows
//! ([`EpochTable::adopt`](super::epochs::EpochTable::adopt)). Each learns it with its next renewal.
//! Once the longest lease has passed, an instance that has not learned it may not forward. A mark
//! that is learned again in between can still be written back, which costs that wait, and nothing
//! else.

use std::time::Duration;

use tokio::time::Instant;

use super::Fencing;
use super::operators::OperatorError;
use crate::locked::locked;
use crate::store::{PruneStep, Pruned, StoreError};

/// For how long after an announcement marks are deleted before the next one.
const HOLDS: Duration = Duration::from_mins(10);
/// The longest lease is watched by another clock than the one that it runs by, and a renewal's
/// answer takes its time.
const MARGIN: Duration = Duration::from_secs(1);

/// The result of one call.
#[derive(Debug)]
pub enum Pruning {
    /// The prune was announced. Come again after this time.
    Announced(Duration),
    Done(Pruned),
}

impl Fencing {
    /// Announces a prune, or takes one step of it. A dry run needs no announcement.
    ///
    /// # Errors
    ///
    /// The store gave no answer, or its role may not delete marks.
    pub async fn prune(&self, step: &PruneStep) -> Result<Pruning, OperatorError> {
        if !step.dry_run
            && let Some(wait) = self.announced().await?
        {
            return Ok(Pruning::Announced(wait));
        }
        let done = match self.store.prune(step).await {
            // Its role may not.
            Err(StoreError::Unfit(why)) => return Err(OperatorError::Refused(why)),
            done => done?,
        };
        if let Some(era) = done.era {
            self.epoch_table.adopt(era);
            self.metrics.series.pruned_marks.inc_by(done.deleted);
        }
        Ok(Pruning::Done(done))
    }

    /// How long a prune still has to wait; `None`: it may begin.
    async fn announced(&self) -> Result<Option<Duration>, OperatorError> {
        let last = *locked(&self.announcement);
        let ripe = match last {
            Some(ripe) if ripe + HOLDS > Instant::now() => ripe,
            _ => {
                // An era that no instance knows yet, whatever a failover has lost.
                let known = self.epoch_table.era();
                if known > 0 {
                    self.store.raise_era(known).await?;
                }
                let (era, longest) = self.store.announce_prune(self.instance()).await?;
                self.epoch_table.adopt(era);
                let margin = if longest.is_zero() { longest } else { MARGIN };
                // Clocks may run at different rates.
                let ripe = Instant::now() + longest + longest / 5 + margin;
                *locked(&self.announcement) = Some(ripe);
                ripe
            }
        };
        let wait = ripe.saturating_duration_since(Instant::now());
        Ok((!wait.is_zero()).then_some(wait))
    }
}

#[cfg(test)]
mod tests;
