//! The membership task: joins the store, renews the lease, watches the other instances, listens to their news,
//! and does the epoch table's upkeep. Runs on connections of its own, so that a busy writer never costs the lease.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Gauge;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::epochs::EpochTable;
use super::failure_detector::{FailureDetector, Read};
use super::lease::{Identity, Lease};
use super::writer::{Meters, WriterHandle};
use crate::config::Finding;
use crate::store::routes::RouteRecord;
use crate::store::{Era, InstanceId, InstanceRow, MarkStore, Renewal, StoreError, Terms};
pub use burials::Burials;
use hints::Hints;

mod burials;
mod hints;
mod notifications;
mod spendings;

/// An epoch without a permit for this long is closed, so that a crash makes only the active set wait.
const IDLE: Duration = Duration::from_mins(1);
/// How often waiters look again at epochs of others, should a notification be lost.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// In how many steps all idle epochs are looked for, and how often one is made: a pass takes five seconds, and
/// what it finds comes bit by bit.
const SWEEP: (usize, Duration) = (50, Duration::from_millis(100));
/// After a failed round.
const RETRY: Duration = Duration::from_millis(200);

/// See the module's page.
pub struct Membership {
    pub store: Arc<dyn MarkStore>,
    pub epoch_table: Arc<EpochTable>,
    pub lease: Arc<Lease>,
    pub detector: Arc<FailureDetector>,
    pub writer: WriterHandle,
    pub meters: Meters,
    pub remaining: Gauge,
    /// The lease's term.
    pub term: Duration,
    pub settle: Duration,
    /// See [`Terms::undelivered`].
    pub undelivered: Duration,
    pub routes: Arc<RouteRecord>,
    pub burials: Burials,
    /// Randomness for the ids of rejoins.
    pub bits: fn() -> u128,
}

impl Membership {
    /// Records this instance in the store; nothing is forwarded before. The lease runs from before the
    /// statement was sent. Returns how the route table differs from the one that was on record.
    pub async fn join(&self) -> Result<Vec<Finding>, StoreError> {
        // A table that may not be served leaves no trace.
        let findings = self.routes.confirm(&*self.store).await?;
        let sent = self.lease.clock().now();
        let identity = self.lease.identity();
        let joined = self.enrol(&identity.instance).await;
        if joined.is_err() {
            // It may be on record all the same: the next try is another instance.
            let id = InstanceId::from_bits((self.bits)());
            self.lease.rename(id);
        }
        let era = joined?;
        self.epoch_table.adopt(era);
        self.lease.renewed(sent);
        self.meters.answered();
        Ok(findings)
    }

    /// Puts an instance on record, and then compares its route table with the one on record. In this
    /// order, so that nobody replaces that table unseen: see [`RouteRecord`].
    async fn enrol(&self, id: &InstanceId) -> Result<Era, StoreError> {
        let era = self.store.join(id, &self.terms()).await?;
        if let Err(error) = self.routes.confirm(&*self.store).await {
            // It has forwarded nothing. If this fails too, the others will find out.
            let _ = self.store.leave(id).await;
            return Err(error);
        }
        Ok(era)
    }

