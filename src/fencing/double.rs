//! A store in memory for tests: shared by any number of instances, and able to be slow, to fail, to lose
//! an answer, to commit late, and to keep a row locked.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::epochs::{EpochTable, RequestLimits};
use super::failure_detector::FailureDetector;
use super::growth::{Growth, Rates};
use super::lease::Lease;
use super::membership::{Burials, Membership};
use super::writer::{Meters, Writer, WriterHandle, WriterSetup};
use crate::boot_clock::BootClock;
use crate::config::RouteTable;
use crate::routing::{ResourceKey, Token};
use crate::store::reckoning::Reckoning;
use crate::store::routes::RouteRecord;
use crate::store::{
    Administration, Ask, AuditRow, Batch, Batched, Burial, Count, Cursor, EpochRow, Era, Found,
    Heard, InstanceId, InstanceRow, Instances, MarkRow, MarkStore, Marks, Notification, Opening,
    Override, OwnRow, RecordedRoutes, Renewal, StoreError, Terms,
};

/// Room for all that a test has.
pub const ROOM: RequestLimits = RequestLimits {
    queue: 9,
    share: usize::MAX,
    waiting: usize::MAX,
};

/// What becomes of one call.
pub(crate) enum Act {
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

/// How many epochs one step of a burial deletes here.
const MOST_PER_BURIAL: usize = 10;

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
    /// What [`MarkStore::instances_over`] says.
    pub instances_over: u64,
    /// How often tokens of a resource were given back.
    pub given_back: HashMap<ResourceKey, i64>,
}

