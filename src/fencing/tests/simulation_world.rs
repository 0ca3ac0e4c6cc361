//! The world of a simulation: some processes, the store that they share, and the statements and
//! notifications that are on their way. Each event is one of chance; the log has all of them.

use std::sync::Arc;
use std::time::Duration;

use super::rows::{Rows, SINCE_MS};
use super::simulation_call::{Call, Dice, Reply, TIMEOUT};
use super::simulation_instance::{Awaited, Clock, Process};
use super::simulation_upstream::Upstream;
use crate::metrics::Metrics;
use crate::routing::{ResourceKey, Token};
use crate::store::{Notification, StoreError};

/// What may happen in a run.
#[allow(clippy::struct_excessive_bools)] // Each is a fault of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub processes: usize,
    pub crash: bool,
    pub stop: bool,
    /// A process stands still for a while.
    pub sleep: bool,
    /// Statements commit long after their answer was given up.
    pub late: bool,
    /// Failovers that lose what was not answered.
    pub failover: bool,
    /// Failovers that lose durable commits.
    pub loss: bool,
    pub operator: bool,
    pub locks: bool,
    /// Whether the newest token is asked for most of the time.
    pub rising: bool,
}

/// A statement on its way, or its answer.
struct Trip {
    call: Call,
    /// The process that waits for the answer, if one does.
    awaited: Option<(usize, Awaited)>,
    sent: Duration,
    /// Others are faster, most of the time.
    slow: bool,
    /// What it did, and after how many commits.
    done: Option<(Result<Reply, StoreError>, u64)>,
}

/// See the module's documentation.
pub(super) struct World {
    pub dice: Dice,
    pub faults: Faults,
    pub clock: Clock,
    pub rows: Rows,
    /// Earlier states, after how many commits each.
    history: Vec<(u64, Rows)>,
    commits: u64,
    connection: u64,
    trips: Vec<Trip>,
    pub notifications: Vec<Notification>,
    pub processes: Vec<Process>,
    numbers: usize,
    capacity: usize,
    pub upstream: Upstream,
    /// When marks may be deleted.
    pub prune: Option<Duration>,
    pub losses: bool,
    metrics: Arc<Metrics>,
    pub log: Vec<String>,
}

pub(super) fn resource(number: usize) -> ResourceKey {
    ResourceKey::new(format!("r{number}")).expect("a key")
}

/// One with `reuse: once`, and one without.
pub(super) const RESOURCES: usize = 2;

pub(super) fn token(number: i64) -> Token {
    Token::new(number).expect("a token")
}

impl World {
    pub fn new(seed: u64, metrics: &Arc<Metrics>) -> Self {
        let mut dice = Dice(seed);
        let mut some = |times| dice.one_in(times);
        let faults = Faults {
            crash: some(3),
            stop: some(3),
            sleep: some(3),
            late: some(2),
            failover: some(4),
            loss: some(8),
            operator: some(3),
            locks: some(5),
            rising: some(2),
            processes: 2 + usize::from(some(3)),
        };
        let capacity = if dice.one_in(3) { 0 } else { 1000 };
        let mut world = Self {
            dice,
            faults,
            clock: Clock::new(),
            rows: Rows::default(),
            history: Vec::new(),
            commits: 0,
            connection: 1,
            trips: Vec::new(),
            notifications: Vec::new(),
            processes: Vec::new(),
            numbers: 0,
            capacity,
            upstream: Upstream::default(),
            prune: None,
            losses: false,
            metrics: Arc::clone(metrics),
            log: vec![format!("{faults:?}")],
        };
        for _ in 0..faults.processes {
            world.start();
        }
        world
    }

    pub fn say(&mut self, text: impl FnOnce() -> String) {
        let now = self.clock.now();
        self.log.push(format!("{now:?}: {}", text()));
    }

