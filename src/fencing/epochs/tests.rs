//! The epoch table over the model of the store, one event after the other. The test holds the
//! statements that are on their way, and moves the time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::oneshot;

use super::*;
use crate::fencing::lease::Identity;
use crate::fencing::tests::rows::{Mark, Rows};
use crate::fencing::tests::{LOSS, ROOM, SETTLE, key, signed, token};
use crate::metrics::Metrics;
use crate::routing::Needs;
use crate::store::{
    Batch, Epoch, Found, Notification, Opening, Override, Publication, StoreError, Terms,
};

mod bounds;
mod eras;
mod hints;
mod looks;
mod losses;
mod publication;
mod spent;
mod statements;

const LANE: Lane = Lane::Main(0);
const SECOND: Duration = Duration::from_secs(1);
/// Longer than an unused epoch stays open.
const IDLE: Duration = Duration::from_secs(5);

/// One instance over rows that others may share.
struct One {
    table: EpochTable,
    rows: Rc<RefCell<Rows>>,
    by: RefCell<Identity>,
    /// Whether its lease holds.
    holds: Cell<bool>,
    now: Cell<Instant>,
}

/// A statement that is on its way.
type Sent = compose::Composed;
type Asked = oneshot::Receiver<Answer>;

fn instance(id: u64) -> InstanceId {
    InstanceId::from_bits(id)
}

impl One {
    fn over(rows: &Rc<RefCell<Rows>>, id: u64, capacity: usize) -> Self {
        let setup = EpochTableSetup {
            capacity,
            settle: SETTLE,
            quarantine_time: LOSS,
            lanes: 2,
            workers: 2,
            shared: true,
            metrics: Arc::new(Metrics::new(&[])),
        };
        let joined = rows.borrow_mut().join(instance(id), &Terms::default());
        let table = EpochTable::new(setup);
        table.adopt(joined.expect("a new id"));
        let by = Identity {
            instance: instance(id),
            incarnation: 0,
            cutoff: Arc::default(),
        };
        Self {
            table,
            rows: Rc::clone(rows),
            by: RefCell::new(by),
            holds: Cell::new(true),
            now: Cell::new(Instant::now()),
        }
    }

    fn alone() -> Self {
        Self::over(&Rc::default(), 1, 1000)
    }

    fn pair() -> (Self, Self) {
        let one = Self::alone();
        let two = Self::over(&one.rows, 2, 1000);
        (one, two)
    }

    fn pass(&self, span: Duration) {
        self.now.set(self.now.get() + span);
    }

    // --- requests ---

    fn ask_for(&self, on: &str, number: i64, want: Want, bounds: Option<Needs>) -> Asked {
        let (waiter, answer) = Waiter::new(token(number), want, bounds.unwrap_or_default());
        self.table.ask(&key(on), waiter, 0);
        answer
    }

    fn ask(&self, on: &str, number: i64) -> Asked {
        self.ask_for(on, number, Want::Open, None)
    }

    /// Asks, and lets all statements that are due run.
    fn want(&self, on: &str, number: i64, want: Want) -> Answer {
        let asked = self.ask_for(on, number, want, None);
        self.turns();
        answer(asked)
    }

    fn open(&self, on: &str, number: i64) -> Answer {
        self.want(on, number, Want::Open)
    }

    fn recall(&self, on: &str, number: i64) -> Result<bool, Refused> {
        let incarnation = self.by.borrow().incarnation;
        let now = self.now.get();
        self.table.recall(&key(on), token(number), incarnation, now)
    }

    fn enter(&self, on: &str, number: i64) -> Result<Entered, Refused> {
        let incarnation = self.by.borrow().incarnation;
        let now = self.now.get();
        self.table
            .enter(&key(on), token(number), incarnation, |_| None, now)
    }

