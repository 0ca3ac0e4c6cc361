//! The writer's own task: gather, send, enter the answers in the epoch table, answer, clean up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::answers::Answers;
use super::batch::{self, Group, Load, Outcome};
use super::closes::Closes;
use super::judge::{mark_after, room_for};
use super::own::{Own, OwnHandle};
use super::repairs::MOST_REPAIRS;
use super::said::Said;
use super::{Answer, Command, Meters, Waiter, Want, WriterError, WriterHandle};
use crate::fencing::epochs::{Drained, EpochTable, Look, Looked, Spend};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::growth::Growth;
use crate::fencing::lease::{Identity, Lease};
use crate::routing::{ResourceKey, Token};
use crate::store::{Ask, EpochRow, Era, Found, MarkStore, Notification, Opening, StoreError};

/// The most resources that one statement names.
const MOST_PER_BATCH: usize = 1024;
/// The most statements that are under way beside the writer at once.
const MOST_ASIDE: usize = 8;
/// How long a resource that ran into a row lock is asked about beside the writer.
pub(super) const TROUBLE: Duration = Duration::from_secs(30);
/// The most drained epochs that are taken in at once.
const MOST_DRAINED: usize = 2048;
/// How often failed upkeep is tried again.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// How often an era may send a request back before it is given up.
const MOST_TRIES: u8 = 4;

/// What the writer works with.
pub struct WriterSetup {
    pub store: Arc<dyn MarkStore>,
    pub epoch_table: Arc<EpochTable>,
    pub lease: Arc<Lease>,
    pub detector: Arc<FailureDetector>,
    pub meters: Meters,
    pub growth: Arc<Growth>,
    pub drained: mpsc::UnboundedReceiver<Drained>,
}

/// See the module's page. [`Writer::run`] is the task.
pub struct Writer {
    pub(super) store: Arc<dyn MarkStore>,
    pub(super) epoch_table: Arc<EpochTable>,
    pub(super) lease: Arc<Lease>,
    pub(super) detector: Arc<FailureDetector>,
    pub(super) meters: Meters,
    pub(super) growth: Arc<Growth>,
    pub(super) tx: mpsc::WeakUnboundedSender<Command>,
    pub(super) rx: mpsc::UnboundedReceiver<Command>,
    pub(super) drained: mpsc::UnboundedReceiver<Drained>,
    pub(super) openings: Opening,
    /// Openings whose statement has no answer yet: their rows are not nobody's.
    pub(super) unanswered: HashSet<Opening>,
    pub(super) waiting: VecDeque<(ResourceKey, Waiter)>,
    /// Those of the batch that is being entered.
    pub(super) answers: Answers,
    pub(super) looks: HashSet<ResourceKey>,
    /// Those of them that tell nobody who is still in the way: their owners have just been told.
    pub(super) quiet: HashSet<ResourceKey>,
    /// Looks that were asked for because something was closed elsewhere, and who waits to hear whether it helped.
    pub(super) closed: Vec<(Vec<ResourceKey>, oneshot::Sender<bool>)>,
    pub(super) gives: Vec<((ResourceKey, Token, String), oneshot::Sender<bool>)>,
    pub(super) closes: Closes,
    /// How many resources this turn's batch had.
    pub(super) batch: usize,
    /// Resources that ran into a row lock, with those who wait until their own statement is answered.
    pub(super) aside: HashMap<ResourceKey, Vec<Waiter>>,
    pub(super) aside_room: Arc<Semaphore>,
    /// Resources that lately ran into a row lock, and until when they are kept off the writer.
    pub(super) trouble: HashMap<ResourceKey, Instant>,
    pub(super) repairs: HashSet<ResourceKey>,
    /// Something is to be repaired that has not been tried yet.
    pub(super) repair: bool,
    /// How many are repaired together: fewer after a failure.
    pub(super) most_repairs: usize,
    /// Reads this instance's own rows, on a connection of its own.
    pub(super) own: OwnHandle,
    pub(super) reconciled: Instant,
    /// When a statement's fate was last in doubt.
    pub(super) doubted: Option<Instant>,
    pub(super) said: Said,
    pub(super) stop: Option<oneshot::Sender<()>>,
}

