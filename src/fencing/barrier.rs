//! The barrier: [`Fencing::enter`] waits until no older epoch of the resource is in flight,
//! and yields a [`Permit`], the right to send one request upstream.
//!
//! A check alone does not fence: 41 may pass it and stall, 42 pass and land, and 41 land last. So
//! the barrier keeps the order of arrival. The last check of the mark and the registration of the
//! permit are one critical section ([`EpochTable::enter`]). After every wait, every condition is
//! checked again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Fencing;
use crate::fencing::epochs::{Ending, Entered};
use crate::fencing::lease::PermitTerms;
use crate::fencing::permit::{Permit, Sending};
use crate::fencing::refused::{Refused, TRY_AGAIN, Undecided};
use crate::metrics::RouteMetrics;
use crate::routing::{ResourceKey, Token};
use crate::store::InstanceId;

/// How soon to look again at work elsewhere that should have settled by now.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a look at the barrier finds.
enum Look {
    Clear(Permit),
    /// The epoch is not open here (any more).
    NotOpen,
    /// Older work is out. `known_left`: until all of it ends, if that is known.
    Older {
        known_left: Option<Duration>,
    },
}

impl Fencing {
    /// Waits until `deadline` for older epochs of the resource. Dropping the future leaves the
    /// queue. `None`: the epoch is not open here (any more), and the store must be asked again.
    /// Counts the wait in the series of the route; a request that need not wait reads no clock.
    ///
    /// # Errors
    ///
    /// No permit may be given.
    pub(super) async fn enter(
        self: &Arc<Self>,
        (key, token): (&ResourceKey, Token),
        now: Instant,
        deadline: Instant,
        route: &RouteMetrics,
    ) -> Result<Option<Permit>, Refused> {
        match self.look(key, token, now)? {
            Look::Clear(permit) => {
                route.barrier_wait(Duration::ZERO);
                let fits = permit.ticket.held <= self.room.share;
                return fits.then_some(Some(permit)).ok_or(Refused::ShareTaken);
            }
            Look::NotOpen => {
                route.barrier_wait(Duration::ZERO);
                return Ok(None);
            }
            Look::Older { .. } => {}
        }
        let _counted = route.waiting();
        let entered = self.wait(key, token, deadline).await;
        route.barrier_wait(now.elapsed());
        entered
    }

    async fn wait(
        self: &Arc<Self>,
        key: &ResourceKey,
        token: Token,
        deadline: Instant,
    ) -> Result<Option<Permit>, Refused> {
        let place = self.wait_at(key, token)?;
        loop {
            // Made before the look, so that a bell that rings after it is not missed.
            let rung = place.bell.notified();
            let now = Instant::now();
            let known_left = match self.look(key, token, now)? {
                // A request that has waited was counted when it joined the queue.
                Look::Clear(permit) => return Ok(Some(permit)),
                Look::NotOpen => return Ok(None),
                Look::Older { known_left } => known_left,
            };
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

    fn wait_at<'a>(
        &'a self,
        key: &'a ResourceKey,
        token: Token,
    ) -> Result<QueuePlace<'a>, Refused> {
        let place = QueuePlace {
            bell: self.epoch_table.queue(key, token, self.room)?,
            fencing: self,
            key,
            token,
        };
        if self.crowd.fetch_add(1, Ordering::Relaxed) >= self.room.waiting {
            return Err(Refused::CrowdFull);
        }
        Ok(place)
    }

    /// Checks the lease, then enters the critical section.
    fn look(
        self: &Arc<Self>,
        key: &ResourceKey,
        token: Token,
        now: Instant,
    ) -> Result<Look, Refused> {
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
        let entered = self.epoch_table.enter(key, token, incarnation, left, now)?;
        Ok(match entered {
            Entered::Permit(ticket) => Look::Clear(Permit(Sending {
                fencing: Arc::clone(self),
                cutoff,
                key: key.clone(),
                token,
                ticket,
                ending: Ending::Settled,
            })),
            Entered::NotOpen => Look::NotOpen,
            Entered::Wait { known_left } => Look::Older { known_left },
        })
    }
}

/// A place in a resource's queue; given up on drop.
struct QueuePlace<'a> {
    fencing: &'a Fencing,
    key: &'a ResourceKey,
    token: Token,
    /// Rings whenever something has changed at the resource.
    bell: Arc<Notify>,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.fencing.epoch_table.unqueue(self.key, self.token);
        self.fencing.crowd.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