    fn permit(&self, on: &str, number: i64) -> Ticket {
        match self.enter(on, number) {
            Ok(Entered::Permit(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    /// A request passes, and ends.
    #[track_caller]
    fn passes(&self, on: &str, number: i64) {
        let ticket = self.permit(on, number);
        self.end(on, &ticket, Ending::Settled);
    }

    fn waits(&self, on: &str, number: i64) -> bool {
        matches!(self.enter(on, number), Ok(Entered::Wait { .. }))
    }

    fn is_open(&self, on: &str, number: i64) -> bool {
        !matches!(self.enter(on, number), Ok(Entered::NotOpen))
    }

    fn end(&self, on: &str, ticket: &Ticket, ending: Ending) -> Option<Settles> {
        self.table.end(&key(on), ticket, ending, self.now.get())
    }

    /// The mark known here.
    fn known(&self, on: &str) -> Option<i64> {
        let shard = self.table.shard(&key(on));
        let known = match shard.active.get(&key(on)) {
            Some(entry) => entry.mark(),
            None => shard.remembered.peek(&key(on)).map(|(known, _)| *known),
        };
        known.map(Token::get)
    }

    fn active(&self) -> usize {
        let shards = self.table.shards.iter();
        shards.map(|shard| locked(shard).active.len()).sum()
    }

    /// How many losses were seen.
    fn losses(&self) -> u64 {
        self.table.setup.metrics.series.mark_regressions.get()
    }

    fn is_repairing(&self, on: &str, number: i64) -> bool {
        let recalled = self.recall(on, number);
        matches!(recalled, Err(Refused::Unavailable(Undecided::Repairing(_))))
    }

    // --- statements ---

    fn compose_on(&self, lane: Lane) -> Option<Sent> {
        let (by, holds) = (self.by.borrow().clone(), self.holds.get());
        let (sent, answers) = self.table.compose(lane, by, || holds, self.now.get());
        answers.deliver();
        sent
    }

    fn compose(&self) -> Sent {
        self.compose_on(LANE).expect("something is due")
    }

    fn advance(&self, sent: &Sent) -> Vec<Found> {
        self.rows.borrow_mut().advance(sent.batch())
    }

    fn answered(&self, sent: Sent, result: Result<Vec<Found>, StoreError>) -> Vec<Notification> {
        let (holds, now) = (self.holds.get(), self.now.get());
        let Entering { answers, older } = self.table.answered(sent, result, holds, now);
        answers.deliver();
        older
    }

    /// Runs a statement, and enters its answer.
    fn run(&self, sent: Sent) -> Vec<Notification> {
        let found = self.advance(&sent);
        self.answered(sent, Ok(found))
    }

    /// A statement that is given up. It may commit later.
    fn give_up(&self, sent: Sent) {
        self.answered(sent, Err(broken()));
    }

    fn turns(&self) {
        while let Some(sent) = self.compose_on(LANE) {
            self.run(sent);
        }
    }

    // --- errands ---

    fn looking(&self, on: &str) -> look::Looking {
        let looking = self.table.looking(&[key(on)], &self.by.borrow());
        looking.into_iter().next().expect("it is active")
    }

    fn row(&self, on: &str) -> Found {
        let row = self.rows.borrow().view(&key(on));
        row.map(|(_, found)| found).unwrap_or_default()
    }

    fn looked(&self, looking: &look::Looking, found: &Found, era: Era) {
        let holds = self.holds.get();
        self.table
            .looked(looking, found, (era, &self.by.borrow(), holds));
    }

    fn look(&self, on: &str) {
        let (era, looking) = (self.table.era(), self.looking(on));
        self.looked(&looking, &self.row(on), era);
    }

    /// Cedes what is to be ceded. Returns the tokens.
    fn cede(&self) -> Vec<i64> {
        let epochs = self.table.errands.cedes.take(1000);
        self.rows.borrow_mut().cede(&epochs);
        epochs.iter().map(|(_, epoch)| epoch.token.get()).collect()
    }

    /// The resources of which something is to be repaired.
    fn to_repair(&self) -> Vec<ResourceKey> {
        self.table.errands.repairs.take(1000)
    }

    fn repair(&self) {
        let keys = self.to_repair();
        let repairs = self.table.to_repair(&keys, &self.by.borrow());
        let found = self.rows.borrow_mut().repair(&repairs);
        for (repair, found) in repairs.iter().zip(&found) {
            self.table.repaired(repair, found, self.now.get());
        }
    }

    // --- heartbeats ---

    fn compose_publication(&self) -> Publication {
        self.table
            .publish(self.by.borrow().instance, self.now.get())
    }

    fn record(&self, publication: &Publication) {
        let me = self.by.borrow().instance;
        self.rows
            .borrow_mut()
            .renew(me, &Terms::default(), publication);
    }

    fn publish(&self) -> Publication {
        let publication = self.compose_publication();
        self.record(&publication);
        publication
    }

    /// Goes on under a new id.
    fn rejoin(&self, id: u64) {
        let era = self.rows.borrow_mut().join(instance(id), &Terms::default());
        let mut by = self.by.borrow_mut();
        by.incarnation += 1;
        self.table.retire_before(by.incarnation);
        self.table.adopt(era.expect("a new id"));
        self.table.forget();
        by.instance = instance(id);
    }

    // --- the store ---

    /// The openings and tokens of a resource that are not over, of all instances.
    fn in_store(&self, on: &str) -> Vec<(Opening, i64)> {
        let open = self.rows.borrow().open(&key(on));
        open.iter()
            .map(|epoch| (epoch.opening, epoch.token.get()))
            .collect()
    }

    fn mark(&self, on: &str) -> Option<i64> {
        let rows = self.rows.borrow();
        rows.marks.get(&key(on)).map(|mark| mark.token.get())
    }

    /// Another instance has raised the mark.
    fn raised(&self, on: &str, number: i64) {
        let mut rows = self.rows.borrow_mut();
        let mark = rows.marks.get_mut(&key(on)).expect("a mark");
        mark.token = token(number);
    }

    /// A failover: the store is again as it was.
    fn fail_over(&self, to: Rows) {
        *self.rows.borrow_mut() = to;
    }

    fn snapshot(&self) -> Rows {
        self.rows.borrow().clone()
    }

    /// Dead and settled, with the resource overridden.
    fn bury_and_override(&self, on: &str, number: i64) {
        let mut rows = self.rows.borrow_mut();
        let me = self.by.borrow().instance;
        let renewals = rows.instances[&me].row.terms.renewals;
        assert!(rows.declare_dead(me, renewals) && rows.settle(me));
        let done = rows.override_mark(&key(on), token(number), &signed("why", "who"));
        assert!(matches!(done, Override::Done { .. }), "{done:?}");
    }
}

fn broken() -> StoreError {
    StoreError::Timeout(SECOND)
}

/// The answer, if there is one.
fn answer_of(asked: &mut Asked) -> Option<Answer> {
    asked.try_recv().ok()
}

fn answer(mut asked: Asked) -> Answer {
    answer_of(&mut asked).expect("an answer")
}

/// The kind of a refusal for want of an answer.
#[track_caller]
fn kind(answer: Answer) -> &'static str {
    answer.expect_err("no answer").kind()
}

fn stale<T>(mark: i64, decided_by: DecidedBy) -> Result<T, Refused> {
    Err(Refused::stale(token(mark), decided_by))
}

fn hint(on: &str, waits: Option<i64>) -> Notification {
    Notification {
        resource: key(on),
        waits: waits.map(token),
        to: None,
    }
}