    /// What this instance puts on record.
    fn terms(&self) -> Terms {
        Terms {
            renewals: self.lease.next_renewal(),
            lease: self.term,
            settle: self.settle,
            undelivered: self.undelivered,
            routes: self.routes.digest(),
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
                    membership.burials(),
                    membership.cutoff(),
                    membership.news(hints),
                    membership.follow(hints),
                    membership.closings(hints),
                    membership.early_closings(hints),
                    membership.spendings(hints),
                    membership.place(),
                    membership.counting(),
                );
            } => {}
        }
    }

    async fn renewals(&self, hints: &Hints) {
        let pause = crate::store::renewal_pause(self.term);
        let mut failed = false;
        let mut unfit = false;
        let mut connections = self.store.connections();
        loop {
            match self.round().await {
                Ok(()) => {
                    let recovered = std::mem::take(&mut failed);
                    unfit = false;
                    if recovered {
                        tracing::info!("the store answers again");
                    }
                    let now = self.store.connections();
                    if std::mem::replace(&mut connections, now) != now || recovered {
                        // After a failover this instance's rows may be gone; and one between two rounds fails none.
                        self.writer.reconcile();
                        self.writer.poll();
                        hints.change_server();
                    }
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    self.detector.interrupted();
                    self.burials.settled(Vec::new());
                    self.meters.failed(&error);
                    // What only an operator can change is said also behind what may pass by itself.
                    let is_unfit = matches!(error, StoreError::Unfit(_));
                    let news = is_unfit && !std::mem::replace(&mut unfit, true);
                    if !std::mem::replace(&mut failed, true) || news {
                        tracing::warn!(%error, kind = error.kind(),
                            "the lease could not be renewed; open epochs go on until it ends");
                    }
                    tokio::time::sleep(RETRY.min(pause)).await;
                }
            }
        }
    }

    /// One renewal and one look at the others, each bounded so that the next try comes in time.
    async fn round(&self) -> Result<(), StoreError> {
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
        self.meters.answered();
        if !self.store.shared() {
            // Only one process can have the file: every other instance is dead.
            for row in rows.iter_mut().filter(|row| row.id != me && !row.dead) {
                row.dead = self.store.declare_dead(&row.id, row.renewals).await?;
            }
        }
        self.routes.observe(&me, &rows);
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
        if verdict.news {
            self.epoch_table.ring_all();
        }
        self.tell_routes(&me, &rows).await;
        // One at least; then what takes long is left to the next rounds. Each may take half a lease, which is to be
        // renewed in between.
        let mut first = true;
        let mut go_on =
            || std::mem::take(&mut first) || clock.now().saturating_sub(began) < self.term / 6;
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
                    // As below: what was read of the others still holds.
                    self.meters.failed(&error);
                    let now = Instant::now();
                    if let Some(left_out) = self.burials.undeclared.say_of(error.kind(), now) {
                        tracing::warn!(instance = %id, %error, left_out,
                            "an instance that stopped renewing could not be declared dead yet");
                    }
                }
            }
        }
        self.burials.settled(verdict.settled);
        Ok(())
    }

    /// After a reload this instance's row says which route table it serves now.
    async fn tell_routes(&self, me: &InstanceId, rows: &[InstanceRow]) {
        let digest = self.routes.digest();
        let own = rows.iter().find(|row| row.id == *me);
        if own.is_none_or(|row| row.routes == digest) {
            return;
        }
        if let Err(error) = self.bounded(self.store.set_routes(me, &digest)).await {
            self.meters.failed(&error);
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
            Renewal::Unknown if self.cannot_be_buried() => self.record_again(&identity).await?,
            Renewal::Dead | Renewal::Unknown => {
                let id = InstanceId::from_bits((self.bits)());
                // While this instance counted as dead, another table may have come into force.
                self.bounded(self.routes.confirm(&*self.store)).await?;
                let sent = clock.now();
                let era = self.bounded(self.enrol(&id)).await?;
                // Before the new lease runs: under a lease that holds, what the epoch table knows is right.
                self.epoch_table.retire_before(identity.generation + 1);
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
        let left = self.lease.remaining();
        let left = left.map_or(f64::INFINITY, |left| left.as_secs_f64());
        self.remaining.set(left);
    }

    /// Nobody buries an instance before its lease has been lapsed for `settle`. To be asked after the answer that says
    /// what the store knows.
    fn cannot_be_buried(&self) -> bool {
        self.lease.lapsed_for().unwrap_or_default() < self.settle
    }

    /// The store has lost this instance's row (a failover to a replica that was behind, an old backup). What this
    /// instance knows still holds, and is what can tell what else was lost; it goes on under the same id.
    async fn record_again(&self, identity: &Identity) -> Result<(), StoreError> {
        let sent = self.lease.clock().now();
        let era = self.bounded(self.enrol(&identity.instance)).await?;
        if !self.cannot_be_buried() {
            // It took so long that its epochs may be deleted by now. The next round is to find it dead.
            self.bounded(self.store.leave(&identity.instance)).await?;
            return Err(StoreError::Timeout(self.settle));
        }
        tracing::error!(instance = %identity.instance,
            "the store has lost this instance, which is recorded again; marks may be lost as well");
        // Their rows may be lost too: no permit from memory any more, but each epoch opened anew.
        self.epoch_table.retire_all();
        self.alive(era, sent).await?;
        self.writer.reconcile();
        self.writer.poll();
        Ok(())
    }

    /// The same id goes on; the renewal was sent at `sent`.
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
            // A failover has lost an override: the next one must not be given the same era.
            self.bounded(self.store.raise_era(known)).await?;
        }
        Ok(())
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !self.store.shared() {
            // Nobody else waits for what an embedded store does. Its own bound keeps a disk that is slow for a while
            // from being taken for one that is away.
            return call.await;
        }
        let limit = (self.term / 2).max(Duration::from_millis(250));
        tokio::time::timeout(limit, call)
            .await
            .unwrap_or(Err(StoreError::Timeout(limit)))
    }

    /// Cuts exchanges that have run on for too long under a lapsed lease. Woken at the due moment, and often before
    /// it: this timer's clock stops with a suspended machine, and the lease's does not.
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
                self.writer.look(key);
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
