//! The membership task: joins the store, renews the lease, watches the other instances, receives
//! their notifications, and does the epoch table's upkeep. It has connections of its own, so that a
//! busy writer never costs the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Fencing;
use super::epochs::EpochTable;
use super::failure_detector::{FailureDetector, Read};
use super::lease::{Identity, Lease};
use super::writer::WriterHandle;
use crate::config::Finding;
use crate::metrics::StoreMetrics;
use crate::store::routes::RouteRecord;
use crate::store::{Era, InstanceId, InstanceRow, MarkStore, Renewal, StoreError, Terms};
use crate::throttle::Outage;
use hints::Hints;
pub use reaper::ReapQueue;

mod hints;
mod notifications;
mod reaper;
mod spendings;

/// An epoch without a permit for this long is closed, so that a crash makes only the active set
/// wait.
const IDLE: Duration = Duration::from_mins(1);
/// How often waiting requests check the epochs of others again, in case a notification was lost.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The number of steps of one search for idle epochs, and the time between two steps. A search
/// takes five seconds, so that its deletions are spread over that time.
const SWEEP: (usize, Duration) = (50, Duration::from_millis(100));
/// After a failed round.
const RETRY: Duration = Duration::from_millis(200);

/// See the module's documentation.
pub struct Membership {
    pub(super) store: Arc<dyn MarkStore>,
    pub(super) epoch_table: Arc<EpochTable>,
    pub(super) lease: Arc<Lease>,
    pub(super) detector: Arc<FailureDetector>,
    pub(super) writer: WriterHandle,
    pub(super) metrics: Arc<StoreMetrics>,
    pub(super) terms: MembershipTerms,
    pub(super) reap_queue: ReapQueue,
}

/// The terms that this instance records about itself.
pub struct MembershipTerms {
    /// The lease's term.
    pub term: Duration,
    pub settle: Duration,
    /// See [`Terms::undelivered`].
    pub undelivered: Duration,
    pub routes: Arc<RouteRecord>,
    /// Randomness for the order in which dead instances are reaped.
    pub random: fn() -> u128,
}

impl Membership {
    #[must_use]
    pub(super) fn new(fencing: &Fencing, terms: MembershipTerms) -> Self {
        Self {
            store: Arc::clone(&fencing.store),
            epoch_table: Arc::clone(&fencing.epoch_table),
            lease: Arc::clone(&fencing.lease),
            detector: Arc::clone(&fencing.detector),
            writer: fencing.writer.clone(),
            metrics: Arc::clone(fencing.metrics.store()),
            terms,
            reap_queue: ReapQueue::default(),
        }
    }

    /// Records this instance in the store. Nothing is forwarded before. The lease runs from before
    /// the statement was sent. Returns how the route table differs from the one in the store.
    pub async fn join(&self) -> Result<Vec<Finding>, StoreError> {
        // Checked first, so that a table that may not be served leaves no trace.
        let findings = self.terms.routes.confirm(&*self.store).await?;
        let sent = self.lease.clock().now();
        let identity = self.lease.identity();
        let joined = self.enrol(&identity.instance).await;
        if joined.is_err() {
            // It may be recorded nevertheless, so the next try uses another id.
            self.lease.rename(identity.instance.next());
        }
        let era = joined?;
        self.epoch_table.adopt(era);
        self.lease.renewed(sent);
        self.metrics.answered();
        Ok(findings)
    }

    /// Records an instance, and then compares its route table with the one in the store. In this
    /// order, nobody replaces that table without seeing the instance: see [`RouteRecord`].
    async fn enrol(&self, id: &InstanceId) -> Result<Era, StoreError> {
        let era = self.store.join(id, &self.own_terms()).await?;
        if let Err(error) = self.terms.routes.confirm(&*self.store).await {
            // It has forwarded nothing. If this fails too, the others will find out.
            let _ = self.store.leave(id).await;
            return Err(error);
        }
        Ok(era)
    }