impl Writer {
    #[must_use]
    pub fn new(setup: WriterSetup) -> (Self, WriterHandle) {
        let (tx, rx) = mpsc::unbounded_channel();
        let own = OwnHandle::new(setup.store.shared());
        let writer = Self {
            store: setup.store,
            epoch_table: setup.epoch_table,
            lease: setup.lease,
            detector: setup.detector,
            meters: setup.meters,
            growth: setup.growth,
            tx: tx.downgrade(),
            rx,
            drained: setup.drained,
            openings: 0,
            unanswered: HashSet::new(),
            waiting: VecDeque::new(),
            answers: Answers::default(),
            looks: HashSet::new(),
            quiet: HashSet::new(),
            closed: Vec::new(),
            gives: Vec::new(),
            closes: Closes::new(Instant::now()),
            batch: 0,
            aside: HashMap::new(),
            aside_room: Arc::new(Semaphore::new(MOST_ASIDE)),
            trouble: HashMap::new(),
            repairs: HashSet::new(),
            repair: false,
            most_repairs: MOST_REPAIRS,
            own: own.clone(),
            reconciled: Instant::now(),
            doubted: None,
            said: Said::default(),
            stop: None,
        };
        (writer, WriterHandle { tx, own })
    }

    /// Runs until [`WriterHandle::stop`], or until every handle is gone.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let own = Own::new(&self).run();
        let mut own = AbortOnDropHandle::new(tokio::spawn(own));
        loop {
            let mut upkeep = false;
            if self.waiting.is_empty() && self.looks.is_empty() && !self.repair {
                let close = self.closes.due();
                tokio::select! {
                    command = self.rx.recv() => match command {
                        Some(command) => self.take(command),
                        None => return,
                    },
                    Some(drained) = self.drained.recv() => self.drain(drained),
                    () = tokio::time::sleep_until(close.unwrap_or_else(Instant::now)),
                        if close.is_some() => {}
                    _ = tick.tick() => upkeep = true,
                    // Without it nobody would look for what others have superseded.
                    _ = &mut own => return,
                }
            }
            while self.waiting.len() < MOST_PER_BATCH {
                match self.rx.try_recv() {
                    Ok(command) => self.take(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.turn(upkeep).await;
            if let Some(done) = self.stop.take() {
                drop(own);
                self.close_all().await;
                let _ = done.send(());
                return;
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Ask(key, waiter) => {
                if self.aside.contains_key(&key) || self.trouble.contains_key(&key) {
                    self.set_aside(&key, vec![waiter]);
                } else {
                    self.waiting.push_back((key, waiter));
                }
            }
            Command::GiveBack { spend, reply } => self.gives.push((spend, reply)),
            Command::Look(key) => self.look(key),
            Command::Closed(mut keys, judged) => {
                keys.retain(|key| self.epoch_table.waits_for_others(key));
                for key in &keys {
                    if self.looks.insert(key.clone()) {
                        self.quiet.insert(key.clone());
                    }
                }
                self.closed.push((keys, judged));
            }
            Command::Unclaimed(rows, judged) => {
                self.disown(rows);
                let _ = judged.send(());
            }
            Command::Missing(rows, generation, judged) => {
                self.miss(&rows, generation);
                let _ = judged.send(());
            }
            Command::Stop(done) => self.stop = Some(done),
            Command::Aside(outcome) => self.aside_done(*outcome),
        }
    }

    pub(super) fn drain(&mut self, drained: Drained) {
        let Drained { row, wanted } = drained;
        self.closes.push(row, wanted, Instant::now());
    }

    /// Takes in what has drained, so much that requests need not wait for it.
    fn drain_some(&mut self) {
        for _ in 0..MOST_DRAINED {
            let Ok(drained) = self.drained.try_recv() else {
                return;
            };
            self.drain(drained);
        }
    }

    async fn turn(&mut self, upkeep: bool) {
        // The era before what is known in it: an override that is learned of in between sends the statement back.
        // The other way round, a mark of the era before would be missed in the new one, and taken for lost.
        let era = self.epoch_table.era();
        let by = self.lease.identity();
        let groups = self.gather(&by);
        let looks = self.next_looks();
        self.batch = groups.len();
        if !groups.is_empty() || !looks.is_empty() {
            let now = Instant::now();
            self.drain_some();
            let riders = self.closes.riders(groups.len(), now);
            self.closes.asked(now);
            let load = Load {
                groups,
                riders,
                looks,
            };
            let outcome = batch::send(&self.store, &self.meters, load, era, by).await;
            let news = self.enter(outcome, false);
            self.announce(news).await;
        }
        self.judge_closed();
        self.give_back().await;
        self.drain_some();
        self.close_some().await;
        if upkeep {
            let now = Instant::now();
            self.trouble.retain(|_, until| *until > now);
            self.look_for_late_openings(now);
        }
        if upkeep || std::mem::take(&mut self.repair) {
            self.repair().await;
        }
    }

    /// Has the resource looked at, and those told who are still in the way.
    pub(super) fn look(&mut self, key: ResourceKey) {
        self.quiet.remove(&key);
        self.looks.insert(key);
    }

    /// Answers those whose looks have been made.
    fn judge_closed(&mut self) {
        let (looks, epoch_table) = (&self.looks, &self.epoch_table);
        let made = |keys: &Vec<ResourceKey>| keys.iter().all(|key| !looks.contains(key));
        for (keys, judged) in self.closed.extract_if(.., |(keys, _)| made(keys)) {
            let helped = keys.iter().any(|key| !epoch_table.waits_for_others(key));
            let _ = judged.send(helped || keys.is_empty());
        }
    }

    fn next_looks(&mut self) -> Vec<ResourceKey> {
        let next = self.looks.iter().take(MOST_PER_BATCH).cloned();
        let next: Vec<ResourceKey> = next.collect();
        for key in &next {
            self.looks.remove(key);
        }
        next
    }

    /// Folds what waits into a batch. What memory can tell by now needs no statement.
    fn gather(&mut self, by: &Identity) -> Vec<Group> {
        let mut fresh = Vec::with_capacity(self.waiting.len());
        for (key, waiter) in self.waiting.drain(..) {
            if waiter.reply.is_closed() {
                continue;
            }
            match self.epoch_table.look(&key, waiter.token, by.generation) {
                Look::Stale(mark) => {
                    waiter.reply.send(Ok(Answer::Stale { mark }));
                }
                Look::Open if waiter.want == Want::Open => {
                    waiter.reply.send(Ok(Answer::Granted { advanced: false }));
                }
                Look::Open | Look::Ask | Look::Barred(_) => fresh.push((key, waiter)),
            }
        }
        self.fold(fresh, by)
    }

    pub(super) fn fold(
        &mut self,
        waiting: Vec<(ResourceKey, Waiter)>,
        by: &Identity,
    ) -> Vec<Group> {
        let (epoch_table, growth) = (&self.epoch_table, &self.growth);
        let known = |key: &ResourceKey| epoch_table.known_in(key);
        let room = |waiter: &Waiter| room_for(growth, waiter);
        let mut groups = batch::fold(waiting, known, room, || {
            self.openings += 1;
            self.unanswered.insert(self.openings);
            self.openings
        });
        for group in &mut groups {
            group.spent = self.epoch_table.spent(&group.ask.resource);
        }
        // Looked at after what is known was read. Who may have been declared dead may have missed an override of
        // what its epochs protected, and holds no mark against the store's.
        if !self.lease.holds(by.generation) {
            for group in &mut groups {
                group.known = None;
                group.spent = None;
            }
        }
        groups
    }

    /// Enters a batch's answers in the epoch table and answers those who wait. Returns whom to tell.
    pub(super) fn enter(&mut self, outcome: Outcome, aside: bool) -> Vec<Notification> {
        let Outcome {
            groups,
            riders,
            era,
            by,
            result,
            epochs,
            lost,
            told,
            looks,
        } = outcome;
        for opening in groups.iter().filter_map(|group| group.ask.opening) {
            self.unanswered.remove(&opening);
        }
        self.give_places_back(&groups, &result);
        let mut news = Vec::new();
        let now = Instant::now();
        match &result {
            Ok(_) => {
                self.closes.ridden(&riders, now);
                news.extend(closed(&riders.rows[..riders.wanted]));
            }
            // Maybe by these rows, so that the next batch goes without.
            Err(_) if !riders.rows.is_empty() => self.closes.failed(now),
            Err(_) => {}
        }
        for key in &looks {
            let quiet = self.quiet.remove(key);
            if let Ok(rows) = &epochs {
                let rows = rows.get(key).map_or(&[][..], Vec::as_slice);
                match self.epoch_table.looked(key, rows, by.generation) {
                    Looked::Left(_) if quiet => {}
                    Looked::Left(left) => {
                        for (older, token) in left {
                            self.tell(&mut news, &older, token, era);
                        }
                    }
                    // Under a lapsed lease they may have been deleted by those who hold this instance dead.
                    Looked::Lost if self.lease.holds(by.generation) => self.epoch_lost(key),
                    Looked::Lost => {}
                }
            }
        }
        match result {
            Ok(found) => {
                let mut waits = Vec::new();
                for (group, found) in groups.into_iter().zip(found) {
                    let rows = rows_of(&epochs, &lost, &group.ask.resource);
                    self.enter_one(group, &found, era, &by, rows, &mut waits);
                }
                if !told {
                    news.extend(waits);
                }
            }
            Err(StoreError::LockTimeout(message)) if !aside => {
                if let Some(left_out) = self.said.locked.say(Instant::now()) {
                    tracing::warn!(
                        error = message,
                        resources = groups.len(),
                        left_out,
                        "a batch ran into a row lock and is taken apart"
                    );
                }
                for group in groups {
                    self.set_aside(&group.ask.resource, group.waiters);
                }
            }
            Err(error) => {
                if let Some(left_out) = self.said.refused.say_of(error.kind(), Instant::now()) {
                    tracing::warn!(%error, kind = error.kind(), left_out,
                        "the store did not take a batch");
                }
                if matches!(error, StoreError::LockTimeout(_)) {
                    let until = Instant::now() + TROUBLE;
                    let keys = groups.iter().map(|group| group.ask.resource.clone());
                    self.trouble.extend(keys.map(|key| (key, until)));
                }
                let error = WriterError::new(&error);
                for group in groups {
                    self.doubt(&group.ask, &by);
                    for waiter in group.waiters {
                        waiter.reply.send(Err(error.clone()));
                    }
                }
            }
        }
        self.answers.deliver();
        news
    }

    fn enter_one(
        &mut self,
        group: Group,
        found: &Found,
        era: Era,
        by: &Identity,
        rows: Result<Option<&[EpochRow]>, &StoreError>,
        news: &mut Vec<Notification>,
    ) {
        let mark = mark_after(&group, found);
        let Group {
            ask,
            waiters,
            known,
            spent,
            room,
        } = group;
        if found.era > era {
            self.epoch_table.adopt(found.era);
            self.send_back(&ask.resource, waiters);
            return;
        }
        if self.finds_loss(&ask, found, era, known, spent) {
            self.doubt(&ask, by);
            let error = lost_error();
            for waiter in waiters {
                waiter.reply.send(Err(error.clone()));
            }
            return;
        }
        let mut doubt = None;
        if let Some(opening) = ask.opening.filter(|_| mark == Some(ask.token)) {
            let row = EpochRow {
                resource: ask.resource.clone(),
                instance: by.instance.clone(),
                opening,
                token: ask.token,
            };
            match rows {
                Ok(_) if self.lease.generation() != by.generation => {
                    doubt = Some(rejoined_error());
                    self.drain(Drained { row, wanted: false });
                }
                // Committed a moment ago, and not there any more: another server has answered the second statement.
                Ok(None) => {
                    if self.lease.holds(by.generation) {
                        self.epoch_lost(&ask.resource);
                    }
                    doubt = Some(lost_error());
                    self.drain(Drained { row, wanted: false });
                }
                Ok(Some(rows)) => {
                    let others = rows.iter().filter(|other| other.instance != by.instance);
                    let older: Vec<EpochRow> = others
                        .filter(|other| other.token < ask.token)
                        .cloned()
                        .collect();
                    for older in &older {
                        self.tell(news, older, ask.token, era);
                    }
                    // It looks at the generation again, under the lock: a rejoin may come in between.
                    if !self
                        .epoch_table
                        .opened(row.clone(), (by.generation, era), older)
                    {
                        doubt = Some(rejoined_error());
                        self.drain(Drained { row, wanted: false });
                    }
                }
                Err(error) => {
                    doubt = Some(WriterError::new(error));
                    self.doubt(&ask, by);
                }
            }
        }
        if let Some(mark) = mark {
            self.epoch_table.learn(&ask.resource, mark, era, false);
            if found.before.is_none() {
                self.meters.new_resources.inc();
            }
        }
        if mark == Some(ask.token) {
            let own = ask.spend.as_deref();
            self.epoch_table
                .learn_spent(&ask.resource, ask.token, found, era, own);
        }
        self.answer(&ask, waiters, (found, mark, room), doubt.as_ref());
    }

    /// Holds what a statement of era `era` found against what was known here before it was sent. Says whether
    /// something was lost; then that is to be repaired.
    fn finds_loss(
        &mut self,
        ask: &Ask,
        found: &Found,
        era: Era,
        known: Option<(Token, Era)>,
        spent: Option<Spend>,
    ) -> bool {
        if known.is_some_and(|(_, learned)| found.era > learned) {
            // Overridden since, and its epochs, if any are open here, were off the record then.
            self.epoch_table.overruled(&ask.resource);
        }
        if self.epoch_table.era() != era {
            return false;
        }
        let known = known.filter(|(_, learned)| found.era <= *learned);
        let lost = known.is_some_and(|(known, _)| found.before < Some(known));
        if lost {
            self.lost(&ask.resource, known.map(|(known, _)| known), found.before);
            return true;
        }
        // What was begun to be given back since is known no more.
        let spent =
            spent.filter(|spend| self.epoch_table.spent(&ask.resource).as_ref() == Some(spend));
        let unspent = spent.is_some_and(|spend| spend.is_missing(ask.token, found));
        if unspent {
            self.spending_lost(&ask.resource, found.spent_by.as_deref());
        }
        unspent
    }

    /// What became of this opening is not known, and nobody will use it: its row is to be deleted if it is
    /// there, lest others wait for it, or for its settling after a crash. (Should it be committed later
    /// still, it is found among the own rows: see [`Self::look_for_late_openings`].)
    fn doubt(&mut self, ask: &Ask, by: &Identity) {
        self.doubted = Some(Instant::now());
        if let Some(opening) = ask.opening {
            self.closes.push_doubtful(EpochRow {
                resource: ask.resource.clone(),
                instance: by.instance.clone(),
                opening,
                token: ask.token,
            });
        }
    }

    /// The row is of a later era than the statement knew, so that nothing was changed; or the
    /// statement was about another one's token. Ask again. But not for who spends under a permit:
    /// the epoch of it was gone when the mark was overridden, and with it what the permit rested
    /// on.
    pub(super) fn send_back(&mut self, key: &ResourceKey, waiters: Vec<Waiter>) {
        for mut waiter in waiters {
            waiter.tries += 1;
            if waiter.tries >= MOST_TRIES || matches!(waiter.want, Want::Spend(_)) {
                let error =
                    WriterError::other("era", "the mark has changed meanwhile, or was overridden");
                waiter.reply.send(Err(error));
            } else {
                self.waiting.push_back((key.clone(), waiter));
            }
        }
    }

    /// Whom to tell that somebody waits for its older epoch: the owner, if it lives. `era`: under which it was read.
    fn tell(&self, news: &mut Vec<Notification>, older: &EpochRow, token: Token, era: Era) {
        self.detector.meet(&older.instance);
        if self.store.shared() && !self.detector.is_dead(&older.instance) {
            let item = Notification::Newer {
                resource: older.resource.clone(),
                token,
                era,
                owner: Some(older.instance.clone()),
            };
            if !news.contains(&item) {
                news.push(item);
            }
        }
    }

    pub(super) async fn announce(&self, news: Vec<Notification>) {
        if news.is_empty() || !self.store.shared() {
            return;
        }
        if let Err(error) = self.store.announce(&news).await {
            self.meters.failed(&error);
            tracing::debug!(%error, "an announcement was lost; the other instances will poll");
        }
    }
}

/// What the second read says of one resource; `None`: the epoch that was opened there is gone.
fn rows_of<'a>(
    epochs: &'a Result<HashMap<ResourceKey, Vec<EpochRow>>, StoreError>,
    lost: &[ResourceKey],
    resource: &ResourceKey,
) -> Result<Option<&'a [EpochRow]>, &'a StoreError> {
    if epochs.is_ok() && lost.contains(resource) {
        return Ok(None);
    }
    let rows = epochs.as_ref()?.get(resource);
    Ok(Some(rows.map_or(&[][..], Vec::as_slice)))
}

/// Tells those who wait for these rows that they are gone.
fn closed(rows: &[EpochRow]) -> impl Iterator<Item = Notification> {
    let keys = super::keys_of(rows).into_iter();
    keys.map(|resource| Notification::Closed { resource })
}

fn rejoined_error() -> WriterError {
    WriterError::other("rejoined", "this proxy has rejoined the store meanwhile")
}

fn lost_error() -> WriterError {
    WriterError::other("lost", "the store has lost marks of this resource")
}
