//! The barrier: [`Fencing::enter`] waits until no older epoch of the resource is in flight,
//! and yields a [`Permit`], the right to send one request upstream.
//!
//! A check alone does not fence: 41 may pass it and stall, 42 pass and land, and 41 land last. So
//! the barrier keeps the order of arrival. The last check of the mark and the registration of the
//! permit are one critical section ([`EpochTable::enter`]). After every wait, every condition is
//! checked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Fencing;
use crate::fencing::epochs::{Ending, Entered, EpochTable};
use crate::fencing::lease::PermitTerms;
use crate::fencing::permit::{Permit, Sending};
use crate::fencing::refused::{Refused, TRY_AGAIN, Undecided};
use crate::routing::{ResourceKey, Token};
use crate::store::InstanceId;

/// How soon to look again at work elsewhere that should have settled by now.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Fencing {
    /// Waits until `deadline` for older epochs of the resource. Dropping the future leaves the
    /// queue. `None`: the epoch is not open here (any more), and the store must be asked again.
    ///
    /// # Errors
    ///
    /// No permit may be given.
    pub(super) async fn enter(
        &self,
        key: &ResourceKey,
        token: Token,
        deadline: Instant,
    ) -> Result<Option<Permit>, Refused> {
        let mut place: Option<QueuePlace> = None;
        loop {
            // Made before the check, so that a bell that rings after it is not missed.
            let rung = place
                .as_ref()
                .map(|place| Arc::clone(&place.bell).notified_owned());
            let known_left = match self.look(key, token)? {
                (Entered::Permit(ticket), cutoff) => {
                    let held = ticket.held;
                    let permit = Permit(Sending {
                        epoch_table: Arc::clone(&self.epoch_table),
                        cutoff,
                        key: key.clone(),
                        token,
                        ticket,
                        ending: Ending::Settled,
                    });
                    // A request that has waited was counted when it joined the queue.
                    if place.is_none() && held > self.room.share {
                        return Err(Refused::ShareTaken);
                    }
                    return Ok(Some(permit));
                }
                (Entered::NotOpen, _) => return Ok(None),
                (Entered::Wait { known_left }, _) => known_left,
            };
            let Some(rung) = rung else {
                place = Some(self.wait_at(key, token)?);
                continue;
            };
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() || known_left.is_some_and(|known| known > left) {
                // The time is up, or older work is known to need longer than the time that is left.
                return Err(Refused::OlderInFlight {
                    retry_after: known_left.unwrap_or(TRY_AGAIN),
                    settling: known_left.is_some(),
                });
            }
            // A settling that ends by time alone rings too, but a little late.
            let again = known_left.map_or(deadline, |known| now + known.max(LOOK_AGAIN));
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep_until(again.min(deadline)) => {}
            }
        }
    }

    fn wait_at(&self, key: &ResourceKey, token: Token) -> Result<QueuePlace, Refused> {
        let bell = self.epoch_table.queue(key, token, self.room)?;
        let place = QueuePlace {
            epoch_table: Arc::clone(&self.epoch_table),
            key: key.clone(),
            token,
            bell,
            crowd: Arc::clone(&self.crowd),
        };
        if self.crowd.fetch_add(1, Ordering::Relaxed) >= self.room.waiting {
            return Err(Refused::CrowdFull);
        }
        Ok(place)
    }

    /// Checks the lease, then enters the critical section. Also returns the token that cuts
    /// exchanges of the lease's incarnation.
    fn look(
        &self,
        key: &ResourceKey,
        token: Token,
    ) -> Result<(Entered, Arc<CancellationToken>), Refused> {
        let PermitTerms {
            incarnation,
            cutoff,
        } = self.lease.terms();
        if !self.lease.holds(incarnation) || cutoff.is_cancelled() {
            let why = Undecided::without_lease(self.lease.begun());
            return Err(Refused::unavailable(why));
        }
        let clock = self.lease.clock();
        let left = |id: InstanceId| self.detector.settles_in(id, clock.now());
        let now = Instant::now();
        let entered = self.epoch_table.enter(key, token, incarnation, left, now)?;
        Ok((entered, cutoff))
    }
}

/// A place in a resource's queue; given up on drop.
struct QueuePlace {
    epoch_table: Arc<EpochTable>,
    key: ResourceKey,
    token: Token,
    /// Rings whenever something has changed at the resource.
    bell: Arc<Notify>,
    /// How many requests wait, at all resources.
    crowd: Arc<AtomicUsize>,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.epoch_table.unqueue(&self.key, self.token);
        self.crowd.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
