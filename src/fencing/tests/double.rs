//! [`Double`]: the model of the store as a store of its own, shared by any number of instances, and
//! able to be slow, to fail, to lose an answer, and to lead to another server.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc};

use super::rows::Rows;
use crate::locked::locked;
use crate::routing::{ResourceKey, Token};
use crate::store::engine::Engine;
use crate::store::{
    Administration, AuditRow, Batch, Epoch, Era, Found, Heard, InstanceId, InstanceRow, Instances,
    Lane, MarkRow, MarkStore, Notification, Override, PruneStep, Pruned, Publication, Renewal,
    Repair, Signature, StoreError, Terms,
};

/// The most marks that one call counts.
const COUNTED: u32 = 2;

/// The planned outcome of one call.
pub(crate) enum CallPlan {
    /// Not done, and answered so.
    Fail(StoreError),
    /// Done, but the answer is lost.
    Lose,
    /// Done when told.
    Hold(Arc<Notify>),
    /// Done at once, and answered when told.
    HoldAnswer(Arc<Notify>),
}

pub(crate) fn broken() -> StoreError {
    StoreError::Connection("broken by the test".into())
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Double {
    rows: Mutex<Rows>,
    plans: Mutex<HashMap<&'static str, VecDeque<CallPlan>>>,
    calls: Mutex<HashMap<&'static str, usize>>,
    listeners: Mutex<Vec<mpsc::Sender<Heard>>>,
    /// Notifications are lost.
    deaf: AtomicBool,
    /// The answers of [`MarkStore::servers`] and [`MarkStore::instances_over`].
    pub(crate) servers: AtomicU64,
    pub(crate) instances_over: AtomicU64,
    /// No other instance can have this store.
    alone: bool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    locked(mutex)
}

impl Double {
    /// No other instance can have this store, as with `SQLite`.
    pub(crate) fn alone() -> Self {
        Self {
            alone: true,
            ..Self::default()
        }
    }

    /// What the store holds.
    pub(crate) fn rows(&self) -> MutexGuard<'_, Rows> {
        held(&self.rows)
    }

    pub(crate) fn mark_of(&self, key: &ResourceKey) -> Option<i64> {
        self.rows().marks.get(key).map(|mark| mark.token.get())
    }

    /// The tokens of a resource's epochs that are not over.
    pub(crate) fn open(&self, key: &ResourceKey) -> Vec<i64> {
        let open = self.rows().open(key);
        open.iter().map(|epoch| epoch.token.get()).collect()
    }

    /// Plans the outcome of the next call of this name that has no plan yet.
    pub(crate) fn plan(&self, call: &'static str, plan: CallPlan) {
        held(&self.plans).entry(call).or_default().push_back(plan);
    }

    /// Another server answers from now on, with these rows.
    pub(crate) fn fail_over(&self, to: Rows) {
        *self.rows() = to;
        self.servers.fetch_add(1, Ordering::SeqCst);
        self.instances_over.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on notifications are lost.
    pub(crate) fn deafen(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }

    /// Sends an event, as the server or any client of it may.
    pub(crate) fn tell(&self, heard: &Heard) {
        for listener in held(&self.listeners).iter() {
            let _ = listener.try_send(heard.clone());
        }
    }

    pub(crate) fn calls(&self, call: &str) -> usize {
        held(&self.calls).get(call).copied().unwrap_or(0)
    }

    /// Lets the other tasks run until this call has arrived `count` times.
    pub(crate) async fn until(&self, call: &str, count: usize) {
        for _ in 0..10_000 {
            if self.calls(call) >= count {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{call} was called {} times", self.calls(call));
    }

    /// Waits until this call has arrived `count` times, however long that takes.
    pub(crate) async fn arrived(&self, call: &str, count: usize) {
        while self.calls(call) < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Runs a call whose statement cannot fail.
    pub(super) async fn run<T: Send>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut Rows) -> T + Send,
    ) -> Result<T, StoreError> {
        self.attempt(call, |rows| Ok(work(rows))).await
    }

    async fn attempt<T: Send>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut Rows) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        *held(&self.calls).entry(call).or_default() += 1;
        let plan = held(&self.plans)
            .get_mut(call)
            .and_then(VecDeque::pop_front);
        match plan {
            None => work(&mut self.rows()),
            Some(CallPlan::Fail(error)) => Err(error),
            Some(CallPlan::Lose) => work(&mut self.rows()).and(Err(broken())),
            Some(CallPlan::Hold(go)) => {
                go.notified().await;
                work(&mut self.rows())
            }
            Some(CallPlan::HoldAnswer(go)) => {
                let done = work(&mut self.rows());
                go.notified().await;
                done
            }
        }
    }

    fn send(&self, notifications: impl IntoIterator<Item = Notification>) {
        for notification in notifications {
            if !self.deaf.load(Ordering::SeqCst) {
                self.tell(&Heard::Notification(notification));
            }
        }
    }
}