type Later = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
pub(crate) struct Double {
    state: Arc<Mutex<State>>,
    acts: Mutex<HashMap<&'static str, VecDeque<Act>>>,
    calls: Mutex<HashMap<&'static str, usize>>,
    /// The calls in the order in which they came, with how many rows each named.
    order: Mutex<Vec<(&'static str, usize)>>,
    late: Mutex<Vec<Later>>,
    locked: Mutex<HashSet<ResourceKey>>,
    news: Mutex<Vec<Notification>>,
    listeners: Mutex<Vec<mpsc::Sender<Heard>>>,
    /// Nobody else can have this store.
    alone: AtomicBool,
    /// Rows that no statement may name.
    refused: Mutex<HashSet<ResourceKey>>,
    /// The most rows that a statement has time for; 0: any number.
    most: AtomicUsize,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Double {
    /// What becomes of the next call of this name (that nothing is planned for yet).
    pub(crate) fn plan(&self, call: &'static str, act: Act) {
        held(&self.acts).entry(call).or_default().push_back(act);
    }

    /// Nothing is planned for this call any more.
    pub(crate) fn forget_plans(&self, call: &'static str) {
        held(&self.acts).remove(call);
    }

    /// Nobody else can have this store, as with `SQLite`.
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

    /// Somebody notifies, who need not be a fencepost.
    pub(crate) fn notify(&self, news: &Notification) {
        for listener in held(&self.listeners).iter() {
            let _ = listener.try_send(Heard::Notification(news.clone()));
        }
    }

    pub(crate) fn news(&self) -> Vec<Notification> {
        held(&self.news).clone()
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

    /// The calls of these names in the order in which they came, with how many rows each named at the most.
    pub(crate) fn order(&self, names: &[&str]) -> Vec<(&'static str, usize)> {
        let mut calls = held(&self.order).clone();
        calls.retain(|(call, _)| names.contains(call));
        calls
    }

    fn note(&self, call: &'static str, rows: usize) {
        held(&self.order).push((call, rows));
    }

    /// What was in doubt is done now.
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

    async fn run<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        *held(&self.calls).entry(call).or_default() += 1;
        let act = held(&self.acts).get_mut(call).and_then(VecDeque::pop_front);
        match act {
            None => Ok(work(&mut self.state())),
            Some(Act::Fail(error)) => Err(error),
            Some(Act::Lose) => {
                work(&mut self.state());
                Err(broken())
            }
            Some(Act::Late) => {
                held(&self.late).push(Box::new(|state| {
                    work(state);
                }));
                Err(broken())
            }
            Some(Act::Hold(go)) => {
                go.notified().await;
                Ok(work(&mut self.state()))
            }
            Some(Act::HoldAnswer(go)) => {
                let done = work(&mut self.state());
                go.notified().await;
                Ok(done)
            }
        }
    }
}

fn advance(state: &mut State, instance: &InstanceId, era: Era, asks: Vec<Ask>) -> Vec<Found> {
    let mut all = Vec::new();
    for ask in asks {
        let before = state.marks.get(&ask.resource).cloned();
        if before.is_none() && ask.needs.present {
            all.push(Found {
                before: None,
                era: 0,
                spent_by: None,
                given_back: 0,
            });
            continue;
        }
        let row = state
            .marks
            .entry(ask.resource.clone())
            .or_insert((ask.token, None, 0));
        let given_back = state.given_back.get(&ask.resource).copied();
        let met = ask.needs.met_by(before.as_ref().map(|row| row.0));
        if row.2 <= era && met {
            if row.0 < ask.token {
                (row.0, row.1) = (ask.token, None);
            }
            if row.0 == ask.token {
                row.1 = row.1.take().or(ask.spend);
                if let Some(opening) = ask.opening {
                    state.epochs.push(EpochRow {
                        resource: ask.resource,
                        instance: instance.clone(),
                        opening,
                        token: ask.token,
                    });
                }
            }
        }
        let is_mark = row.0 == ask.token;
        all.push(Found {
            before: before.map(|row| row.0),
            era: row.2,
            spent_by: row.1.clone().filter(|_| is_mark),
            given_back: given_back.unwrap_or_default(),
        });
    }
    all
}

/// An instance's own rows, in order, with the marks of their resources.
fn own(state: &State, instance: &InstanceId) -> Vec<OwnRow> {
    let own = state.epochs.iter().filter(|row| row.instance == *instance);
    let mark = |row: &EpochRow| state.marks.get(&row.resource).map(|mark| mark.0);
    let mut rows: Vec<OwnRow> = own.map(|row| (row.clone(), mark(row))).collect();
    rows.sort_by_key(|(row, _)| place(row));
    rows
}

fn place(row: &EpochRow) -> Cursor {
    (row.resource.clone(), row.opening)
}

#[async_trait]
impl Marks for Double {
    async fn advance(
        &self,
        instance: &InstanceId,
        era: Era,
        asks: &[Ask],
    ) -> Result<Vec<Found>, StoreError> {
        if asks
            .iter()
            .any(|ask| held(&self.locked).contains(&ask.resource))
        {
            *held(&self.calls).entry("advance").or_default() += 1;
            return Err(StoreError::LockTimeout("locked by the test".into()));
        }
        if asks
            .iter()
            .any(|ask| held(&self.refused).contains(&ask.resource))
        {
            *held(&self.calls).entry("advance").or_default() += 1;
            return Err(StoreError::Statement("refused by the test".into()));
        }
        let most = self.most.load(Ordering::SeqCst);
        if most != 0 && asks.len() > most {
            *held(&self.calls).entry("advance").or_default() += 1;
            return Err(StoreError::Timeout(Duration::from_secs(1)));
        }
        self.note("advance", asks.len());
        let (instance, asks) = (instance.clone(), asks.to_vec());
        self.run("advance", move |state| advance(state, &instance, era, asks))
            .await
    }

    /// The two statements and the deletion, one after the other, so that each can be made to fail.
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let found = self.advance(batch.instance, batch.era, batch.asks).await?;
        if !batch.closes.is_empty() {
            self.note("ride", batch.closes.len());
            let gone: HashSet<EpochRow> = batch.closes.iter().cloned().collect();
            self.state().epochs.retain(|row| !gone.contains(row));
        }
        let opened = batch.asks.iter().zip(&found).filter(|(ask, found)| {
            ask.opening.is_some()
                && found.era <= batch.era
                && ask.needs.met_by(found.before)
                && found.before.is_none_or(|before| before <= ask.token)
        });
        let opened: Vec<&Ask> = opened.map(|(ask, _)| ask).collect();
        let mut keys = batch.looks.to_vec();
        keys.extend(opened.iter().map(|ask| ask.resource.clone()));
        let (mut epochs, mut lost) = (Ok(Vec::new()), Vec::new());
        if !keys.is_empty() {
            epochs = self.epochs(&keys).await;
        }
        if let Ok(rows) = &epochs {
            let there = |ask: &Ask| rows.iter().any(|row| Some(row.opening) == ask.opening);
            let gone = opened.into_iter().filter(|ask| !there(ask));
            lost.extend(gone.map(|ask| ask.resource.clone()));
        }
        Ok(Batched {
            found,
            epochs,
            lost,
            told: false,
        })
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        let resources = resources.to_vec();
        self.run("epochs", move |state| {
            let rows = state.epochs.iter();
            rows.filter(|row| resources.contains(&row.resource))
                .cloned()
                .collect()
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.note("close", epochs.len());
        let gone: HashSet<EpochRow> = epochs.iter().cloned().collect();
        self.run("close", move |state| {
            state.epochs.retain(|row| !gone.contains(row));
        })
        .await
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.note("own", limit);
        let (instance, after) = (instance.clone(), after.cloned());
        self.run("own", move |state| {
            let mut rows = own(state, &instance);
            rows.retain(|(row, _)| after.as_ref().is_none_or(|after| place(row) > *after));
            rows.truncate(limit);
            rows
        })
        .await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        self.note("own_of", resources.len());
        let instance = instance.clone();
        let resources: HashSet<ResourceKey> = resources.iter().cloned().collect();
        self.run("own_of", move |state| {
            let mut rows = own(state, &instance);
            rows.retain(|(row, _)| resources.contains(&row.resource));
            rows
        })
        .await
    }

    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError> {
        let (instance, after, kept) = (instance.clone(), after.cloned(), kept.to_vec());
        self.run("close_own", move |state| {
            let mut rows = own(state, &instance);
            rows.retain(|(row, _)| after.as_ref().is_none_or(|after| place(row) > *after));
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let next = rows.get(limit - 1).map(|(row, _)| place(row));
            rows.truncate(limit);
            let gone: HashSet<EpochRow> = rows.into_iter().map(|(row, _)| row).collect();
            state
                .epochs
                .retain(|row| kept.contains(&row.opening) || !gone.contains(row));
            next
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = epochs.to_vec();
        self.run("reopen", move |state| {
            for row in epochs {
                if !state.epochs.contains(&row) {
                    state.epochs.push(row);
                }
            }
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let spends = spends.to_vec();
        self.run("give_back", move |state| {
            for (key, token, name) in spends {
                if let Some(row) = state.marks.get_mut(&key)
                    && row.0 == token
                    && row.1.as_ref() == Some(&name)
                {
                    row.1 = None;
                    *state.given_back.entry(key).or_default() += 1;
                }
            }
        })
        .await
    }

    async fn announce(&self, news: &[Notification]) -> Result<(), StoreError> {
        self.note("announce", news.len());
        let said = news.to_vec();
        self.run("announce", |_| ()).await?;
        let listeners = held(&self.listeners).clone();
        for news in said {
            held(&self.news).push(news.clone());
            for listener in &listeners {
                let _ = listener.try_send(Heard::Notification(news.clone()));
            }
        }
        Ok(())
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        let resources = resources.to_vec();
        self.run("marks", move |state| {
            let rows = resources.into_iter().filter_map(|resource| {
                let (token, spent, era) = state.marks.get(&resource)?.clone();
                Some(MarkRow {
                    resource,
                    token,
                    spent: spent.is_some(),
                    era,
                    since_ms: 0,
                })
            });
            rows.collect()
        })
        .await
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (tx, rx) = mpsc::channel(64);
        held(&self.listeners).push(tx);
        Some(rx)
    }
}

#[async_trait]
impl Instances for Double {
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let row = InstanceRow {
            id: instance.clone(),
            renewals: terms.renewals,
            lease: terms.lease,
            settle: terms.settle,
            undelivered: terms.undelivered,
            routes: terms.routes.clone(),
            dead: false,
            elsewhere: false,
        };
        self.run("join", move |state| {
            if state.instances.contains_key(&row.id) {
                return Err(StoreError::Statement("the id is taken".into()));
            }
            state.instances.insert(row.id.clone(), row);
            Ok(state.era)
        })
        .await?
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        let (instance, digest) = (instance.clone(), digest.to_owned());
        self.run("set_routes", move |state| {
            if let Some(row) = state.instances.get_mut(&instance) {
                row.routes = digest;
            }
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        let instance = instance.clone();
        self.run("renew", move |state| {
            let era = state.era;
            match state.instances.get_mut(&instance) {
                Some(row) if !row.dead => {
                    row.renewals = row.renewals.max(renewals);
                    Renewal::Alive(era)
                }
                Some(_) => Renewal::Dead,
                None => Renewal::Unknown,
            }
        })
        .await
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.run("raise_era", move |state| state.era = state.era.max(era))
            .await
    }

    fn connections(&self) -> u64 {
        held(&self.state).connections
    }

    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.run("instances", |state| {
            state.instances.values().cloned().collect()
        })
        .await
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.note("orphans", 0);
        self.run("instances", |state| {
            let mut rows: Vec<InstanceRow> = state.instances.values().cloned().collect();
            for epoch in &state.epochs {
                if rows.iter().all(|row| row.id != epoch.instance) {
                    rows.push(InstanceRow {
                        id: epoch.instance.clone(),
                        renewals: 0,
                        lease: Duration::ZERO,
                        settle: Duration::ZERO,
                        undelivered: Duration::ZERO,
                        routes: String::new(),
                        dead: true,
                        elsewhere: false,
                    });
                }
            }
            rows
        })
        .await
    }

    fn instances_over(&self) -> u64 {
        held(&self.state).instances_over
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let instance = instance.clone();
        self.run("declare_dead", move |state| {
            state.instances.get_mut(&instance).is_none_or(|row| {
                row.dead |= row.renewals == renewals;
                row.dead
            })
        })
        .await
    }

    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        self.note("bury", first.len());
        let (instance, first, after) = (instance.clone(), first.to_vec(), after.cloned());
        self.run("bury", move |state| {
            if state.instances.get(&instance).is_some_and(|row| !row.dead) {
                return Burial::default();
            }
            let rows = own(state, &instance).into_iter().map(|(row, _)| row);
            let (mut doomed, mut rest): (Vec<_>, Vec<_>) =
                rows.partition(|row| first.contains(&row.resource));
            rest.retain(|row| after.as_ref().is_none_or(|after| place(row) > *after));
            rest.truncate(MOST_PER_BURIAL);
            let next = rest.get(MOST_PER_BURIAL - 1).map(place);
            doomed.extend(rest);
            if next.is_none() {
                state.instances.remove(&instance);
            }
            state.epochs.retain(|row| !doomed.contains(row));
            let freed = doomed.into_iter().map(|row| row.resource).collect();
            Burial { freed, next }
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let instance = instance.clone();
        self.run("leave", move |state| {
            if state.epochs.iter().any(|row| row.instance == instance) {
                if let Some(row) = state.instances.get_mut(&instance) {
                    row.dead = true;
                }
            } else {
                state.instances.remove(&instance);
            }
        })
        .await
    }
}

#[async_trait]
impl Administration for Double {
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list(&self, _: &str, _: Option<&str>, _: u32) -> Result<Vec<MarkRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        Ok(Count {
            marks: 0,
            more: false,
        })
    }

    fn counted(&self) -> Option<u64> {
        None
    }

    async fn mark(&self, _: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        Ok(None)
    }

    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError> {
        self.epochs(std::slice::from_ref(resource)).await
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        _: &str,
        _: &str,
    ) -> Result<Override, StoreError> {
        let key = resource.clone();
        self.run("override_mark", move |state| {
            let open = state.epochs.iter().filter(|row| row.resource == key);
            let open: Vec<EpochRow> = open.cloned().collect();
            if !open.is_empty() {
                return Override::EpochsOpen(open);
            }
            let Some(row) = state.marks.get_mut(&key) else {
                return Override::Absent;
            };
            state.era += 1;
            let before = row.0;
            *row = (token, None, state.era);
            Override::Done {
                before,
                era: state.era,
            }
        })
        .await
    }

    async fn record_audit(&self, _: &AuditRow) -> Result<(), StoreError> {
        Ok(())
    }

    async fn audit(&self, _: &ResourceKey, _: u32) -> Result<Vec<AuditRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn routes(&self) -> Result<RecordedRoutes, StoreError> {
        self.run("routes", |state| RecordedRoutes {
            document: state.routes.clone(),
            templates: Vec::new(),
        })
        .await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        let (known, document) = (known.map(str::to_owned), document.to_owned());
        self.run("record_routes", move |state| {
            let same = state.routes == known;
            if same {
                state.routes = Some(document);
            }
            same
        })
        .await
    }

    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        let document = document.to_owned();
        self.run("replace_routes", move |state| {
            if state.instances.is_empty() {
                state.routes = Some(document);
            }
            state.instances.values().cloned().collect()
        })
        .await
    }
}

impl MarkStore for Double {
    fn kind(&self) -> &'static str {
        "double"
    }

    fn shared(&self) -> bool {
        !self.alone.load(Ordering::SeqCst)
    }
}

// --- one instance over a store ---

pub(crate) const SETTLE: Duration = Duration::from_secs(30);
pub(crate) const UNDELIVERED: Duration = Duration::from_secs(10);
pub(crate) const TERM: Duration = Duration::from_secs(5);

/// What this instance waits for after another's death, and after a loss: see [`Reckoning`].
pub(crate) const DEATH: Duration = Duration::from_secs(48);
pub(crate) const LOSS: Duration = Duration::from_secs(54);
/// How long a counter must stand still.
pub(crate) const SILENCE: Duration = Duration::from_secs(6);

/// One instance, with its writer running. A test steps the membership task by hand.
pub(crate) struct Rig {
    pub store: Arc<dyn MarkStore>,
    pub epoch_table: Arc<EpochTable>,
    pub lease: Arc<Lease>,
    pub detector: Arc<FailureDetector>,
    pub writer: WriterHandle,
    pub meters: Meters,
    pub growth: Arc<Growth>,
    pub unknown: IntGauge,
}

pub(crate) fn key(text: &str) -> ResourceKey {
    ResourceKey::new(text).expect("a key")
}

pub(crate) fn token(number: i64) -> Token {
    Token::new(number).expect("a token")
}

/// tokio's clock, so that a paused one drives leases too.
pub(crate) fn clock() -> BootClock {
    let start = Instant::now();
    BootClock::from_fn(move || start.elapsed() + Duration::from_secs(1))
}

fn meters() -> Meters {
    let histogram = |name| Histogram::with_opts(HistogramOpts::new(name, "of a test"));
    let errors = IntCounterVec::new(Opts::new("errors", "of a test"), &["kind"]);
    Meters {
        new_resources: IntCounter::new("new", "of a test").expect("good options"),
        batch_size: histogram("batch").expect("good options"),
        commit_seconds: histogram("commit").expect("good options"),
        errors: errors.expect("good options"),
        regressions: IntCounter::new("regressions", "of a test").expect("good options"),
        up: IntGauge::new("up", "of a test").expect("good options"),
        trouble: Arc::default(),
    }
}

impl Rig {
    /// An instance that has joined.
    pub(crate) async fn new(store: Arc<dyn MarkStore>, id: u128, clock: BootClock) -> Self {
        let term = store.shared().then_some(TERM);
        let lease = Lease::new(clock, term, InstanceId::from_bits(id));
        let reckoning = if store.shared() {
            Reckoning::shared(TERM, UNDELIVERED, SETTLE)
        } else {
            Reckoning::alone(SETTLE)
        };
        let lease = Arc::new(lease.cutting_after(reckoning.cutoff()));
        let detector = Arc::new(FailureDetector::new(reckoning));
        let gauge = |name| IntGauge::new(name, "of a test").expect("good options");
        let (tx, drained) = mpsc::unbounded_channel();
        let unknown = gauge("unknown");
        let epoch_table = EpochTable::new(
            1000,
            SETTLE,
            reckoning.after_loss(),
            tx,
            gauge("open"),
            unknown.clone(),
        );
        let epoch_table = Arc::new(epoch_table);
        let meters = meters();
        let growth = Arc::new(Growth::new(Rates::default()));
        let (task, writer) = Writer::new(WriterSetup {
            store: Arc::clone(&store),
            epoch_table: Arc::clone(&epoch_table),
            lease: Arc::clone(&lease),
            detector: Arc::clone(&detector),
            meters: meters.clone(),
            growth: Arc::clone(&growth),
            drained,
        });
        tokio::spawn(task.run());
        let rig = Self {
            store,
            epoch_table,
            lease,
            detector,
            writer,
            meters,
            growth,
            unknown,
        };
        rig.membership().join().await.expect("joined");
        rig
    }

    /// Every epoch row that is registered here, of the generation of now.
    pub(crate) fn open_rows(&self) -> Vec<EpochRow> {
        let shards = 0..self.epoch_table.shards();
        let generation = self.lease.generation();
        shards
            .flat_map(|shard| self.epoch_table.open_rows(shard, generation))
            .collect()
    }

    pub(crate) fn membership(&self) -> Membership {
        Membership {
            store: Arc::clone(&self.store),
            epoch_table: Arc::clone(&self.epoch_table),
            lease: Arc::clone(&self.lease),
            detector: Arc::clone(&self.detector),
            writer: self.writer.clone(),
            meters: self.meters.clone(),
            remaining: Gauge::new("remaining", "of a test").expect("good options"),
            term: TERM,
            settle: SETTLE,
            undelivered: UNDELIVERED,
            routes: Arc::new(RouteRecord::new(
                RouteTable::default(),
                IntGauge::new("mismatch", "of a test").expect("good options"),
            )),
            burials: Burials::default(),
            bits: rand::random,
        }
    }
}
