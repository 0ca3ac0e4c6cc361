//! [`Writer`]: what the writer's task knows, and the steps that its parts share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::answers::Answers;
use super::batch::{self, Group, room_for};
use super::bounds::MOST_REPAIRS;
use super::closes::Closes;
use super::command::WriterCommand;
use super::handle::WriterHandle;
use super::meters::Meters;
use super::request::{Want, WriterError};
use super::said::Said;
use super::waiter::Waiter;
use super::wishes::OwnHandle;
use crate::fencing::epochs::{Drained, EpochTable};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::growth::Growth;
use crate::fencing::lease::{Identity, Lease};
use crate::routing::{ResourceKey, Token};
use crate::store::{Ask, EpochRow, Era, MarkStore, Notification, Opening};

/// The most statements that are under way beside the writer at once.
const MOST_ASIDE: usize = 8;
/// How often an era may send a request back before it is given up.
const MOST_TRIES: u8 = 4;

/// The arguments of [`Writer::new`].
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
    pub(super) tx: mpsc::WeakUnboundedSender<WriterCommand>,
    pub(super) rx: mpsc::UnboundedReceiver<WriterCommand>,
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

    pub(super) fn drain(&mut self, drained: Drained) {
        let Drained { row, wanted } = drained;
        self.closes.push(row, wanted, Instant::now());
    }

    /// Has the resource looked at, and those told who are still in the way.
    pub(super) fn look(&mut self, key: ResourceKey) {
        self.quiet.remove(&key);
        self.looks.insert(key);
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

    /// What became of this opening is not known, and nobody will use it: its row is to be deleted if it is
    /// there, lest others wait for it, or for its settling after a crash. (Should it be committed later
    /// still, it is found among the own rows: see [`Self::look_for_late_openings`].)
    pub(super) fn doubt(&mut self, ask: &Ask, by: &Identity) {
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
    pub(super) fn tell(
        &self,
        news: &mut Vec<Notification>,
        older: &EpochRow,
        token: Token,
        era: Era,
    ) {
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