#[async_trait]
impl MarkStore for Double {
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn servers(&self) -> u64 {
        self.servers.load(Ordering::SeqCst)
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::SeqCst)
    }

    fn lanes(&self) -> usize {
        1
    }

    async fn advance(&self, _: Lane, batch: Batch<'_>) -> Result<Vec<Found>, StoreError> {
        self.attempt("advance", |rows| {
            let asks = batch.asks;
            if asks.iter().any(|ask| rows.locked.contains(&ask.resource)) {
                return Err(StoreError::LockTimeout("locked by the test".to_owned()));
            }
            Ok(rows.advance(batch))
        })
        .await
    }

    async fn cede(&self, epochs: &[(ResourceKey, Epoch)]) -> Result<Vec<ResourceKey>, StoreError> {
        let written = self.run("cede", |rows| rows.cede(epochs)).await?;
        self.send(written.iter().map(|resource| Notification {
            resource: resource.clone(),
            waits: None,
            to: None,
        }));
        Ok(written)
    }

    async fn repair(&self, repairs: &[Repair]) -> Result<Vec<Found>, StoreError> {
        self.run("repair", |rows| rows.repair(repairs)).await
    }

    async fn notify(&self, notifications: &[Notification]) -> Result<(), StoreError> {
        self.run("notify", |_| ()).await?;
        self.send(notifications.to_vec());
        Ok(())
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (listener, heard) = mpsc::channel(64);
        held(&self.listeners).push(listener);
        (!self.alone).then_some(heard)
    }
}

#[async_trait]
impl Instances for Double {
    fn engine(&self) -> &dyn Engine {
        unreachable!("each call is answered from the rows")
    }

    fn shared(&self) -> bool {
        !self.alone
    }

    async fn join(&self, instance: InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        self.attempt("join", |rows| rows.join(instance, terms))
            .await
    }

    async fn renew(
        &self,
        instance: InstanceId,
        terms: &Terms,
        publication: &Publication,
    ) -> Result<Renewal, StoreError> {
        self.run("renew", |rows| rows.renew(instance, terms, publication))
            .await
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.run("raise_era", |rows| rows.raise_era(era)).await
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let mut rows = self.run("instances", |rows| rows.instances()).await?;
        for row in &mut rows {
            // Who has a file's lock is the only one that runs.
            row.ended = self.alone;
        }
        Ok(rows)
    }

    async fn declare_dead(&self, instance: InstanceId, renewals: i64) -> Result<bool, StoreError> {
        self.run("declare_dead", |rows| rows.declare_dead(instance, renewals))
            .await
    }

    async fn settle(&self, instance: InstanceId) -> Result<bool, StoreError> {
        self.run("settle", |rows| rows.settle(instance)).await
    }

    async fn leave(
        &self,
        instance: InstanceId,
        publication: &Publication,
    ) -> Result<(), StoreError> {
        self.run("leave", |rows| rows.leave(instance, publication))
            .await
    }
}

#[async_trait]
impl Administration for Double {
    async fn look(&self, resources: &[ResourceKey]) -> Result<Vec<(MarkRow, Found)>, StoreError> {
        self.run("look", |rows| rows.look(resources)).await
    }

    async fn give_back(
        &self,
        resource: &ResourceKey,
        token: Token,
        name: &str,
    ) -> Result<(), StoreError> {
        self.run("give_back", |rows| rows.give_back(resource, token, name))
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        self.run("list", |rows| rows.list(prefix, after, limit))
            .await
    }

    async fn count_marks(&self, after: Option<&str>) -> Result<(u64, Option<String>), StoreError> {
        let piece = self.run("count_marks", |rows| rows.list("", after, COUNTED));
        let piece = piece.await?;
        let last = piece.last().map(|mark| mark.resource.to_string());
        let more = piece.len() == COUNTED as usize;
        Ok((piece.len() as u64, last.filter(|_| more)))
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        by: &Signature,
    ) -> Result<Override, StoreError> {
        self.run("override_mark", |rows| {
            rows.override_mark(resource, token, by)
        })
        .await
    }

    async fn announce_prune(&self, me: InstanceId) -> Result<(Era, Duration), StoreError> {
        self.run("announce_prune", |rows| rows.announce_prune(me))
            .await
    }

    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        self.run("prune", |rows| rows.prune(step)).await
    }

    async fn record_audit(
        &self,
        resource: &ResourceKey,
        action: &str,
        marks: (Option<Token>, Option<Token>),
        by: &Signature,
    ) -> Result<(), StoreError> {
        self.run("record_audit", |rows| {
            rows.record_audit(resource, action, marks, by);
        })
        .await
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.run("audit", |rows| rows.audit(resource, limit)).await
    }

    async fn routes(&self) -> Result<Option<String>, StoreError> {
        self.run("routes", |rows| rows.routes.clone()).await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        self.run("record_routes", |rows| rows.record_routes(known, document))
            .await
    }

    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        self.run("replace_routes", |rows| rows.replace_routes(document))
            .await
    }
}
