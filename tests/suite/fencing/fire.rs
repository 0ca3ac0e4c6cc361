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
//! - `fire::patroni`: the same load and rules on a Patroni cluster, whose primary fails.
//! - `fire::soak`: as many as fit into a time (`tests/soak.sh MINUTES SEED`).
//!
//! With `FENCEPOST_FIRE_SEED=…`, `fire::histories` plays that history alone,
//! `FENCEPOST_FIRE_TIMES=…` times. Its log, or that of one that breaks a rule, is written to
//! `target/fire/SEED.log`.

mod check;
mod check_tests;
mod clients;
mod fault;
mod faults;
mod hub;
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

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::log::{Log, LogEntry};
use self::noise::Noise;
use self::park::Park;
use self::plan::{FaultKind, Ground, Plan, Sky};
use self::run::play;
use self::tally::Tally;
use crate::support::path::can_stall;
use crate::support::proxy::READY;
use crate::support::skip::lacks;
use crate::support::store::{postgres_is_installed, program};

/// The fewest and the most histories that CI plays.
const BLOCK: usize = 140;
const MOST: u64 = 630;
/// Histories handed to the machine; how many run at once is the park's business.
const AHEAD: usize = 24;
/// A history in which the instruments themselves were late by so much proves nothing against the
/// program: the upstream could not keep its promise to be done within `settle`.
const TOO_LATE: Duration = Duration::from_millis(800);
/// So many histories may be played again for that reason, of a hundred.
const VOID_PERCENT: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn histories() {
    let bench = Bench::new();
    if let Some(seed) = number("FENCEPOST_FIRE_SEED") {
        for _ in 0..number("FENCEPOST_FIRE_TIMES").unwrap_or(1) {
            bench
                .play_all(seed..=seed, |_| Next::Any)
                .await
                .report("fire::histories");
        }
        return;
    }
    // A fault finds its point only with the right timing: what has not occurred yet is played for
    // on.
    let next = |score: &Score| {
        if score.is_broken() {
            return Next::End;
        }
        let missing = bench.missing(score);
        if score.played == BLOCK && !missing.is_empty() {
            println!("fire: not in the first {BLOCK} histories: {missing:#?}");
        }
        match (score.played >= BLOCK, missing.is_empty()) {
            (false, _) => Next::Any,
            (true, false) => Next::With(missing),
            (true, true) => Next::End,
        }
    };
    let score = bench.play_all(1..=MOST, next).await;
    score.report("fire::histories");
    bench.assert_all_occurred(&score);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "as long as its caller says: tests/soak.sh MINUTES SEED"]
async fn soak() {
    let minutes = number("FENCEPOST_FIRE_MINUTES").expect("FENCEPOST_FIRE_MINUTES: how long");
    let from = number("FENCEPOST_FIRE_SEED").expect("FENCEPOST_FIRE_SEED: the first seed");
    let end = Instant::now() + Duration::from_mins(minutes);
    let bench = Bench::new();
    let mut printed = Instant::now();
    let score = bench
        .play_all(from..=u64::MAX, move |score| {
            if printed.elapsed() >= Duration::from_mins(1) {
                printed = Instant::now();
                println!("--- seeds {from} to {}\n{}", score.last, score.summary());
            }
            if Instant::now() >= end {
                Next::End
            } else {
                Next::Any
            }
        })
        .await;
    score.report("fire::soak");
    bench.assert_all_occurred(&score);
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: a number")),
    )
}

/// The abilities of the machine, and the servers.
struct Bench {
    park: Arc<Park>,
    noise: Noise,
    postgres: bool,
    can: Can,
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

/// The results of many histories.
#[derive(Default)]
struct Score {
    tally: Tally,
    /// The latest seed that was begun.
    last: u64,
    played: usize,
    void: usize,
    /// A line or more for each history that broke a rule.
    broken: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            park: Arc::new(Park::new()),
            noise: Noise::listen(),
            postgres: postgres_is_installed(),
            can: Can {
                jump: world::clocks_can_jump(),
                trace: program("strace")
                    .is_some_and(|strace| crate::fencing::crash::may_trace(&strace)),
                stall: can_stall(),
            },
        };
        for (there, tool) in [
            (bench.postgres, "postgres"),
            (bench.can.jump, "faketime"),
            (bench.can.trace, "strace"),
            (bench.can.stall, "socket-filters"),
        ] {
            if !there {
                lacks(tool);
            }
        }
        bench
    }

    /// C5, over all of them.
    fn assert_all_occurred(&self, score: &Score) {
        let missing = self.missing(score);
        assert!(missing.is_empty(), "C5: these never occurred: {missing:#?}");
    }

    /// The things that could have occurred on this machine and have not.
    fn missing(&self, score: &Score) -> Vec<String> {
        if self.postgres {
            score.tally.missing(self.can)
        } else {
            Vec::new()
        }
    }

    /// The plan of a seed, as far as this machine can play it.
    fn plan(&self, seed: u64) -> Option<Plan> {
        let mut plan = Plan::of(seed);
        if plan.ground != Ground::Sqlite && !self.postgres {
            return None;
        }
        if !self.can.jump {
            plan.jumps = false;
            plan.faults.retain(|fault| fault.kind != FaultKind::Jump);
        }
        if !self.can.trace {
            plan.dies_at_sync = None;
            plan.faults
                .retain(|fault| fault.kind != FaultKind::DieAtSync);
        }
        if !self.can.stall {
            plan.faults
                .retain(|fault| Sky::of(fault.weather) == Sky::Clear);
        }
        Some(plan)
    }

    /// Plays these seeds, many at a time, until they are through or `next` says so.
    async fn play_all(
        &self,
        seeds: std::ops::RangeInclusive<u64>,
        mut next: impl FnMut(&Score) -> Next,
    ) -> Score {
        let began = Instant::now();
        let mut score = Score::default();
        let mut seeds = seeds.filter_map(|seed| self.plan(seed));
        let mut running = JoinSet::new();
        let mut wanted = Next::Any;
        loop {
            while running.len() < AHEAD {
                let Some(plan) = seeds.find(|plan| wanted.takes(plan)) else {
                    break;
                };
                score.last = plan.seed;
                let (park, noise) = (Arc::clone(&self.park), self.noise.clone());
                running.spawn(judged(plan, park, noise));
            }
            let Some(judged) = running.join_next().await else {
                break;
            };
            score.take(judged.expect("judging does not panic"));
            if !matches!(wanted, Next::End) {
                wanted = next(&score);
            }
        }
        println!("fire: {} histories in {:?}", score.played, began.elapsed());
        score
    }
}

