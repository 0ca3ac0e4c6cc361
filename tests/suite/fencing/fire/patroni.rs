//! The high availability that the documents describe (docs/postgres.md), under the load and before
//! the checker of the fault histories: two proxies on a Patroni cluster of three, one by way of
//! `HAProxy`, one with all servers in its URL. In each round something happens to the primary.
//!
//! With synchronous commits a round may break no rule. With asynchronous ones a mark may be lost;
//! then a proxy that knew it has to have noticed, and in the end every mark is at or above all that
//! has arrived.
//!
//! The short form plays a few kinds on two clusters at once, `FENCEPOST_LONG=1` all of them. It
//! prints how long writes were refused; the documents have the longest.

mod fault;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::fault::PrimaryFault::{
    Crash, CutFromEtcd, CutFromProxy, CutFromStandbys, Freeze, Hang, Loss, LossWhileBehind,
    Switchover,
};
use self::fault::{BEFORE, CUT, Round, rounds};
use super::TOO_LATE;
use super::check::{Floor, History, below, check, first_of, raise};
use super::clients::{Came, Clients, key};
use super::log::{Event, Log, LogEntry, write_down};
use super::marks::{Reader, Source};
use super::plan::{Plan, PlannedRequest};
use super::run::{lateness, recover};
use super::upstream::PromptUpstream;
use super::world::config;
use crate::support::path::{Cut, Path, Weather};
use crate::support::patroni::Synchronous::{Off, On};
use crate::support::patroni::member::Member;
use crate::support::patroni::{PatroniCluster, url_of};
use crate::support::{Proxy, Store, or_return};

const DATABASE: &str = "fencepost";
/// Between two writes of the client that measures.
const BEAT: Duration = Duration::from_millis(25);
/// A shorter gap between two writes is no outage.
const WORTH: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_mins(1);
/// To the seed of a round that is played again.
const AGAIN: u64 = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_mark_is_lost_under_patroni() {
    let [one, two] = rounds();
    let (first, second) = tokio::join!(PatroniCluster::start(), PatroniCluster::start());
    let clusters = [or_return!(first), or_return!(second)];
    let (one, two) = tokio::join!(
        play_set(&clusters[0], 0, one),
        play_set(&clusters[1], 1_000, two)
    );
    let broken = [one, two].concat();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Plays the rounds on this cluster, one after the other, with seeds from this one on; returns the
/// rules that were broken. A round that breaks a rule while the instruments are late proves
/// nothing, and is played again.
async fn play_set(cluster: &PatroniCluster, from: u64, rounds: Vec<Round>) -> Vec<String> {
    let mut all_broken = Vec::new();
    let mut set_up = On;
    for (seed, round) in (from..).zip(rounds) {
        if round.0 != set_up {
            set_up = round.0;
            cluster.set(set_up).await;
        }
        let lateness = lateness();
        let mut broken = Scene::start(cluster, round, seed).await.play().await;
        if broken.is_some() && *lateness.borrow() > TOO_LATE {
            let again = Scene::start(cluster, round, seed + AGAIN).await;
            broken = again.play().await;
        }
        all_broken.extend(broken);
    }
    all_broken
}

/// One round.
struct Scene<'a> {
    cluster: &'a PatroniCluster,
    round: Round,
    clients: Clients,
    reader: Reader,
    upstream: PromptUpstream,
    /// By way of `HAProxy`, and by all servers.
    proxies: [Proxy; 2],
    /// From the proxies to the servers.
    ways: [Vec<Path>; 2],
    _tasks: JoinSet<()>,
}

