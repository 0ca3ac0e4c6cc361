//! The membership task: joins the store, renews the lease, publishes which epochs are over, watches
//! the other instances, and does what is to be done at the store beside the statements of requests.
//! It has connections of its own, so that busy lanes never cost the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Fencing;
use super::epochs::EpochTable;
use super::failure_detector::Read;
use super::lease::Identity;
use crate::config::{Finding, Settings};
use crate::store::routes::RouteRecord;
use crate::store::{Era, InstanceId, Publication, Renewal, StoreError, Terms};
use crate::throttle::Throttle;

mod errands;
mod place;
#[cfg(test)]
mod tests;

/// How often waiting requests check the epochs of others again, in case a notification was lost.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// After a failed round.
const RETRY: Duration = Duration::from_millis(200);

/// See the module's documentation.
pub struct Membership {
    fencing: Arc<Fencing>,
    /// The terms that this instance records about itself, except its counter and its routes.
    terms: Terms,
    routes: Arc<RouteRecord>,
    /// The store has lost this instance's row, and what follows from that is still to be done.
    lost: AtomicBool,
    /// Instances whose end could not be recorded.
    unrecorded: Throttle,
}

impl Membership {
    #[must_use]
    pub(super) fn new(
        fencing: Arc<Fencing>,
        settings: &Settings,
        routes: Arc<RouteRecord>,
    ) -> Self {
        Self {
            fencing,
            terms: Terms {
                lease: settings.store.lease.0,
                settle: settings.barrier.settle.0,
                undelivered: settings.upstream.undelivered.0,
                ..Terms::default()
            },
            routes,
            lost: AtomicBool::new(false),
            unrecorded: Throttle::of_repeats(),
        }
    }

    /// Records this instance in the store. Nothing is forwarded before. The lease runs from before
    /// the statement was sent. Returns how the route table differs from the one in the store.
    pub async fn join(&self) -> Result<Vec<Finding>, StoreError> {
        // Checked first, so that a table that may not be served leaves no trace.
        let findings = self.routes.confirm(&*self.fencing.store).await?;
        let sent = self.fencing.lease.clock().now();
        let joined = self.enrol(self.fencing.lease.identity().instance).await;
        if joined.is_err() {
            // It may be recorded nevertheless, so the next try uses another id.
            self.fencing.lease.rename();
        }
        let era = joined?;
        self.table().adopt(era);
        self.fencing.lease.renewed(sent);
        self.fencing.metrics.store_answered();
        Ok(findings)
    }

    /// Records an instance under an id that was never used, and then compares its route table with
    /// the one in the store. In this order, nobody replaces that table without seeing the instance:
    /// see [`RouteRecord`].
    async fn enrol(&self, id: InstanceId) -> Result<Era, StoreError> {
        let era = self.fencing.store.join(id, &self.own_terms()).await?;
        if let Err(error) = self.routes.confirm(&*self.fencing.store).await {
            // It has opened nothing. If this fails too, the others will find out.
            let nothing = Publication::default();
            let _ = self.fencing.store.leave(id, &nothing).await;
            return Err(error);
        }
        Ok(era)
    }

    fn table(&self) -> &EpochTable {
        &self.fencing.epoch_table
    }

