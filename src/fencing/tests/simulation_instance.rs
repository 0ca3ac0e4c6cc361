//! One process of a simulation: an epoch table with its lease and its failure detector, the
//! requests that it serves, and the statements that it waits for. The membership task is in
//! `simulation_member`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::simulation_call::{Advance, Call, Dice, LANES, LEASE, Reply, SETTLE, UNDELIVERED};
use super::simulation_upstream::{Holder, Upstream};
use crate::boot_clock::BootClock;
use crate::fencing::Refused;
use crate::fencing::epochs::{
    Answer, Composed, Ending, EpochTable, EpochTableSetup, Settles, Ticket,
};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::lease::{Identity, Lease};
use crate::metrics::Metrics;
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::reckoning::Reckoning;
use crate::store::{Found, InstanceId, Lane, Notification, Repair, StoreError};

/// The time of a simulation.
#[derive(Clone)]
pub(super) struct Clock {
    base: Instant,
    nanos: Arc<AtomicU64>,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            base: Instant::now(),
            nanos: Arc::new(AtomicU64::new(1_000_000_000)),
        }
    }

    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    pub fn instant(&self) -> Instant {
        self.base + self.now()
    }

    pub fn pass(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// What a request wants.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub key: ResourceKey,
    pub token: Token,
    pub needs: Needs,
    /// Its route has `reuse: once`.
    pub once: bool,
    /// It is only observed.
    pub raise: bool,
}

pub(super) struct Request {
    pub wish: Wish,
    pub state: State,
}

/// Where a request is. With the token that cuts it, from its permit on.
pub(super) enum State {
    Asking(oneshot::Receiver<Answer>),
    Barrier(Option<Arc<Notify>>),
    Permit(Ticket, Arc<CancellationToken>),
    Spending(
        Ticket,
        Arc<CancellationToken>,
        oneshot::Receiver<Answer>,
        String,
    ),
    Spent(Ticket, Arc<CancellationToken>, String),
    /// With the number of its exchange.
    Sending(Ticket, Arc<CancellationToken>, usize),
    /// How it ended.
    Over(Option<Refused>),
}

type Entered = Box<dyn FnOnce(&EpochTable, &Rows, bool)>;

/// What a statement's answer is entered as.
pub(super) enum Awaited {
    /// With the incarnation that it was sent by.
    Advance(Lane, u64, Composed),
    Look(Entered, Identity),
    Cede,
    Repair(Vec<ResourceKey>, Vec<Repair>),
    Nothing,
    /// The next step of the membership task.
    Member(Step),
}

/// Why an instance joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    First,
    /// It was declared dead.
    Rejoin,
    /// The store has lost it.
    Again,
}

/// What the answer to a statement of the membership task means.
pub(super) enum Step {
    Renew(Duration),
    Join(InstanceId, Why, Duration),
    /// The read of the instances: as which instance, and when it was sent.
    Read(InstanceId, Duration),
    Declare(InstanceId),
    Settle(InstanceId),
}

/// The state of the membership task.
#[allow(clippy::struct_excessive_bools)] // They come and go by themselves.
#[derive(Default)]
pub(super) struct Member {
    /// A statement is on its way.
    pub busy: bool,
    pub joined: bool,
    /// When the next round is due.
    pub due: Duration,
    pub failed: bool,
    /// The connections, as of the last round.
    pub connections: u64,
    /// The ends of other instances that are to be recorded, and at which counter.
    pub ends: Vec<(InstanceId, Option<i64>)>,
    /// A rejoin whose lease has not begun yet.
    pub rejoining: Option<(InstanceId, Duration)>,
    /// The connection that statements go over now.
    pub connection: u64,
    /// The route table on record may be another one when an instance joins.
    pub routes_differ: bool,
    /// The store has lost the row of this instance.
    pub lost: bool,
    /// A lease has been renewed: of which incarnation, and from when on.
    pub renewed: Vec<(u64, Duration)>,
}

type Rows = HashMap<ResourceKey, Found>;

