//! A deterministic simulation of several instances over one store: the very epoch table, lease and
//! failure detector, with time, statements, notifications and faults by chance. Each byte that is
//! sent is judged by [`Upstream`](super::simulation_upstream::Upstream).
//!
//! `SIMULATION_SEED` is the first seed, `SIMULATION_RUNS` how many runs there are. A change of the
//! events gives all seeds another meaning.

use std::sync::Arc;
use std::time::Duration;

use super::simulation_call::LANES;
use super::simulation_instance::{Request, State, Wish};
use super::simulation_world::{RESOURCES, World, resource, token};
use crate::fencing::epochs::Ending;
use crate::metrics::Metrics;
use crate::routing::Needs;

/// How many events one run has.
const EVENTS: usize = 600;

/// Seeds of runs that have found an error once: a row that was read before an epoch was opened
/// ended what it had to wait for.
const FOUND: [u64; 1] = [2583];

/// One run, and what went wrong.
fn run(seed: u64, metrics: &Arc<Metrics>) -> Result<(), String> {
    let mut world = World::new(seed, metrics);
    let ran = (0..EVENTS).try_for_each(|_| world.event());
    let ended = ran.and_then(|()| world.end());
    ended.map_err(|why| format!("seed {seed}: {why}\n{}", world.log.join("\n")))
}

impl World {
    /// All goes well from now on: what is in flight ends, and each resource serves its mark, and
    /// then a newer token at another instance.
    fn end(&mut self) -> Result<(), String> {
        self.say(|| "all goes well from now on".to_owned());
        self.rows.locked.clear();
        self.faults.failover = false;
        self.faults.loss = false;
        for process in &mut self.processes {
            process.asleep = false;
            process.member.routes_differ = false;
            while !process.requests.is_empty() {
                process.leave(0, Ending::Unknown, &mut self.upstream);
            }
        }
        while self.processes.len() < 2 {
            self.start();
        }
        self.finish_trips();
        self.drop_trips();
        for round in 0..2 {
            for number in 0..RESOURCES {
                let process = (round + number) % self.processes.len();
                self.serves(process, number, round > 0)?;
            }
        }
        // Idle epochs close by themselves.
        for _ in 0..14 {
            self.turn_all(Duration::from_millis(500))?;
        }
        for number in 0..RESOURCES {
            let open = self.rows.open(&resource(number));
            if !open.is_empty() {
                return Err(format!("{open:?} stay open at {number}"));
            }
        }
        Ok(())
    }

    /// A request with the newest token of a resource gets its permit in time.
    fn serves(&mut self, at: usize, number: usize, newer: bool) -> Result<(), String> {
        let key = resource(number);
        let lost = self.upstream.lost.contains(&key);
        // Its holder's token may be spent, and a lost mark may be known.
        let more = i64::from(newer || number == 1) + if lost { 100 } else { 0 };
        for _ in 0..80 {
            if self.processes[at].requests.is_empty() {
                let mark = self.rows.marks.get(&key).map_or(1, |mark| mark.token.get());
                let wish = Wish {
                    key: key.clone(),
                    token: token(mark + more),
                    needs: Needs::default(),
                    once: number == 1,
                    raise: false,
                };
                self.arrive(at, wish);
            }
            self.turn_all(Duration::from_millis(500))?;
            let served = |one: &Request| matches!(one.state, State::Sending(..));
            if self.processes[at].requests.iter().any(served) {
                self.processes[at].leave(0, Ending::Settled, &mut self.upstream);
                return Ok(());
            }
        }
        Err(format!("{key} is not served"))
    }

    /// Everything that is due happens, in time.
    fn turn_all(&mut self, span: Duration) -> Result<(), String> {
        self.after(span);
        for at in 0..self.processes.len() {
            self.processes[at].poll();
        }
        for _ in 0..3 {
            for at in 0..self.processes.len() {
                self.turn_one(at)?;
            }
            for notification in std::mem::take(&mut self.notifications) {
                self.hear(&notification);
            }
        }
        Ok(())
    }

    fn turn_one(&mut self, at: usize) -> Result<(), String> {
        self.processes[at].round();
        for errand in 0..4 {
            self.processes[at].errand(errand);
        }
        self.collect(at);
        self.finish_trips();
        for _ in 0..4 {
            let stops = |one: &Request| matches!(one.state, State::Sending(..));
            let next = self.processes[at]
                .requests
                .iter()
                .position(|one| !stops(one));
            if let Some(index) = next {
                self.step_one(at, index)?;
            }
            for lane in 0..=LANES {
                self.processes[at].turn_now(lane);
            }
            self.collect(at);
            self.finish_trips();
        }
        Ok(())
    }
}

fn number_of(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|set| set.parse().ok()).unwrap_or(default)
}

/// Runs until one fails.
pub(crate) fn hunt() {
    let metrics = Arc::new(Metrics::new(&[]));
    let first = number_of("SIMULATION_SEED", 1);
    let runs = number_of("SIMULATION_RUNS", 100);
    for seed in FOUND.into_iter().chain(first..first + runs) {
        if let Err(why) = run(seed, &metrics) {
            panic!("{why}");
        }
    }
}

#[test]
fn no_older_token_lands_after_a_newer_one_whatever_happens() {
    hunt();
}
