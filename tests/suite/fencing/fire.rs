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
mod noise;
mod park;
mod patroni;
mod plan;
mod run;
mod tally;
mod upstream;
mod world;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinSet};

use self::fault::{FaultCase, FaultKind, Sky};
use self::log::{Log, LogEntry, write_down};
use self::noise::Noise;
use self::park::Park;
use self::plan::{Ground, Plan};
use self::run::play;
use self::tally::Tally;
use crate::support::path::can_stall;
use crate::support::proxy::READY;
use crate::support::skip::lacks;
use crate::support::store::{postgres_is_installed, program};

/// The fewest and the most histories that CI plays.
const BLOCK: usize = 110;
const MOST: u64 = 630;
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
    let (seed, minutes) = (
        number("FENCEPOST_FIRE_SEED"),
        number("FENCEPOST_FIRE_MINUTES"),
    );
    let mut bench = Bench::new();
    match (seed, minutes) {
        (Some(seed), None) => bench.play(seed..=seed, |_, plans| plans.next()).await,
        (seed, Some(minutes)) => {
            let (end, mut printed) = (Duration::from_mins(minutes), Instant::now());
            let seeds = seed.unwrap_or(1)..=u64::MAX;
            let next = |bench: &Bench, plans: &mut dyn Iterator<Item = Plan>| {
                if printed.elapsed() >= Duration::from_mins(1) {
                    printed = Instant::now();
                    bench.print();
                }
                plans.next().filter(|_| bench.began.elapsed() < end)
            };
            bench.play(seeds, next).await;
        }
        (None, None) => bench.play(1..=MOST, Bench::next_of_block).await,
    }
    bench.judge();
    if seed.is_none() || minutes.is_some() {
        let missing = bench.missing();
        assert!(missing.is_empty(), "C5: these never occurred: {missing:#?}");
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: a number")),
    )
}

/// The abilities of the machine, the servers, and the results of many histories.
struct Bench {
    park: Arc<Park>,
    noise: Noise,
    postgres: bool,
    can: Can,
    began: Instant,
    /// By seed.
    running: HashMap<u64, Arc<Plan>>,
    begun: usize,
    /// The latest seed that was begun.
    last: u64,
    void: usize,
    tally: Tally,
    /// A line or more for each history that broke a rule.
    broken: Vec<String>,
}

/// The faults that this machine allows.
#[derive(Clone, Copy)]
pub struct Can {
    /// Make the wall clock jump.
    jump: bool,
    /// Die by a sync of the disk.
    trace: bool,
    /// Lose packets on their way to the upstream.
    stall: bool,
}

impl Can {
    fn allows(self, case: FaultCase) -> bool {
        match case.kind {
            FaultKind::Jump => self.jump,
            FaultKind::DieAtSync => self.trace,
            _ => self.stall || case.sky == Sky::Clear,
        }
    }
}

impl Bench {
    fn new() -> Self {
        let strace = program("strace");
        let can = Can {
            jump: world::faketime().is_some(),
            trace: strace.is_some_and(|strace| crate::fencing::crash::may_trace(&strace)),
            stall: can_stall(),
        };
        let postgres = postgres_is_installed();
        for (there, tool) in [
            (postgres, "postgres"),
            (can.jump, "faketime"),
            (can.trace, "strace"),
            (can.stall, "socket-filters"),
        ] {
            if !there {
                lacks(tool);
            }
        }
        Self {
            park: Arc::default(),
            noise: Noise::listen(),
            postgres,
            can,
            began: Instant::now(),
            running: HashMap::new(),
            begun: 0,
            last: 0,
            void: 0,
            tally: Tally::default(),
            broken: Vec::new(),
        }
    }

    /// Plays histories of these seeds, many at a time, until there is no next one.
    async fn play(
        &mut self,
        seeds: std::ops::RangeInclusive<u64>,
        mut next: impl FnMut(&Self, &mut dyn Iterator<Item = Plan>) -> Option<Plan>,
    ) {
        let (can, postgres) = (self.can, self.postgres);
        // As far as this machine can play them.
        let mut plans = seeds
            .map(Plan::of)
            .filter(|plan| postgres || plan.ground == Ground::Sqlite);
        let mut histories = JoinSet::new();
        loop {
            while histories.len() < AT_ONCE
                && let Some(mut plan) = next(self, &mut plans)
            {
                plan.faults.retain(|fault| can.allows(fault.case));
                let plan = Arc::new(plan);
                (self.begun, self.last) = (self.begun + 1, plan.seed);
                self.running.insert(plan.seed, Arc::clone(&plan));
                histories.spawn(judged(plan, Arc::clone(&self.park), self.noise.clone()));
            }
            let Some(judged) = histories.join_next().await else {
                break;
            };
            self.take(judged.expect("judging does not panic"));
        }
        self.print();
    }