/// See the module's documentation.
#[allow(clippy::struct_excessive_bools)] // One for each kind of statement.
pub(super) struct Process {
    pub number: usize,
    pub clock: Clock,
    pub table: EpochTable,
    pub lease: Lease,
    pub detector: FailureDetector,
    pub requests: Vec<Request>,
    pub settles: Vec<(ResourceKey, Settles)>,
    /// Which lanes have a statement on its way; the last is the one aside.
    busy: [bool; LANES + 1],
    /// An identity that a lane has taken and not used yet.
    taken: Option<Identity>,
    looking: bool,
    ceding: bool,
    repairing: bool,
    /// Rows that are to be read because another server may answer.
    pub recheck: Vec<ResourceKey>,
    pub names: usize,
    /// Statements that are to be sent.
    pub out: Vec<(Call, Awaited)>,
    pub notifications: Vec<Notification>,
    pub member: Member,
    /// It does nothing at all for a while.
    pub asleep: bool,
}

impl Process {
    pub fn new(number: usize, capacity: usize, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let reckoning = Reckoning::shared(LEASE, UNDELIVERED, SETTLE);
        let boot = clock.clone();
        let boot = BootClock::from_fn(move || boot.now());
        let id = InstanceId::from_bits(number as u64 + 1);
        Self {
            number,
            table: EpochTable::new(EpochTableSetup {
                capacity,
                settle: SETTLE,
                quarantine_time: reckoning.after_loss(),
                lanes: LANES,
                workers: 2,
                shared: true,
                metrics,
            }),
            lease: Lease::new(boot, LEASE, id).cutting_after(reckoning.cutoff()),
            detector: FailureDetector::new(reckoning),
            clock,
            requests: Vec::new(),
            settles: Vec::new(),
            busy: [false; LANES + 1],
            taken: None,
            looking: false,
            ceding: false,
            repairing: false,
            recheck: Vec::new(),
            names: 0,
            out: Vec::new(),
            notifications: Vec::new(),
            member: Member::default(),
            asleep: false,
        }
    }

    pub fn holder(&self, incarnation: u64) -> Holder {
        (self.number, incarnation)
    }

    /// Does what is due by the clock alone.
    pub fn tick(&mut self, upstream: &mut Upstream) {
        self.lease.cut_overdue();
        let cut = |request: &Request| match &request.state {
            State::Sending(_, cutoff, _) => cutoff.is_cancelled(),
            _ => false,
        };
        while let Some(index) = self.requests.iter().position(cut) {
            self.leave(index, Ending::Unknown, upstream);
        }
        let now = self.clock.instant();
        let due = self
            .settles
            .extract_if(.., |(_, settles)| settles.at <= now);
        for (key, settles) in due {
            self.table.settled(&key, settles.number, now);
        }
    }

    /// A lane takes its turn. With an identity that was taken before a rejoin, perhaps.
    pub fn turn(&mut self, lane: usize, dice: &mut Dice) {
        if self.busy[lane] {
            return;
        }
        let by = self.taken.take().unwrap_or_else(|| self.lease.identity());
        if dice.one_in(10) {
            self.taken = Some(by);
        } else {
            self.send_batch(lane, by);
        }
    }

    /// A lane takes its turn at once.
    pub fn turn_now(&mut self, lane: usize) {
        self.taken = None;
        if !self.busy[lane] {
            self.send_batch(lane, self.lease.identity());
        }
    }

    fn send_batch(&mut self, lane: usize, by: Identity) {
        let incarnation = by.incarnation;
        let name = if lane == LANES {
            Lane::Aside
        } else {
            Lane::Main(lane)
        };
        let holds = || self.lease.holds(incarnation);
        let (composed, answers) = self.table.compose(name, by, holds, self.clock.instant());
        answers.deliver();
        if let Some(composed) = composed {
            self.busy[lane] = true;
            let call = Call::Advance(Advance::of(composed.batch()));
            self.out
                .push((call, Awaited::Advance(name, incarnation, composed)));
        }
    }

    /// Sends a read, the cedes, the notifications or a repair.
    pub fn errand(&mut self, which: usize) {
        let errands = &self.table.errands;
        match which {
            0 if !self.looking => {
                let mut keys = errands.looks.take(usize::MAX);
                keys.append(&mut self.recheck);
                keys.sort();
                keys.dedup();
                self.look(&keys);
            }
            1 if !self.ceding => {
                let mut epochs = errands.cedes.take(usize::MAX);
                epochs.sort();
                if !epochs.is_empty() {
                    self.ceding = true;
                    self.out.push((Call::Cede(epochs), Awaited::Cede));
                }
            }
            2 => self
                .notifications
                .extend(errands.notifications.take(usize::MAX)),
            3 if !self.repairing => {
                let mut keys = errands.repairs.take(usize::MAX);
                keys.sort();
                self.repair(keys);
            }
            _ => {}
        }
    }