    /// Starts one more process, which joins at once.
    pub fn start(&mut self) {
        let (number, capacity) = (self.numbers, self.capacity);
        self.numbers += 1;
        let (clock, metrics) = (self.clock.clone(), Arc::clone(&self.metrics));
        let mut process = Process::new(number, capacity, clock, metrics);
        process.member.connection = self.connection;
        process.round();
        self.processes.push(process);
        self.say(|| format!("process {number} starts"));
        self.collect(self.processes.len() - 1);
        self.finish_trips();
    }

    /// Takes what a process sends.
    pub fn collect(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let number = process.number;
        for (incarnation, sent) in process.member.renewed.drain(..) {
            self.upstream.renewed((number, incarnation), sent);
        }
        self.notifications.append(&mut process.notifications);
        let now = self.clock.now();
        for (call, awaited) in process.out.drain(..) {
            self.log.push(format!("{now:?}: {number} sends {call:?}"));
            self.trips.push(Trip {
                call,
                awaited: Some((number, awaited)),
                sent: now,
                slow: self.dice.one_in(5),
                done: None,
            });
        }
    }

    pub fn pass(&mut self) {
        let millis = match self.dice.below(40) {
            0..25 => 5,
            25..36 => 100,
            36..38 => 1000,
            _ => 3000,
        };
        self.after(Duration::from_millis(millis));
    }

    /// Lets time pass.
    pub fn after(&mut self, span: Duration) {
        self.clock.pass(span);
        let millis = self.clock.now().as_millis();
        self.rows.now_ms = SINCE_MS + i64::try_from(millis).unwrap_or(0);
        for process in self.processes.iter_mut().filter(|one| !one.asleep) {
            process.tick(&mut self.upstream);
        }
        for at in 0..self.processes.len() {
            if !self.processes[at].asleep && !self.dice.one_in(4) {
                self.processes[at].round();
                self.collect(at);
            }
        }
    }

    /// A statement takes effect.
    pub fn commit(&mut self) {
        let slow = self.dice.one_in(12);
        let waiting = self.trips.iter().enumerate();
        let waiting = waiting.filter(|(_, trip)| trip.done.is_none() && (slow || !trip.slow));
        let waiting: Vec<usize> = waiting.map(|(index, _)| index).collect();
        if let Some(index) = self.dice.pick(waiting) {
            self.commit_one(index);
        }
    }

    fn commit_one(&mut self, index: usize) {
        let reply = self.trips[index].call.run(&mut self.rows);
        self.commits += 1;
        if self.trips[index].call.reads() {
            self.durable(self.commits);
        }
        if self.faults.failover || self.faults.loss {
            self.history.push((self.commits, self.rows.clone()));
        }
        let now = self.clock.now();
        let trip = &mut self.trips[index];
        let text = format!("{now:?}: {:?} brings {reply:?}", trip.call);
        self.log.push(text);
        if let (Call::Cede(_), Ok(Reply::Ceded(written))) = (&trip.call, &reply) {
            let closed = written.iter().map(|resource| Notification {
                resource: resource.clone(),
                waits: None,
                to: None,
            });
            self.notifications.extend(closed);
        }
        trip.done = Some((reply, self.commits));
        if trip.awaited.is_none() {
            self.trips.swap_remove(index);
        }
    }

    /// What was committed so far is durable: somebody knows it.
    fn durable(&mut self, commits: u64) {
        let most = if self.faults.loss { 12 } else { 0 };
        let known = |(at, _): &(u64, Rows)| *at < commits;
        let first = self.history.iter().filter(|one| known(one)).count();
        self.history.drain(..first.saturating_sub(most));
    }

    /// An answer arrives, or is lost.
    pub fn answer(&mut self) {
        let now = self.clock.now();
        let slow = self.dice.one_in(12);
        let due = self
            .trips
            .iter()
            .enumerate()
            .filter(|(_, trip)| slow || !trip.slow);
        let due = due.filter(|(_, trip)| {
            let late = now.saturating_sub(trip.sent) >= TIMEOUT;
            trip.awaited.as_ref().is_some_and(|(number, _)| {
                let process = self.processes.iter().find(|one| one.number == *number);
                process.is_none_or(|one| !one.asleep) && (trip.done.is_some() || late)
            })
        });
        let due: Vec<usize> = due.map(|(index, _)| index).collect();
        if let Some(index) = self.dice.pick(due) {
            let lost = self.trips[index].done.is_none() || self.dice.one_in(20);
            self.answer_one(index, lost);
        }
    }

