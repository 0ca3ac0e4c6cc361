//! A store in memory for tests: shared by any number of instances, and able to be slow, to fail, to
//! lose an answer, to commit late, and to keep a row locked.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use crate::routing::{ResourceKey, Token};
use crate::store::{
    AuditRow, Cursor, EpochRow, Era, Heard, InstanceId, InstanceRow, MarkRow, Notification,
    Opening, OwnRow, StoreError,
};

/// When every mark here was made.
pub(crate) const SINCE_MS: i64 = 1_700_000_000_123;

/// The planned outcome of one call.
pub(crate) enum CallPlan {
    /// Not done, and answered so.
    Fail(StoreError),
    /// Done, but the answer is lost.
    Lose,
    /// Answered with a doubt, and done by [`Double::commit_late`].
    Late,
    /// Done when told.
    Hold(Arc<Notify>),
    /// Done at once, and answered when told.
    HoldAnswer(Arc<Notify>),
}

pub(crate) fn broken() -> StoreError {
    StoreError::Connection("broken by the test".into())
}

#[derive(Default)]
pub(crate) struct State {
    pub marks: BTreeMap<ResourceKey, (Token, Option<String>, Era)>,
    pub epochs: Vec<EpochRow>,
    pub instances: HashMap<InstanceId, InstanceRow>,
    pub era: Era,
    /// The route table on record.
    pub routes: Option<String>,
    /// The answer of [`Instances::connections`].
    pub connections: u64,
    /// The answer of [`Instances::instances_over`].
    pub instances_over: u64,
    /// How often tokens of a resource were given back.
    pub given_back: HashMap<ResourceKey, i64>,
    /// The actions of operators, the latest last.
    pub audit: Vec<AuditRow>,
}

impl State {
    pub(super) fn mark(&self, resource: &ResourceKey) -> Option<MarkRow> {
        let (token, spent, era) = self.marks.get(resource)?;
        Some(MarkRow {
            resource: resource.clone(),
            token: *token,
            spent: spent.is_some(),
            era: *era,
            since_ms: SINCE_MS,
        })
    }
}

type Later = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
pub(crate) struct Double {
    pub(super) state: Arc<Mutex<State>>,
    acts: Mutex<HashMap<&'static str, VecDeque<CallPlan>>>,
    pub(super) calls: Mutex<HashMap<&'static str, usize>>,
    /// The calls in the order in which they came, with how many rows each named.
    order: Mutex<Vec<(&'static str, usize)>>,
    late: Mutex<Vec<Later>>,
    pub(super) locked: Mutex<HashSet<ResourceKey>>,
    /// The locked rows are not committed, and so not seen.
    pub(super) unseen: AtomicBool,
    pub(super) announced: Mutex<Vec<Notification>>,
    pub(super) listeners: Mutex<Vec<mpsc::Sender<Heard>>>,
    /// No other instance can have this store.
    pub(super) alone: AtomicBool,
    /// Rows that no statement may name.
    pub(super) refused: Mutex<HashSet<ResourceKey>>,
    /// The most rows that a statement has time for; 0: any number.
    pub(super) most: AtomicUsize,
}

pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Double {
    /// Plans the outcome of the next call of this name that has no plan yet.
    pub(crate) fn plan(&self, call: &'static str, plan: CallPlan) {
        held(&self.acts).entry(call).or_default().push_back(plan);
    }

    /// Nothing is planned for this call any more.
    pub(crate) fn forget_plans(&self, call: &'static str) {
        held(&self.acts).remove(call);
    }

    /// No other instance can have this store, as with `SQLite`.
    pub(crate) fn alone() -> Self {
        let store = Self::default();
        store.alone.store(true, Ordering::SeqCst);
        store
    }

    pub(crate) fn refuse_row(&self, key: &ResourceKey) {
        held(&self.refused).insert(key.clone());
    }

    pub(crate) fn has_time_for(&self, most: usize) {
        self.most.store(most, Ordering::SeqCst);
    }

    pub(crate) fn lock_row(&self, key: &ResourceKey) {
        held(&self.locked).insert(key.clone());
    }

    pub(crate) fn lock_new_row(&self, key: &ResourceKey) {
        self.unseen.store(true, Ordering::SeqCst);
        self.lock_row(key);
    }

    pub(crate) fn unlock_row(&self, key: &ResourceKey) {
        held(&self.locked).remove(key);
    }

    pub(crate) fn unlock_rows(&self) {
        held(&self.locked).clear();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    pub(crate) fn calls(&self, call: &str) -> usize {
        held(&self.calls).get(call).copied().unwrap_or(0)
    }

    /// Every subscription broke, and is there again.
    pub(crate) fn resubscribe(&self) {
        for listener in held(&self.listeners).iter() {
            let _ = listener.try_send(Heard::Resumed);
        }
    }

    /// Sends a notification, as any client of the store may.
    pub(crate) fn notify(&self, notification: &Notification) {
        for listener in held(&self.listeners).iter() {
            let _ = listener.try_send(Heard::Notification(notification.clone()));
        }
    }

    pub(crate) fn announced(&self) -> Vec<Notification> {
        held(&self.announced).clone()
    }

    /// The openings and tokens on record for a resource.
    pub(crate) fn open(&self, key: &ResourceKey) -> Vec<(Opening, i64)> {
        let state = self.state();
        let rows = state.epochs.iter().filter(|row| row.resource == *key);
        rows.map(|row| (row.opening, row.token.get())).collect()
    }

    pub(crate) fn mark_of(&self, key: &ResourceKey) -> Option<i64> {
        self.state().marks.get(key).map(|mark| mark.0.get())
    }

    /// The calls of these names in the order in which they came, with how many rows each named at
    /// the most.
    pub(crate) fn order(&self, names: &[&str]) -> Vec<(&'static str, usize)> {
        let mut calls = held(&self.order).clone();
        calls.retain(|(call, _)| names.contains(call));
        calls
    }

    pub(super) fn note(&self, call: &'static str, rows: usize) {
        held(&self.order).push((call, rows));
    }

    /// Commits the calls that were in doubt.
    pub(crate) fn commit_late(&self) {
        for work in held(&self.late).drain(..) {
            work(&mut held(&self.state));
        }
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

    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        *held(&self.calls).entry(call).or_default() += 1;
        let act = held(&self.acts).get_mut(call).and_then(VecDeque::pop_front);
        match act {
            None => Ok(work(&mut self.state())),
            Some(CallPlan::Fail(error)) => Err(error),
            Some(CallPlan::Lose) => {
                work(&mut self.state());
                Err(broken())
            }
            Some(CallPlan::Late) => {
                held(&self.late).push(Box::new(|state| {
                    work(state);
                }));
                Err(broken())
            }
            Some(CallPlan::Hold(go)) => {
                go.notified().await;
                Ok(work(&mut self.state()))
            }
            Some(CallPlan::HoldAnswer(go)) => {
                let done = work(&mut self.state());
                go.notified().await;
                Ok(done)
            }
        }
    }
}

/// An instance's own rows, in order, with the marks of their resources.
pub(super) fn own(state: &State, instance: &InstanceId) -> Vec<OwnRow> {
    let own = state.epochs.iter().filter(|row| row.instance == *instance);
    let mark = |row: &EpochRow| state.marks.get(&row.resource).map(|mark| mark.0);
    let mut rows: Vec<OwnRow> = own.map(|row| (row.clone(), mark(row))).collect();
    rows.sort_by_key(|(row, _)| place(row));
    rows
}

pub(super) fn place(row: &EpochRow) -> Cursor {
    (row.resource.clone(), row.opening)
}