    /// The terms that this instance records.
    fn own_terms(&self) -> Terms {
        Terms {
            renewals: self.lease.next_renewal(),
            lease: self.terms.term,
            settle: self.terms.settle,
            undelivered: self.terms.undelivered,
            routes: self.terms.routes.digest(),
        }
    }

    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (membership, hints) = (&self, &Hints::default());
        tokio::select! {
            () = stop.cancelled() => {}
            () = async {
                tokio::join!(
                    membership.renewals(hints),
                    membership.upkeep(),
                    membership.sweeps(),
                    membership.reaping(),
                    membership.cutoff(),
                    membership.notifications(hints),
                    membership.follow(hints),
                    membership.closings(hints),
                    membership.spendings(hints),
                    membership.place(),
                    membership.counting(),
                );
            } => {}
        }
    }

    async fn renewals(&self, hints: &Hints) {
        let pause = crate::store::renewal_pause(self.terms.term);
        let outage = Outage::default();
        let mut connections = self.store.connections();
        loop {
            match self.round().await {
                Ok(()) => {
                    let over = outage.over(Instant::now());
                    let recovered = over.is_some();
                    if let Some(over) = over {
                        tracing::info!(
                            down_for = over.lasted(),
                            tries = over.tries,
                            "the store answers again"
                        );
                    }
                    let now = self.store.connections();
                    if std::mem::replace(&mut connections, now) != now || recovered {
                        // After a failover this instance's rows may be gone. No round fails if the
                        // failover is between two rounds.
                        self.writer.reconcile();
                        self.writer.poll();
                        hints.change_server();
                    }
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    self.detector.interrupted();
                    self.reap_queue.settled(Vec::new());
                    self.metrics.failed(&error);
                    // An error that only an operator can fix is another cause than one that may pass
                    // by itself.
                    let cause = match error {
                        StoreError::Unfit(_) => "unfit",
                        _ => "passing",
                    };
                    match outage.failed(cause, Instant::now()) {
                        Some(down) if down.is_repeated() => {
                            tracing::warn!(%error, kind = error.kind(),
                                down_for = down.lasted(), tries = down.tries,
                                "the store is still down: the lease cannot be renewed");
                        }
                        Some(_) => {
                            tracing::warn!(%error, kind = error.kind(),
                                "the lease could not be renewed; open epochs go on until it ends");
                        }
                        None => {}
                    }
                    tokio::time::sleep(RETRY.min(pause)).await;
                }
            }
        }
    }

    /// One renewal and one read of the other instances, each bounded so that the next try comes in
    /// time.
    pub(super) async fn round(&self) -> Result<(), StoreError> {
        let began = self.lease.clock().now();
        self.renew().await?;
        let me = self.lease.identity().instance;
        let clock = self.lease.clock();
        let sent = clock.now();
        let orphans = self.detector.seeks_orphans(sent);
        let mut rows = if orphans {
            self.bounded(self.store.instances()).await?
        } else {
            self.bounded(self.store.recorded()).await?
        };
        self.metrics.answered();
        if !self.store.shared() {
            // Only one process can have the file: every other instance is dead.
            for row in rows.iter_mut().filter(|row| row.id != me && !row.dead) {
                row.dead = self.store.declare_dead(&row.id, row.renewals).await?;
            }
        }
        self.terms.routes.observe(&me, &rows);
        let read = Read {
            connection: self.store.instances_over(),
            sent,
            answered: clock.now(),
        };
        let verdict = self.detector.observe(&me, &rows, read);
        if orphans {
            let found = rows.iter().any(InstanceRow::is_orphan);
            self.detector.sought_orphans(sent, found);
        }
        if verdict.changed {
            self.epoch_table.ring_all();
        }
        self.tell_routes(&me, &rows).await;
        // At least one step. The rest is left to the next rounds: each step may take half a lease,
        // and the lease must be renewed in between.
        let mut first = true;
        let mut go_on = || {
            std::mem::take(&mut first) || clock.now().saturating_sub(began) < self.terms.term / 6
        };
        for (id, renewals) in verdict.silent {
            if !go_on() {
                break;
            }
            match self.bounded(self.store.declare_dead(&id, renewals)).await {
                Ok(true) => {
                    tracing::warn!(instance = %id, "an instance stopped renewing and is declared dead; its work settles");
                    self.detector.declared(&id, clock.now());
                    self.epoch_table.ring_all();
                }
                Ok(false) => {}
                Err(error) => {
                    // The rows of the other instances, which were read before, still hold.
                    self.metrics.failed(&error);
                    let now = Instant::now();
                    if let Some(left_out) = self.reap_queue.undeclared.say_of(error.kind(), now) {
                        tracing::warn!(instance = %id, %error, left_out,
                            "an instance that stopped renewing could not be declared dead yet");
                    }
                }
            }
        }
        self.reap_queue.settled(verdict.settled);
        Ok(())
    }

    /// After a reload, records which route table this instance serves now.
    async fn tell_routes(&self, me: &InstanceId, rows: &[InstanceRow]) {
        let digest = self.terms.routes.digest();
        let own = rows.iter().find(|row| row.id == *me);
        if own.is_none_or(|row| row.routes == digest) {
            return;
        }
        if let Err(error) = self.bounded(self.store.set_routes(me, &digest)).await {
            self.metrics.failed(&error);
            tracing::warn!(%error, "the new route table's digest could not be recorded yet");
        }
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let clock = self.lease.clock();
        let identity = self.lease.identity();
        let sent = clock.now();
        let number = self.lease.next_renewal();
        let renewal = self.store.renew(&identity.instance, number);
        match self.bounded(renewal).await? {
            Renewal::Alive(era) => self.alive(era, sent).await?,
            Renewal::Unknown if self.cannot_be_reaped() => self.record_again(&identity).await?,
            Renewal::Dead | Renewal::Unknown => {
                let id = identity.instance.next();
                // While this instance counted as dead, another table may have come into force.
                self.bounded(self.terms.routes.confirm(&*self.store))
                    .await?;
                let sent = clock.now();
                let era = self.bounded(self.enrol(&id)).await?;
                // Before the new lease begins, because the epoch table must be right under a lease
                // that holds.
                self.epoch_table.retire_before(identity.incarnation + 1);
                self.epoch_table.adopt(era);
                self.epoch_table.forget();
                let old = self.lease.rejoined(id.clone(), sent);
                tracing::warn!(old = %old.instance, new = %id,
                    "this instance was declared dead and goes on under a new id");
            }
        }
        self.show_remaining();
        Ok(())
    }

    fn show_remaining(&self) {
        self.metrics.set_lease_remaining(self.lease.remaining());
    }

    /// Whether this instance's epochs are certainly still in the store: others reap them only after
    /// its lease has been lapsed for `settle`. Call this after the answer that shows what the store
    /// knows.
    fn cannot_be_reaped(&self) -> bool {
        self.lease.lapsed_for().unwrap_or_default() < self.terms.settle
    }

    /// Continues under the same id after the store has lost this instance's row (a failover to a
    /// replica that was behind, an old backup). This instance's memory still holds, and shows what
    /// else was lost.
    async fn record_again(&self, identity: &Identity) -> Result<(), StoreError> {
        let sent = self.lease.clock().now();
        let era = self.bounded(self.enrol(&identity.instance)).await?;
        if !self.cannot_be_reaped() {
            // It took so long that its epochs may be deleted by now. The next round will find it
            // dead.
            self.bounded(self.store.leave(&identity.instance)).await?;
            return Err(StoreError::Timeout(self.terms.settle));
        }
        tracing::error!(instance = %identity.instance,
            "the store has lost this instance, which is recorded again; marks may be lost as well");
        // The rows of its epochs may be lost too. So memory gives no more permits, and each epoch
        // is opened again.
        self.epoch_table.retire_all();
        self.alive(era, sent).await?;
        self.writer.reconcile();
        self.writer.poll();
        Ok(())
    }

    /// Continues under the same id. The renewal was sent at `sent`.
    async fn alive(&self, era: Era, sent: Duration) -> Result<(), StoreError> {
        let lapsed = !self.lease.valid();
        self.lease.renewed(sent);
        self.epoch_table.adopt(era);
        if lapsed && self.lease.valid() {
            tracing::info!("the lease had lapsed and runs again, under the same id");
            self.epoch_table.ring_all();
        }
        let known = self.epoch_table.era();
        if era < known {
            // A failover has lost an override. The next one must not get the same era.
            self.bounded(self.store.raise_era(known)).await?;
        }
        Ok(())
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !self.store.shared() {
            // No other instance waits for an embedded store. Its own bound keeps a disk that is
            // slow for a while from being taken for a missing one.
            return call.await;
        }
        let limit = (self.terms.term / 2).max(Duration::from_millis(250));
        tokio::time::timeout(limit, call)
            .await
            .unwrap_or(Err(StoreError::Timeout(limit)))
    }

    /// Cuts exchanges that have run for too long under a lapsed lease. Wakes at the due moment, and
    /// often before it: this timer's clock stops while the machine is suspended, and the lease's
    /// does not.
    async fn cutoff(&self) {
        while let Some(due) = self.lease.cut_overdue() {
            self.show_remaining();
            tokio::time::sleep(due.min(LOOK_AGAIN)).await;
        }
    }

    async fn upkeep(&self) {
        let mut tick = tokio::time::interval(LOOK_AGAIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for key in self.epoch_table.waiting_for_others() {
                self.writer.reread(key);
            }
        }
    }

    async fn sweeps(&self) {
        let (steps, pause) = SWEEP;
        let mut tick = tokio::time::interval(pause);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.epoch_table.sweep(IDLE, steps).await;
        }
    }
}

mod place;
#[cfg(test)]
mod tests;