    fn answer_one(&mut self, index: usize, lost: bool) {
        let mut trip = self.trips.swap_remove(index);
        let Some((number, awaited)) = trip.awaited.take() else {
            return;
        };
        let call = format!("{:?}", trip.call);
        let reply = match trip.done.take() {
            Some((Ok(reply), commits)) if !lost => {
                self.durable(commits);
                Ok(reply)
            }
            // The others take effect nevertheless.
            Some((Err(error), _)) => Err(error),
            Some((Ok(_), _)) => Err(StoreError::Timeout(TIMEOUT)),
            None => {
                if self.faults.late && self.dice.one_in(2) {
                    self.trips.push(trip);
                }
                Err(StoreError::Timeout(TIMEOUT))
            }
        };
        let what = if reply.is_ok() { "the" } else { "no" };
        self.say(|| format!("{number} gets {what} answer to {call}"));
        if let Some(at) = self.processes.iter().position(|one| one.number == number) {
            self.processes[at].answered(awaited, reply);
            self.collect(at);
        }
    }

    /// Every statement takes effect and is answered, but those that nobody waits for.
    pub fn finish_trips(&mut self) {
        let awaited = |trip: &Trip| trip.awaited.is_some();
        while let Some(index) = self.trips.iter().position(awaited) {
            if self.trips[index].done.is_none() {
                self.commit_one(index);
            }
            self.answer_one(index, false);
        }
    }

    /// Statements that nobody waits for never take effect.
    pub fn drop_trips(&mut self) {
        self.trips.clear();
    }

    /// A process has ended: nobody waits for its statements, which may take effect.
    pub fn end_process(&mut self, at: usize) {
        let ended = self.processes.swap_remove(at).number;
        for trip in &mut self.trips {
            trip.awaited.take_if(|(number, _)| *number == ended);
        }
        let late = self.faults.late;
        self.trips
            .retain(|trip| trip.awaited.is_some() || (trip.done.is_none() && late));
    }

    /// Sends a statement whose answer nobody waits for.
    pub fn send_last(&mut self, call: Call) {
        self.say(|| format!("the last statement: {call:?}"));
        self.trips.push(Trip {
            call,
            awaited: None,
            sent: self.clock.now(),
            slow: false,
            done: None,
        });
    }

    /// Another server answers from now on. It has an earlier state.
    pub fn fail_over(&mut self) {
        let states = self.history.iter().map(|(at, _)| *at).collect();
        let Some(at) = self.dice.pick(states) else {
            return;
        };
        let state = self.history.iter().position(|(state, _)| *state == at);
        let Some(state) = state.map(|index| self.history[index].1.clone()) else {
            return;
        };
        let from = self.commits;
        self.say(|| format!("failover: from {from} to {at}: {:?}", state.marks));
        if self.faults.loss {
            self.losses = true;
            for number in 0..RESOURCES {
                let resource = resource(number);
                let content = |rows: &Rows| {
                    let mark = rows.marks.get(&resource);
                    mark.map(|mark| (mark.clone(), rows.open(&resource)))
                };
                if content(&state) != content(&self.rows) {
                    self.upstream.lost.insert(resource);
                }
            }
        }
        let (locked, now_ms) = (std::mem::take(&mut self.rows.locked), self.rows.now_ms);
        self.rows = Rows {
            locked,
            now_ms,
            ..state
        };
        self.history.retain(|(commits, _)| *commits <= at);
        self.connection += 1;
        for process in &mut self.processes {
            process.member.connection = self.connection;
        }
        self.notifications.clear();
        self.trips.retain(|trip| trip.awaited.is_some());
        for trip in &mut self.trips {
            if trip.done.as_ref().is_none_or(|(_, commits)| *commits > at) {
                let error = StoreError::Connection("failover".to_owned());
                trip.done = Some((Err(error), 0));
            }
        }
    }
}
