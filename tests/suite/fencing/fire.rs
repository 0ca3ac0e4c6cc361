//! Seeded fault histories: clients, proxies, a store and an upstream, each of which stalls, dies
//! and comes back as a plan says that is made from a number. Plan, run, log and check are separate:
//! the same number makes the same plan, the run is real processes on a real clock, and the checker
//! sees the log alone.
//!
//! The upstream speaks HTTP/1 or HTTP/2, with a limit on its streams. Between each proxy and the
//! upstream lies a path that stalls, trickles, delays and is cut (`support::path`). Stuck bytes
//! come late, if a kernel still has them.
//!
//! - `fire::histories`: the block that CI plays; everything that can happen has to have happened.
//!   With `FENCEPOST_FIRE_SEED=…`, that history alone; with `FENCEPOST_FIRE_MINUTES=…` too, as many
//!   from there on as fit into that time (`tests/soak.sh MINUTES SEED`).
//! - `fire::patroni`: the same load and rules on a Patroni cluster, whose primary fails.
//!
//! The log of a history that is played alone or breaks a rule is written to
//! `target/fire/SEED.log`.

mod check;
mod check_tests;
mod clients;
mod fault;
mod faults;
mod log;
mod marks;
mod park;
mod patroni;
mod plan;
mod run;
mod tally;
mod upstream;
mod world;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::log::{Log, LogEntry, write_down};
use self::park::Park;
use self::plan::{Ground, Plan};
use self::run::{lateness, play};
use self::tally::Tally;
use crate::fencing::crash::may_trace;
use crate::support::path::can_stall;
use crate::support::proxy::READY;
use crate::support::skip::lacks;
use crate::support::store::{has_postgres, program};

/// The fewest histories that CI plays, and the seed that it does not reach.
const BLOCK: usize = 110;
const MOST: u64 = 631;
/// Histories at once that may bring about one thing that has not occurred.
const TRIES: usize = 5;
/// Histories at once.
const AT_ONCE: usize = 18;
/// A history in which the instruments themselves were late by so much proves nothing against the
/// program: the upstream could not keep its promise to be done within `settle`.
const TOO_LATE: Duration = Duration::from_millis(800);
/// So many histories may be played again for that reason, of a hundred.
const VOID_PERCENT: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn histories() {
    let (alone, minutes) = (number("SEED"), number("MINUTES"));
    let seeds = match (alone, minutes) {
        (Some(seed), None) => seed..seed.saturating_add(1),
        (from, Some(_)) => from.unwrap_or(1)..u64::MAX,
        (None, None) => 1..MOST,
    };
    let soaks = minutes.map(|minutes| Instant::now() + Duration::from_mins(minutes));
    let mut bench = Bench::new(seeds, soaks);
    bench.play().await;
    bench.judge();
    if alone.is_none() || soaks.is_some() {
        let missing = bench.missing();
        assert!(missing.is_empty(), "C5: these never occurred: {missing:#?}");
    }
}

/// Of a variable of this test.
fn number(name: &str) -> Option<u64> {
    let variable = format!("FENCEPOST_FIRE_{name}");
    let text = std::env::var(&variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text}: a number")))
}

/// The abilities of the machine, the servers, and the results of many histories.
#[derive(Default)]
struct Bench {
    /// Those to come.
    seeds: Range<u64>,
    /// The time at which a soak ends.
    soaks: Option<Instant>,
    park: Arc<Park>,
    postgres: bool,
    /// Tools of some faults.
    lacks: Vec<&'static str>,
    /// By seed.
    running: HashMap<u64, Arc<Plan>>,
    begun: usize,
    void: usize,
    tally: Tally,
    /// A line or more for each history that broke a rule.
    broken: Vec<String>,
}

impl Bench {
    fn new(seeds: Range<u64>, soaks: Option<Instant>) -> Self {
        let strace = program("strace");
        let tools = [
            ("faketime", world::faketime().is_some()),
            ("strace", strace.is_some_and(|strace| may_trace(&strace))),
            ("socket-filters", can_stall()),
        ];
        let missing = tools.into_iter().filter(|(_, there)| !there);
        let missing = missing.map(|(tool, _)| tool).inspect(|tool| lacks(tool));
        Self {
            seeds,
            soaks,
            postgres: has_postgres(),
            lacks: missing.collect(),
            ..Self::default()
        }
    }

    /// Plays histories, many at a time, until there is no next one.
    async fn play(&mut self) {
        let (mut histories, began, mut minutes) = (JoinSet::new(), Instant::now(), 1);
        loop {
            while histories.len() < AT_ONCE
                && let Some(mut plan) = self.next()
            {
                plan.faults
                    .retain(|fault| fault.case.is_possible(&self.lacks));
                let plan = Arc::new(plan);
                self.begun += 1;
                self.running.insert(plan.seed, Arc::clone(&plan));
                histories.spawn(judged(plan, Arc::clone(&self.park)));
            }
            let Some(judged) = histories.join_next().await else {
                break;
            };
            self.take(judged.expect("judging does not panic"));
            if began.elapsed() >= Duration::from_mins(minutes) {
                minutes += 1;
                self.print(began);
            }
        }
        self.print(began);
    }