    /// The terms that this instance records.
    fn own_terms(&self) -> Terms {
        Terms {
            renewals: self.fencing.lease.next_renewal(),
            routes: self.routes.digest(),
            ..self.terms.clone()
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        tokio::join!(
            self.renewals(),
            self.polls(),
            self.hearing(),
            self.looking(),
            self.rechecking(),
            self.ceding(),
            self.notifying(),
            self.repairing(),
            self.place(),
            self.counting(),
        );
    }

    async fn renewals(&self) {
        let pause = (self.terms.lease / 3).min(Duration::from_secs(1));
        // Since when no round succeeds.
        let mut outage: Option<(Instant, Throttle)> = None;
        let mut servers = self.fencing.store.servers();
        loop {
            match self.round().await {
                Ok(()) => {
                    if let Some((since, _)) = outage.take() {
                        let down_for_seconds = since.elapsed().as_secs();
                        tracing::info!(down_for_seconds, "the store answers again");
                        self.table().errands.recheck.notify_one();
                    }
                    let now = self.fencing.store.servers();
                    if std::mem::replace(&mut servers, now) != now {
                        // After a failover this instance's epochs may be gone. No round fails if
                        // the failover is between two rounds.
                        self.table().another_server();
                    }
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    self.fencing.detector.interrupted();
                    self.fencing.metrics.store_failed(&error);
                    // An error that only an operator can fix is another cause than one that may pass
                    // by itself.
                    let cause = match error {
                        StoreError::Unfit(_) => "unfit",
                        _ => "passing",
                    };
                    let now = Instant::now();
                    let (since, throttle) =
                        outage.get_or_insert_with(|| (now, Throttle::of_repeats()));
                    if let Some(left_out) = throttle.say_of(cause, now) {
                        tracing::warn!(%error, kind = error.kind(), left_out,
                            down_for_seconds = (now - *since).as_secs(),
                            "the lease could not be renewed; open epochs go on until it ends");
                    }
                    tokio::time::sleep(RETRY.min(pause)).await;
                }
            }
        }
    }

    /// One renewal and one read of the other instances, each bounded so that the next try comes in
    /// time.
    pub(super) async fn round(&self) -> Result<(), StoreError> {
        let clock = self.fencing.lease.clock();
        let began = clock.now();
        self.renew().await?;
        let me = self.fencing.lease.identity().instance;
        let sent = clock.now();
        let mut rows = self.bounded(self.fencing.store.instances()).await?;
        self.fencing.metrics.store_answered();
        for row in rows.iter_mut().filter(|row| row.id != me) {
            // An earlier id of this process has not ended.
            row.ended &= !self.fencing.lease.has_used(row.id);
            // Only one process can have a file: every other instance is dead.
            if !row.dead && (row.ended || !self.fencing.store.shared()) {
                let declared = self.fencing.store.declare_dead(row.id, row.terms.renewals);
                // A locked row must not stop the detection of other deaths.
                let declared = self.bounded(declared).await;
                row.dead = declared.unwrap_or_else(|error| {
                    self.fencing.metrics.store_failed(&error);
                    false
                });
            }
        }
        self.routes.observe(me, &rows);
        let read = Read {
            connection: self.fencing.store.instances_over(),
            sent,
            answered: clock.now(),
        };
        let verdict = self.fencing.detector.observe(me, &rows, read);
        if verdict.changed {
            self.table().ring_all();
        }
        // At least one step. The rest is left to the next rounds: each step may take half a lease,
        // and the lease must be renewed in between. Any may be the first, so that a row that is
        // locked does not keep the others waiting.
        let steps = verdict.silent.into_iter().map(|(id, at)| (id, Some(at)));
        let steps = steps.chain(verdict.settled.into_iter().map(|id| (id, None)));
        let mut steps: Vec<_> = steps.collect();
        let first = rand::random_range(0..steps.len().max(1));
        steps.rotate_left(first);
        for (id, silent_at) in steps {
            self.record_end(id, silent_at).await;
            if clock.now().saturating_sub(began) >= self.terms.lease / 6 {
                break;
            }
        }
        Ok(())
    }

    /// Declares an instance dead whose counter is still at `silent_at`; `None`: records that a dead
    /// one has settled.
    async fn record_end(&self, id: InstanceId, silent_at: Option<i64>) {
        let recorded = match silent_at {
            Some(at) => self.bounded(self.fencing.store.declare_dead(id, at)).await,
            None => self.bounded(self.fencing.store.settle(id)).await,
        };
        let (detector, now) = (&self.fencing.detector, self.fencing.lease.clock().now());
        match (recorded, silent_at) {
            (Ok(true), Some(_)) => {
                tracing::warn!(instance = %id, "an instance stopped renewing and is declared dead; its work settles");
                detector.declared(id, now);
                self.table().ring_all();
            }
            (Ok(settled), None) => {
                // If it lives, the next read shows it.
                detector.forget(id, now);
                if settled {
                    tracing::info!(instance = %id, "a dead instance's work has settled");
                    self.look_for_waiting();
                }
            }
            (Ok(false), Some(_)) => {}
            (Err(error), _) => {
                // The rows of the other instances, which were read before, still hold.
                self.fencing.metrics.store_failed(&error);
                if let Some(left_out) = self.unrecorded.say_of(error.kind(), Instant::now()) {
                    tracing::warn!(instance = %id, %error, left_out,
                        "the end of an instance could not be recorded yet");
                }
            }
        }
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let identity = self.fencing.lease.identity();
        let me = identity.instance;
        let sent = self.fencing.lease.clock().now();
        let publication = self.table().publish(me, Instant::now());
        let terms = self.own_terms();
        let renewal = self.fencing.store.renew(me, &terms, &publication);
        match self.bounded(renewal).await? {
            Renewal::Alive(era) => self.alive(era, sent).await,
            Renewal::Unknown if self.cannot_have_settled() => self.record_again(&identity).await,
            Renewal::Dead | Renewal::Unknown => self.rejoin(&identity).await,
        }
    }

    /// Goes on under a new id: this instance was declared dead.
    async fn rejoin(&self, identity: &Identity) -> Result<(), StoreError> {
        // While this instance counted as dead, another table may have come into force.
        self.bounded(self.routes.confirm(&*self.fencing.store))
            .await?;
        let id = self.fencing.lease.next_id();
        let sent = self.fencing.lease.clock().now();
        let era = self.bounded(self.enrol(id)).await?;
        // Before the new lease begins, because the epoch table must be right under a lease that
        // holds.
        self.table().retire_before(identity.incarnation + 1);
        self.table().adopt(era);
        self.table().forget();
        self.lost.store(false, Ordering::Relaxed);
        let old = self.fencing.lease.rejoined(id, sent);
        tracing::warn!(old = %old.instance, new = %id,
            "this instance was declared dead and goes on under a new id");
        Ok(())
    }

    /// Whether no other instance can have recorded that this one has settled: that comes after its
    /// lease has been lapsed for `settle`. Call this after the answer that shows what the store
    /// knows.
    fn cannot_have_settled(&self) -> bool {
        self.fencing.lease.lapsed_for().unwrap_or_default() < self.terms.settle
    }

    /// Continues under the same id after the store has lost this instance's row (a failover to a
    /// replica that was behind, an old backup). This instance's memory still holds, and shows what
    /// else was lost. If another instance has recorded the id as settled meanwhile, this fails, and
    /// the next round finds that.
    async fn record_again(&self, identity: &Identity) -> Result<(), StoreError> {
        // Before the statement, whose answer may be lost.
        self.lost.store(true, Ordering::Relaxed);
        let sent = self.fencing.lease.clock().now();
        let terms = self.own_terms();
        let join = self.fencing.store.join(identity.instance, &terms);
        let era = self.bounded(join).await?;
        self.alive(era, sent).await
    }

    /// Continues under the same id. The renewal was sent at `sent`.
    async fn alive(&self, era: Era, sent: Duration) -> Result<(), StoreError> {
        if self.lost.load(Ordering::Relaxed) {
            // While its row was missing, another table may have come into force. If this fails, the
            // row stays: epochs of this id may be in use until the lease ends.
            self.bounded(self.routes.confirm(&*self.fencing.store))
                .await?;
            tracing::error!(instance = %self.fencing.lease.identity().instance,
                "the store has lost this instance, which is recorded again; marks may be lost as well");
            // Its epochs may be lost too. So memory gives no more permits, and each epoch is opened
            // again.
            self.table().retire_all();
            self.table().errands.recheck.notify_one();
            self.lost.store(false, Ordering::Relaxed);
        }
        let lapsed = !self.fencing.lease.valid();
        // Before the lease runs again: what a prune has deleted meanwhile would count as lost.
        self.table().adopt(era);
        self.fencing.lease.renewed(sent);
        if lapsed && self.fencing.lease.valid() {
            tracing::info!("the lease had lapsed and runs again, under the same id");
            self.table().ring_all();
        }
        let known = self.table().era();
        if era < known {
            // A failover has lost an override. The next one must not get the same era.
            self.bounded(self.fencing.store.raise_era(known)).await?;
        }
        Ok(())
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !self.fencing.store.shared() {
            // No other instance waits for an embedded store. Its own bound keeps a disk that is
            // slow for a while from being taken for a missing one.
            return call.await;
        }
        let limit = (self.terms.lease / 2).max(Duration::from_millis(250));
        tokio::time::timeout(limit, call)
            .await
            .unwrap_or(Err(StoreError::Timeout(limit)))
    }

    /// Cuts exchanges that have run for too long under a lapsed lease, and has rows read. Wakes at
    /// the moment of the next cut, and often before it: this timer's clock stops while the machine
    /// is suspended, and the lease's does not.
    async fn polls(&self) {
        loop {
            let due = self.fencing.lease.cut_overdue();
            self.look_for_waiting();
            let errands = &self.table().errands;
            errands.looks.add(errands.later.take(usize::MAX));
            tokio::time::sleep(due.min(LOOK_AGAIN)).await;
        }
    }

    /// Has the rows read at which requests wait for other instances, and notifies those.
    fn look_for_waiting(&self) {
        let waited_for = self.table().waited_for();
        let keys = waited_for.iter().map(|older| older.resource.clone());
        self.table().errands.looks.add(keys);
        self.fencing.tell(waited_for);
    }
}