    fn look(&mut self, keys: &[ResourceKey]) {
        let (era, by) = (self.table.era(), self.lease.identity());
        let looking = self.table.looking(keys, &by);
        if looking.is_empty() {
            return;
        }
        self.looking = true;
        let keys = looking.iter().map(|one| one.key.clone()).collect();
        let identity = by.clone();
        let entered = move |table: &EpochTable, rows: &Rows, holds: bool| {
            let none = Found::default();
            for one in &looking {
                let found = rows.get(&one.key).unwrap_or(&none);
                table.looked(one, found, (era, &by, holds));
            }
        };
        let awaited = Awaited::Look(Box::new(entered), identity);
        self.out.push((Call::Look(keys), awaited));
    }

    fn repair(&mut self, keys: Vec<ResourceKey>) {
        if keys.is_empty() {
            return;
        }
        let by = self.lease.identity();
        let repairs = self.table.to_repair(&keys, &by);
        if self.lease.holds(by.incarnation) {
            self.repairing = true;
            let call = Call::Repair(repairs.clone());
            self.out.push((call, Awaited::Repair(keys, repairs)));
        } else {
            let queue = &self.table.errands.repairs;
            queue.must(keys);
        }
    }

    /// An answer, or that there is none.
    pub fn answered(&mut self, awaited: Awaited, reply: Result<Reply, StoreError>) {
        let now = self.clock.instant();
        match (awaited, reply) {
            (Awaited::Advance(lane, incarnation, composed), reply) => {
                self.busy[match lane {
                    Lane::Main(lane) => lane,
                    Lane::Aside => LANES,
                }] = false;
                let found = reply.map(|reply| match reply {
                    Reply::Advanced(found) => found,
                    _ => Vec::new(),
                });
                let holds = self.lease.holds(incarnation);
                let entering = self.table.answered(composed, found, holds, now);
                entering.answers.deliver();
                self.tell(entering.older);
            }
            (Awaited::Look(entered, by), reply) => {
                self.looking = false;
                if let Ok(Reply::Looked(rows)) = reply {
                    let rows = rows.into_iter();
                    let rows = rows.map(|(mark, found)| (mark.resource, found));
                    let holds = self.lease.holds(by.incarnation);
                    entered(&self.table, &rows.collect(), holds);
                }
            }
            (Awaited::Cede, _) => self.ceding = false,
            (Awaited::Repair(keys, repairs), reply) => {
                self.repairing = false;
                let Ok(Reply::Repaired(found)) = reply else {
                    let queue = &self.table.errands.repairs;
                    queue.must(keys);
                    return;
                };
                for (repair, found) in repairs.iter().zip(&found) {
                    self.table.repaired(repair, found, now);
                }
                for key in keys {
                    if !repairs.iter().any(|repair| repair.resource == key) {
                        self.table.nothing_to_repair(&key, now);
                    }
                }
            }
            (Awaited::Nothing, _) => {}
            (Awaited::Member(step), reply) => self.stepped(step, reply),
        }
    }

    /// As [`Fencing::tell`](crate::fencing::lanes).
    fn tell(&self, mut owners: Vec<Notification>) {
        owners.retain(|owner| {
            let id = owner.to.expect("the owner of an epoch");
            self.detector.meet(id);
            !self.detector.is_dead(id)
        });
        self.table.errands.notifications.add(owners);
    }

    /// Has the rows read at which requests wait for other instances.
    pub fn poll(&self) {
        let waited_for = self.table.waited_for();
        let keys = waited_for.iter().map(|older| older.resource.clone());
        self.table.errands.looks.add(keys);
        self.tell(waited_for);
    }

    pub fn heard(&self, notification: &Notification) {
        let me = self.lease.identity().instance;
        if notification.to.is_none_or(|to| to == me) {
            self.table.hinted(notification);
        }
    }
}