impl<'a> Scene<'a> {
    async fn start(cluster: &'a PatroniCluster, round: Round, seed: u64) -> Self {
        let plan = Arc::new(Plan::of_clients(seed, round.1.span()));
        let (clients, mut tasks) = (Clients::of(plan, Log::begin()), JoinSet::new());
        let namespace = format!("r{seed}");
        let source = Source {
            url: url_of(&cluster.front.to_string(), DATABASE),
            namespace: namespace.clone(),
        };
        let reader = Reader::start(source, clients.log.clone(), &mut tasks);
        let upstream = PromptUpstream::start(&clients, &reader, &mut tasks).await;
        let servers = cluster.members.iter().map(Member::address);
        let ways = [vec![cluster.front], servers.collect()];
        let ways = ways.map(|to| to.into_iter().map(Path::start).collect::<Vec<_>>());
        let through = |ways: &[Path]| {
            let all: Vec<_> = ways.iter().map(|way| way.address().to_string()).collect();
            let store = Store::at(&url_of(&all.join(","), DATABASE));
            config(&format!("http://{}", upstream.address), &store, &namespace)
        };
        let proxies = [
            Proxy::start(&through(&ways[0])).await,
            Proxy::start(&through(&ways[1])).await,
        ];
        for (proxy, address) in proxies.iter().zip(&clients.directory) {
            *address.lock().expect("no panics") = Some(proxy.data());
        }
        Self {
            cluster,
            round,
            clients,
            reader,
            upstream,
            proxies,
            ways,
            _tasks: tasks,
        }
    }

    /// Prints for how long each proxy refused writes; returns the rules that were broken.
    async fn play(mut self) -> Option<String> {
        let (began, (mode, fault)) = (Instant::now(), self.round);
        let log = self.clients.log.clone();
        let clients = tokio::spawn(self.clients.clone().run());
        let over = Arc::new(OnceLock::new());
        let meters = [0, 1].map(|proxy| tokio::spawn(self.measure(proxy, &over)));
        sleep(BEFORE).await;
        log.note(format!("{fault:?}"));
        let struck = Instant::now();
        self.strike().await;
        log.note("healed");
        self.cluster.until_whole(mode).await;
        log.note("the cluster is whole");
        over.set(Instant::now()).expect("it is over once");
        let mut outages = Vec::new();
        for meter in meters {
            let passed = meter.await.expect("no meter panics");
            let since = passed.windows(2).filter(|pair| pair[1] > struck);
            let gaps = since.map(|pair| pair[1] - pair[0]);
            outages.push(gaps.filter(|gap| *gap > WORTH).sum::<Duration>());
        }
        clients.await.expect("no client panics");
        recover(&self.clients).await;
        self.reader.has_looked(PATIENCE).await;
        let broken = self.judge().await;
        let seed = self.clients.plan.seed;
        println!(
            "patroni: round {seed}, {mode:?}, {fault:?}: no writes by HAProxy, and by all servers, \
             for {outages:.1?}, in {:.0?}{}",
            began.elapsed(),
            broken.as_deref().unwrap_or_default(),
        );
        drop(self.proxies);
        self.upstream.rest().await;
        broken
    }

    /// A client that writes with rising tokens to a resource of its own; when each write was
    /// answered. It goes on until all is over and a write has passed since.
    fn measure(
        &self,
        proxy: usize,
        over: &Arc<OnceLock<Instant>>,
    ) -> impl Future<Output = Vec<Instant>> + use<> {
        let (clients, over) = (self.clients.clone(), Arc::clone(over));
        let resource = clients.plan.all_resources() + proxy;
        async move {
            let mut passed = Vec::new();
            for token in 1.. {
                let ended = over.get();
                let probe = PlannedRequest::put(0, proxy, resource, token);
                let came = clients.attempt(&probe, &format!("m{proxy}-{token}")).await;
                if came == Came::Passed {
                    passed.push(Instant::now());
                }
                if ended.is_some() && came == Came::Passed {
                    break;
                } else if ended.is_some_and(|ended| ended.elapsed() > PATIENCE) {
                    let what = format!("{} takes no newer token", key(resource));
                    clients.log.add(Event::Unrecovered(what));
                    break;
                }
                sleep(BEAT).await;
            }
            passed
        }
    }