/// The histories that are played next.
enum Next {
    Any,
    /// Those that may bring about one of these things, which have not occurred.
    With(Vec<String>),
    End,
}

impl Next {
    fn takes(&self, plan: &Plan) -> bool {
        let missing = match self {
            Self::Any => return true,
            Self::With(missing) => missing,
            Self::End => return false,
        };
        let faults = plan.faults.iter();
        let may: Vec<String> = faults.flat_map(tally::names).collect();
        let of_no_fault = |name: &String| !name.starts_with("fault") && !name.starts_with("point");
        missing
            .iter()
            .any(|name| of_no_fault(name) || may.contains(name))
    }
}

/// A history and what the checker says.
struct Judged {
    plan: Arc<Plan>,
    log: Vec<LogEntry>,
    void: bool,
    broken: Option<String>,
}

/// Plays a plan and checks it. Where the instruments were late, a rule that was broken says nothing
/// yet: it is played again, and a third time if they were late then too.
async fn judged(plan: Plan, park: Arc<Park>, noise: Noise) -> Judged {
    let plan = Arc::new(plan);
    let mut void = false;
    for _ in 0..2 {
        let one = judged_once(&plan, &park, &noise).await;
        if one.broken.is_none() || !one.void {
            return Judged { void, ..one };
        }
        void = true;
        eprintln!(
            "fire: the instruments were late, so this proves nothing, and it is played again: {}",
            one.broken.unwrap_or_default()
        );
    }
    let last = judged_once(&plan, &park, &noise).await;
    Judged { void, ..last }
}

async fn judged_once(plan: &Arc<Plan>, park: &Arc<Park>, noise: &Noise) -> Judged {
    let (began, log) = (Instant::now(), Log::begin());
    let (plan, park, to) = (Arc::clone(plan), Arc::clone(park), log.clone());
    let playing = Arc::clone(&plan);
    let played = tokio::spawn(async move { play(playing, &park, to).await }).await;
    // A machine that does not get a proxy started is no instrument either.
    let starved = |error: &tokio::task::JoinError| error.to_string().contains(READY);
    let void = noise.worst_since(began) > TOO_LATE || played.as_ref().is_err_and(starved);
    let log = log.entries();
    let mut said = String::new();
    match &played {
        Ok(_) => {
            let violations = check::check(&log);
            for violation in violations.iter().take(8) {
                writeln!(said, "  {violation}").expect("a String takes all");
            }
            if violations.len() > 8 {
                writeln!(said, "  and {} more", violations.len() - 8).expect("a String takes all");
            }
        }
        Err(error) => writeln!(said, "  it did not end: {error}").expect("a String takes all"),
    }
    let seed = plan.seed;
    let alone = number("FENCEPOST_FIRE_SEED") == Some(seed);
    let file = (alone || !said.is_empty())
        .then(|| write_down(&plan, &log, &played.unwrap_or_default(), &said));
    let broken = file.filter(|_| !said.is_empty()).map(|file| {
        format!(
            "seed {seed}:\n{said}  the log: {}\n  \
             again: FENCEPOST_FIRE_SEED={seed} cargo test --test suite fire::histories -- --nocapture\n",
            file.display()
        )
    });
    Judged {
        plan,
        log,
        void,
        broken,
    }
}

/// The plan, the log and what the proxies said, into `target/fire/SEED.log`.
fn write_down(plan: &Plan, log: &[LogEntry], said: &[String], violations: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fire");
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    let file = dir.join(format!("{}.log", plan.seed));
    let text = format!(
        "{violations}\n{plan:#?}\n\n{}\n{}\n",
        log::text(log),
        said.join("\n")
    );
    std::fs::write(&file, text).expect("the target directory is writable");
    file
}

impl Score {
    fn is_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    fn take(&mut self, judged: Judged) {
        self.played += 1;
        self.void += usize::from(judged.void);
        self.tally.take(&judged.plan, &judged.log);
        if let Some(broken) = judged.broken {
            eprintln!("{broken}");
            self.broken.push(broken);
        }
    }

    fn summary(&self) -> String {
        format!(
            "{}{:9}  histories played again because the instruments were late\n{:9}  histories that broke a rule",
            self.tally,
            self.void,
            self.broken.len()
        )
    }

    /// Prints the counts.
    ///
    /// # Panics
    /// If a history broke a rule, with each that did.
    fn report(&self, name: &str) {
        println!("{name}: up to seed {}\n{}", self.last, self.summary());
        assert!(self.broken.is_empty(), "{}", self.broken.join("\n"));
        assert!(
            self.void * 100 <= self.played * VOID_PERCENT || self.void < 2,
            "{} of {} histories had late instruments: the machine is too slow to judge by",
            self.void,
            self.played
        );
    }
}