    /// A fault finds its point only with the right timing. What has not occurred yet is
    /// played for on, unless enough of the histories that run may bring it about.
    fn next_of_block(&self, plans: &mut dyn Iterator<Item = Plan>) -> Option<Plan> {
        if !self.broken.is_empty() {
            return None;
        }
        if self.begun < BLOCK {
            return plans.next();
        }
        let mut missing = self.missing();
        missing.retain(|name| {
            let running = self.running.values();
            running.filter(|plan| may_bring_about(plan, name)).count() < TRIES
        });
        if missing.is_empty() {
            return None;
        }
        let next = std::iter::from_fn(|| plans.next())
            .find(|plan| missing.iter().any(|name| may_bring_about(plan, name)));
        println!(
            "fire: for {missing:?}: seed {:?}",
            next.as_ref().map(|plan| plan.seed)
        );
        next
    }

    /// C5, over all of them: the things that could have occurred on this machine and have not.
    fn missing(&self) -> BTreeSet<String> {
        if self.postgres {
            self.tally.missing(self.can)
        } else {
            BTreeSet::new()
        }
    }

    fn take(&mut self, judged: Judged) {
        self.running.remove(&judged.plan.seed);
        self.void += usize::from(judged.again > 0);
        self.tally.take(&judged.plan, &judged.log);
        if let Some(broken) = judged.broken {
            eprintln!("{broken}");
            self.broken.push(broken);
        }
    }

    fn print(&self) {
        let (void, broken) = (self.void, self.broken.len());
        println!(
            "fire: {} histories, up to seed {}, in {:?}\n{}\
             {void:9}  histories played again because the instruments were late\n\
             {broken:9}  histories that broke a rule",
            self.begun,
            self.last,
            self.began.elapsed(),
            self.tally,
        );
    }

    /// # Panics
    /// If a history broke a rule, with each that did.
    fn judge(&self) {
        assert!(self.broken.is_empty(), "{}", self.broken.join("\n"));
        assert!(
            self.void * 100 <= self.begun * VOID_PERCENT || self.void < 2,
            "{} of {} histories had late instruments: the machine is too slow to judge by",
            self.void,
            self.begun
        );
    }
}

fn may_bring_about(plan: &Plan, name: &str) -> bool {
    let of_a_fault = name.starts_with("fault") || name.starts_with("point");
    let mut names = plan.faults.iter().flat_map(|fault| fault.case.names());
    !of_a_fault || names.any(|own| own == name)
}

/// A history and what the checker says.
struct Judged {
    plan: Arc<Plan>,
    log: Vec<LogEntry>,
    late: bool,
    /// The plays before it that proved nothing.
    again: usize,
    broken: Option<String>,
}

/// Plays a plan and checks it. Where the instruments were late, a rule that was broken says nothing
/// yet: it is played again, and a third time if they were late then too.
async fn judged(plan: Arc<Plan>, park: Arc<Park>, noise: Noise) -> Judged {
    let mut again = 0;
    loop {
        let one = judged_once(&plan, &park, &noise).await;
        if one.broken.is_none() || !one.late || again == 2 {
            return Judged { again, ..one };
        }
        again += 1;
        eprintln!(
            "fire: the instruments were late, so this proves nothing, and it is played again: {}",
            one.broken.unwrap_or_default()
        );
    }
}

async fn judged_once(plan: &Arc<Plan>, park: &Arc<Park>, noise: &Noise) -> Judged {
    let (began, log) = (Instant::now(), Log::begin());
    let (plan, park, to) = (Arc::clone(plan), Arc::clone(park), log.clone());
    let playing = Arc::clone(&plan);
    let played = tokio::spawn(async move { play(playing, &park, to).await }).await;
    // A machine that does not get a proxy started is no instrument either.
    let starved = |error: &JoinError| error.to_string().contains(READY);
    let late = noise.worst_since(began) > TOO_LATE || played.as_ref().is_err_and(starved);
    let log = log.entries();
    let violations = match &played {
        Ok(_) => check::first_of(&check::check(&log)),
        Err(error) => vec![format!("it did not end: {error}")],
    }
    .join("\n  ");
    let seed = plan.seed;
    let mut broken = None;
    if !violations.is_empty() || number("FENCEPOST_FIRE_SEED") == Some(seed) {
        let lines = played.unwrap_or_default();
        let file = write_down(&seed.to_string(), &violations, &plan, &log, &lines);
        broken = (!violations.is_empty()).then(|| {
            format!(
                "seed {seed}:\n  {violations}\n  the log: {}\n  \
                 again: FENCEPOST_FIRE_SEED={seed} \
                 cargo test --test suite fire::histories -- --nocapture\n",
                file.display()
            )
        });
    }
    Judged {
        plan,
        log,
        late,
        again: 0,
        broken,
    }
}