    /// Does it, and undoes it when Patroni has done its part.
    async fn strike(&self) {
        let (cluster, (mode, fault)) = (self.cluster, self.round);
        let primary = cluster.primary().await;
        match fault {
            Switchover => cluster.switch_over().await,
            Crash => primary.crash(),
            Freeze => {
                primary.freeze();
                cluster.next_primary(primary).await;
                primary.thaw();
            }
            Hang => {
                primary.signal_patroni(Signal::STOP);
                cluster.next_primary(primary).await;
                sleep(CUT).await;
                primary.signal_patroni(Signal::CONT);
            }
            CutFromEtcd | CutFromStandbys | CutFromProxy => {
                let of_proxy = usize::try_from(self.clients.plan.seed % 2).expect("0 or 1");
                let cut: Vec<&Path> = match fault {
                    CutFromEtcd => vec![&primary.to_etcd],
                    CutFromStandbys => vec![&primary.from_members],
                    _ => self.ways[of_proxy].iter().collect(),
                };
                for path in &cut {
                    path.weather(Weather::Dead);
                }
                if fault == CutFromEtcd {
                    cluster.next_primary(primary).await;
                } else {
                    sleep(CUT).await;
                }
                for path in &cut {
                    path.weather(Weather::Clear);
                }
            }
            Loss | LossWhileBehind => {
                let mut behind = None;
                if fault == LossWhileBehind && mode == Off {
                    primary.from_members.refuse().await;
                    primary.from_members.cut(Cut::Reset);
                } else if fault == LossWhileBehind {
                    let spare = behind.insert(cluster.spare_standby().await);
                    spare.signal_receiver(Signal::STOP);
                }
                if fault == LossWhileBehind {
                    sleep(BEFORE).await;
                }
                primary.kill9();
                let new = cluster.next_primary(primary).await;
                if let Some(behind) = behind {
                    behind.signal_receiver(Signal::CONT);
                } else if fault == LossWhileBehind {
                    primary.from_members.listen();
                }
                if behind.is_some_and(|behind| behind.name == new.name) {
                    let what = "a standby that was behind was promoted".to_owned();
                    self.clients.log.add(Event::Unrecovered(what));
                }
                primary.start();
            }
        }
    }

    /// The rules that were broken, in words.
    async fn judge(&mut self) -> Option<String> {
        let (log, (mode, fault)) = (&self.clients.log, self.round);
        let mut missed = [0.0; 2];
        let mut broken = Vec::new();
        for (missed, proxy) in missed.iter_mut().zip(&mut self.proxies) {
            *missed = proxy.sum("fencepost_mark_regressions_total", &[]).await;
            if proxy.process().ended().is_some() {
                broken.push("a proxy ended".to_owned());
            }
            let said = proxy.process().lines().join("\n");
            log.note(format!("a proxy said:\n{said}"));
        }
        let log = log.entries();
        let mut found = check(&log);
        if mode == Off && matches!(fault, Loss | LossWhileBehind) {
            // An asynchronous failover may lose marks. A look that began before it is noticed sees
            // that, and what a lost mark would have stopped may pass.
            let before = found.len();
            found.retain(|other| !["C1", "C2", "C3"].contains(&&other[..2]));
            let lost = before - found.len();
            println!("patroni: {lost} signs of lost marks, {missed:?} noticed by the proxies");
            if fault == LossWhileBehind && missed[0] + missed[1] == 0.0 {
                broken.push("no proxy noticed that marks were lost".to_owned());
            }
            broken.extend(below_arrivals(&log));
        } else if missed[0] > 0.0 || missed[1] > 0.0 && !fault.leaves_an_old_primary() {
            broken.push(format!(
                "the proxies miss {missed:?} marks, and none can be lost"
            ));
        }
        broken.extend(found);
        (!broken.is_empty()).then(|| {
            let (broken, plan) = (first_of(&broken), &self.clients.plan);
            let file = write_down(&format!("patroni-{}", plan.seed), &broken, plan, &log);
            format!("\n  {broken}\n  the log: {}", file.display())
        })
    }
}

/// The resources whose last mark is below a token that has arrived.
fn below_arrivals(log: &[LogEntry]) -> Vec<String> {
    let last = log.iter().rev().find_map(|entry| match &entry.event {
        Event::Marks(marks) => Some(marks.clone()),
        _ => None,
    });
    let mut arrived = Floor::new();
    let history = History::of(log);
    for (resource, arrivals) in history.by_resource() {
        let tokens = arrivals.iter().filter_map(|arrival| arrival.token);
        tokens.for_each(|token| raise(&mut arrived, resource, token));
    }
    below(&arrived, &last.unwrap_or_default(), "has arrived")
}
