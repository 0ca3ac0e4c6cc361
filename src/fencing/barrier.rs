//! The barrier: [`Fencing::admit`] has the mark raised, waits until no older epoch of the resource is
//! in flight, and yields a [`Permit`], the right to send one request upstream.
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

use super::{Fencing, overtaken};
use crate::fencing::epochs::{Ending, Entered, Want};
use crate::fencing::permit::{Admitted, Permit, Sending};
use crate::fencing::refused::{Refused, TRY_AGAIN, Undecided};
use crate::metrics::{CheckResult, Limit, RouteMetrics};
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::InstanceId;
use crate::traces::RequestTrace;

/// How often an epoch may close between the store's answer and the barrier before the request is
/// refused.
const MAX_ROUNDS: usize = 8;

/// How soon to look again at work elsewhere that should have settled by now.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Fencing {
    /// Raises the mark to the token, and waits up to `wait` until nothing older is in flight.
    /// `open`: memory has just found the epoch open, which the barrier sees for itself. Counts in
    /// the series of its route, and says so in the trace of its request.
    ///
    /// # Errors
    ///
    /// Nothing was sent, and nothing may be sent. The mark may have risen nevertheless.
    pub async fn admit(
        self: &Arc<Self>,
        needs: Needs,
        (key, token): (&ResourceKey, Token),
        mut open: bool,
        wait: Duration,
        (route, trace): (&RouteMetrics, Option<&RequestTrace>),
    ) -> Result<Admitted, Refused> {
        let mut now = Instant::now();
        let deadline = now + wait;
        let mut advanced = false;
        for round in 0..MAX_ROUNDS {
            if std::mem::take(&mut open) {
                self.checked(CheckResult::Current, (now, now), trace);
            } else {
                let checked = self.check(needs, (key, token), &mut now, trace).await;
                advanced |= if round > 0 {
                    checked.map_err(overtaken)?
                } else {
                    checked?
                };
            }
            let entered = self.enter((key, token), now, deadline, route).await;
            if let Some(trace) = trace {
                trace.part("barrier wait", now, Vec::new());
            }
            if let Err(Refused::Limited(limit)) = &entered {
                self.metrics.limit(*limit);
            }
            // `None`: closed in between.
            if let Some(permit) = entered? {
                return Ok(Admitted { permit, advanced });
            }
            now = Instant::now();
        }
        Err(Refused::Unavailable(Undecided::ClosedAgain))
    }

    /// Lets the token go on to the barrier once its epoch is open here, from memory if memory knows
    /// it. Returns whether this request raised the mark. `now`: the time, before and after.
    async fn check(
        &self,
        needs: Needs,
        (key, token): (&ResourceKey, Token),
        now: &mut Instant,
        trace: Option<&RequestTrace>,
    ) -> Result<bool, Refused> {
        let began = *now;
        let recalled = self.recall(key, token, began);
        let checked = match recalled {
            Err(refused) => Err(refused),
            // Its epoch is open here.
            Ok(true) => Ok(false),
            Ok(false) => {
                let asked = if self.lease.valid() {
                    self.append(needs, key, token, Want::Open).await
                } else {
                    let why = Undecided::without_lease(self.lease.begun());
                    Err(Refused::Unavailable(why))
                };
                *now = Instant::now();
                asked
            }
        };
        let result = match &checked {
            Ok(true) => CheckResult::Advanced,
            Ok(false) => CheckResult::Current,
            Err(Refused::Stale { .. } | Refused::Spent) => CheckResult::StaleToken,
            Err(Refused::Implausible { .. }) => CheckResult::ImplausibleToken,
            Err(_) => CheckResult::StoreUnavailable,
        };
        self.checked(result, (began, *now), trace);
        checked
    }

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
        let looked = self.look(key, token, now);
        if !matches!(looked, Ok(Entered::Wait { .. })) {
            route.barrier_wait(Duration::ZERO);
        }
        match looked? {
            Entered::Permit(permit) => {
                let fits = permit.ticket.held <= self.room.share;
                return fits
                    .then_some(Some(permit))
                    .ok_or(Refused::Limited(Limit::InFlightPerResource));
            }
            Entered::NotOpen => return Ok(None),
            Entered::Wait { .. } => {}
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
        let place = QueuePlace {
            bell: self.epoch_table.queue(key, token, self.room)?,
            fencing: self,
            key,
            token,
        };
        if self.crowd.fetch_add(1, Ordering::Relaxed) >= self.room.waiting {
            return Err(Refused::Limited(Limit::Queue));
        }
        loop {
            // Made before the look, so that a bell that rings after it is not missed.
            let rung = place.bell.notified();
            let now = Instant::now();
            let known_left = match self.look(key, token, now)? {
                // A request that has waited was counted when it joined the queue.
                Entered::Permit(permit) => return Ok(Some(permit)),
                Entered::NotOpen => return Ok(None),
                Entered::Wait { known_left } => known_left,
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

    /// Checks the lease, then enters the critical section.
    fn look(
        self: &Arc<Self>,
        key: &ResourceKey,
        token: Token,
        now: Instant,
    ) -> Result<Entered<Permit>, Refused> {
        let terms = self.lease.terms();
        let incarnation = terms.incarnation;
        if !self.lease.holds(incarnation) || terms.cutoff.is_cancelled() {
            let why = Undecided::without_lease(self.lease.begun());
            return Err(Refused::Unavailable(why));
        }
        let clock = self.lease.clock();
        let left = |id: InstanceId| self.detector.settles_in(id, clock.now());
        let entered = self.epoch_table.enter(key, token, incarnation, left, now)?;
        Ok(match entered {
            Entered::Permit(ticket) => Entered::Permit(Permit(Sending {
                fencing: Arc::clone(self),
                cutoff: terms.cutoff,
                key: key.clone(),
                token,
                ticket,
                ending: Ending::Settled,
            })),
            Entered::NotOpen => Entered::NotOpen,
            Entered::Wait { known_left } => Entered::Wait { known_left },
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