    /// The next plan that this machine can play. A fault finds its point only with the right
    /// timing. What has not occurred after a block of histories is played for on, unless enough of
    /// the histories that run may bring it about.
    fn next(&mut self) -> Option<Plan> {
        let is_over = self
            .soaks
            .map_or(!self.broken.is_empty(), |end| Instant::now() >= end);
        let mut missing = self.missing();
        missing.retain(|name| {
            let running = self.running.values();
            running.filter(|plan| may_bring_about(plan, name)).count() < TRIES
        });
        let postgres = self.postgres;
        let plans = self.seeds.by_ref().map(Plan::of);
        let mut plans = plans.filter(|plan| postgres || plan.ground == Ground::Sqlite);
        if is_over {
            return None;
        } else if self.begun < BLOCK || self.soaks.is_some() {
            return plans.next();
        } else if missing.is_empty() {
            return None;
        }
        let next = plans.find(|plan| missing.iter().any(|name| may_bring_about(plan, name)));
        let seed = next.as_ref().map(|plan| plan.seed);
        println!("fire: for {missing:?}: seed {seed:?}");
        next
    }

    /// C5, over all of them: the things that could have occurred on this machine and have not.
    fn missing(&self) -> BTreeSet<String> {
        let missing = self.tally.missing(&self.lacks);
        missing.into_iter().filter(|_| self.postgres).collect()
    }

    fn take(&mut self, (plan, log, again, broken): Judged) {
        let seed = plan.seed;
        self.running.remove(&seed);
        self.void += usize::from(again > 0);
        self.tally.take(&plan, &log);
        if broken.is_empty() && number("SEED") != Some(seed) {
            return;
        }
        let told = format!(
            "seed {seed}:\n  {broken}\n  again: FENCEPOST_FIRE_SEED={seed} \
             cargo test --test suite fire::histories -- --nocapture\n"
        );
        let file = write_down(&seed.to_string(), &told, &plan, &log);
        println!("{told}  the log: {}", file.display());
        if !broken.is_empty() {
            self.broken.push(told);
        }
    }

    fn print(&self, began: Instant) {
        let (last, time) = (self.seeds.start - 1, began.elapsed());
        let (all, void, broken) = (self.begun, self.void, self.broken.len());
        println!("fire: {all} histories, up to seed {last}, in {time:?}");
        for (name, count) in &self.tally.0 {
            println!("{count:9}  {name}");
        }
        println!("{void:9}  histories played again because the instruments were late");
        println!("{broken:9}  histories that broke a rule");
    }

    /// # Panics
    /// If a history broke a rule, with each that did.
    fn judge(&self) {
        assert!(self.broken.is_empty(), "{}", self.broken.join("\n"));
        let (void, begun) = (self.void, self.begun);
        assert!(
            void * 100 <= begun * VOID_PERCENT || void < 2,
            "{void} of {begun} histories had late instruments: the machine is too slow to judge by"
        );
    }
}

fn may_bring_about(plan: &Plan, name: &str) -> bool {
    let of_a_fault = name.starts_with("fault") || name.starts_with("point");
    let mut names = plan.faults.iter().flat_map(|fault| fault.case.names());
    !of_a_fault || names.any(|own| own == name)
}

/// A history: its plan, its log, the plays before it that proved nothing, and the rules that it
/// broke, in words.
type Judged = (Arc<Plan>, Vec<LogEntry>, usize, String);

/// Plays a plan and checks it. Where the instruments were late, a rule that was broken says nothing
/// yet: it is played again, and a third time if they were late then too.
async fn judged(plan: Arc<Plan>, park: Arc<Park>) -> Judged {
    for again in 0.. {
        let (lateness, log) = (lateness(), Log::begin());
        let playing = play(Arc::clone(&plan), Arc::clone(&park), log.clone());
        let played = tokio::spawn(playing).await;
        let log = log.entries();
        let (broken, starved) = match played {
            Ok(()) => (check::first_of(&check::check(&log)), false),
            // A machine that does not get a proxy started is no instrument either.
            Err(error) => (
                format!("it did not end: {error}"),
                error.to_string().contains(READY),
            ),
        };
        let late = starved || *lateness.borrow() > TOO_LATE;
        if broken.is_empty() || !late || again == 2 {
            return (plan, log, again, broken);
        }
        eprintln!(
            "fire: the instruments were late, so this proves nothing, and seed {} is played again: \
             {broken}",
            plan.seed
        );
    }
    unreachable!("the third time counts")
}
