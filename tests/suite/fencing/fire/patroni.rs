//! The high availability that the documents describe (docs/postgres.md), under the load and before
//! the checker of the fault histories: two proxies on a Patroni cluster of three, one by way of
//! `HAProxy`, one with all servers in its URL. In each round something happens to the primary.
//!
//! With synchronous commits a round may break no rule. With asynchronous ones a mark may be lost;
//! then a proxy that knew it has to have noticed, and in the end every mark is at or above all that
//! has arrived.
//!
//! The short form plays a few kinds on two clusters at once, `FENCEPOST_LONG=1` all of them. It
//! prints how long writes were refused, as the documents have it.

mod fault;
mod figures;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::fault::PrimaryFault::{
    self, Crash, CutFromEtcd, CutFromProxy, CutFromStandbys, Freeze, Hang, Loss, LossWhileBehind,
    Switchover,
};
use self::fault::{BEFORE, CUT, Round, rounds};
use self::figures::{Figures, Outage};
use super::TOO_LATE;
use super::check::{History, Rule, check};
use super::clients::{Directory, HistoryClient, probe};
use super::hub::Hub;
use super::log::{self, Event, Log, LogEntry};
use super::marks::{Reader, Source};
use super::noise::Noise;
use super::plan::Plan;
use super::run::recover;
use super::upstream::PromptUpstream;
use crate::support::path::{Cut, Path, Weather};
use crate::support::patroni::PatroniCluster;
use crate::support::patroni::Synchronous::{self, Off, On};
use crate::support::{Config, Proxy, Store, or_return};

/// As in the fault histories. The times of the store are the defaults.
const TIMES: &str = "{ upstream: { timeout: 450ms, connect_timeout: 500ms, undelivered: 600ms },
    barrier: { wait: 700ms, grace: 500ms, settle: 4s } }";
/// Between two writes of the client that measures.
const BEAT: Duration = Duration::from_millis(25);
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
    let mut figures = Figures::default();
    let mut broken = Vec::new();
    for ((mode, fault), played) in one.into_iter().chain(two) {
        figures.add(mode, fault, played.outages);
        broken.extend(played.broken);
    }
    println!("{figures}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The result of a round.
struct Played {
    outages: [Outage; 2],
    broken: Option<String>,
}

/// Plays the rounds on this cluster, one after the other, with seeds from this one on. A round that
/// breaks a rule while the instruments are late proves nothing, and is played again.
async fn play_set(cluster: &PatroniCluster, from: u64, rounds: Vec<Round>) -> Vec<(Round, Played)> {
    let noise = Noise::listen();
    let mut played = Vec::new();
    let mut set_up = On;
    for (seed, (mode, fault)) in (from..).zip(rounds) {
        if mode != set_up {
            cluster.set(mode).await;
            set_up = mode;
        }
        let began = Instant::now();
        let mut round = play(cluster, mode, fault, seed).await;
        if round.broken.is_some() && noise.worst_since(began) > TOO_LATE {
            round = play(cluster, mode, fault, seed + AGAIN).await;
        }
        played.push(((mode, fault), round));
    }
    played
}

async fn play(
    cluster: &PatroniCluster,
    mode: Synchronous,
    fault: PrimaryFault,
    seed: u64,
) -> Played {
    let began = Instant::now();
    let scene = Scene::start(cluster, mode, fault, seed).await;
    let round = scene.play().await;
    let [front, hosts] = round.outages;
    println!(
        "patroni: round {seed}, {mode:?}, {fault:?}: {front:?} by HAProxy and {hosts:?} in {:.0?}{}",
        began.elapsed(),
        round.broken.as_deref().unwrap_or_default(),
    );
    round
}

/// One round.
struct Scene<'a> {
    cluster: &'a PatroniCluster,
    mode: Synchronous,
    fault: PrimaryFault,
    plan: Arc<Plan>,
    log: Log,
    reader: Reader,
    upstream: PromptUpstream,
    /// By way of `HAProxy`, and by all servers.
    proxies: [Proxy; 2],
    directory: Directory,
    /// From the proxies to the servers.
    ways: [Vec<Path>; 2],
    _tasks: JoinSet<()>,
}

impl<'a> Scene<'a> {
    async fn start(
        cluster: &'a PatroniCluster,
        mode: Synchronous,
        fault: PrimaryFault,
        seed: u64,
    ) -> Self {
        let plan = Arc::new(Plan::of_clients(seed, fault.span()));
        let (log, mut tasks) = (Log::begin(), JoinSet::new());
        let namespace = format!("r{seed}");
        let front = cluster.front();
        let source = Source::Postgres(cluster.url(&front.to_string()), namespace.clone());
        let reader = Reader::start(source, log.clone(), &mut tasks);
        let hub = Arc::new(Hub::default());
        let upstream =
            PromptUpstream::start(Arc::clone(&plan), log.clone(), hub, reader.clone()).await;
        let servers = cluster
            .members
            .iter()
            .map(|member| member.address().parse().expect("an address"));
        let ways = [vec![front], servers.collect::<Vec<SocketAddr>>()]
            .map(|servers| servers.into_iter().map(Path::start).collect::<Vec<_>>());
        let config = |ways: &[Path]| {
            let all: Vec<_> = ways.iter().map(|way| way.address().to_string()).collect();
            let store = Store::at(&cluster.url(&all.join(",")));
            Config::to(&format!("http://{}", upstream.address()), &store)
                .with(TIMES)
                .with(&format!("store: {{ namespace: {namespace} }}"))
                .with("body: { buffer: 4096B, max: 1048576B }")
                .route("methods: [PUT, POST, DELETE]")
        };
        let proxies = [
            Proxy::start(&config(&ways[0])).await,
            Proxy::start(&config(&ways[1])).await,
        ];
        let addresses = [proxies[0].data(), proxies[1].data()];
        Self {
            cluster,
            mode,
            fault,
            plan,
            log,
            reader,
            upstream,
            proxies,
            directory: Arc::new(move |nth| Some(addresses[nth])),
            ways,
            _tasks: tasks,
        }
    }

    async fn play(mut self) -> Played {
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0..self.plan.clients.len() {
            let client = HistoryClient {
                number,
                plan: Arc::clone(&self.plan),
                log: self.log.clone(),
                began,
                hub: Arc::new(Hub::default()),
                directory: Arc::clone(&self.directory),
            };
            clients.spawn(client.run());
        }
        let over = Arc::new(AtomicBool::new(false));
        let meters = [0, 1].map(|proxy| tokio::spawn(self.measure(proxy, &over)));
        sleep(BEFORE).await;
        self.log.note(format!("{:?}", self.fault));
        let struck = Instant::now();
        self.strike().await;
        self.log.note("healed");
        self.cluster.until_whole(self.mode).await;
        self.log.note("the cluster is whole");
        over.store(true, Ordering::Relaxed);
        let mut outages = Vec::new();
        for meter in meters {
            outages.push(Outage::since(
                struck,
                &meter.await.expect("no meter panics"),
            ));
        }
        clients.join_all().await;
        recover(&self.plan, &self.log, &self.directory).await;
        self.reader.has_looked(PATIENCE).await;
        let broken = self.judge().await;
        self.upstream.rest().await;
        Played {
            outages: outages.try_into().expect("there are two proxies"),
            broken,
        }
    }

    /// A client that writes with rising tokens to a resource of its own; when each write was
    /// answered. It goes on until all is over and a write has passed since.
    fn measure(
        &self,
        proxy: usize,
        over: &Arc<AtomicBool>,
    ) -> impl Future<Output = Vec<Instant>> + use<> {
        let (log, over, to) = (
            self.log.clone(),
            Arc::clone(over),
            self.proxies[proxy].data(),
        );
        let of = self.plan.all_resources() + proxy;
        async move {
            let mut passed = Vec::new();
            let mut ends = None;
            for token in 1.. {
                let sent = Instant::now();
                if probe(&log, to, proxy, &format!("m{proxy}-{token}"), of, token).await {
                    passed.push(Instant::now());
                    if ends.is_some_and(|ends| sent > ends) {
                        break;
                    }
                }
                if over.load(Ordering::Relaxed) {
                    let ends = *ends.get_or_insert_with(Instant::now);
                    if ends.elapsed() > PATIENCE {
                        let resource = format!("order:r{of}");
                        log.add(Event::Recovered {
                            resource,
                            yes: false,
                        });
                        break;
                    }
                }
                sleep(BEAT).await;
            }
            passed
        }
    }

    /// Does it, and undoes it when Patroni has done its part.
    async fn strike(&self) {
        let cluster = self.cluster;
        let old = cluster.primary().await;
        let primary = &cluster.members[old];
        match self.fault {
            Switchover => cluster.switch_over().await,
            Crash => primary.crash(),
            Loss => {
                primary.kill9();
                cluster.next_primary(old).await;
                primary.start();
            }
            Freeze => {
                primary.freeze();
                cluster.next_primary(old).await;
                primary.thaw();
            }
            Hang => {
                primary.signal_patroni(Signal::STOP);
                cluster.next_primary(old).await;
                sleep(CUT).await;
                primary.signal_patroni(Signal::CONT);
            }
            CutFromEtcd => {
                primary.to_etcd.weather(Weather::Dead);
                cluster.next_primary(old).await;
                primary.to_etcd.weather(Weather::Clear);
            }
            CutFromStandbys => {
                primary.from_members.weather(Weather::Dead);
                sleep(CUT).await;
                primary.from_members.weather(Weather::Clear);
            }
            CutFromProxy => {
                let ways = &self.ways[usize::try_from(self.plan.seed % 2).expect("0 or 1")];
                for way in ways {
                    way.weather(Weather::Dead);
                }
                sleep(CUT).await;
                for way in ways {
                    way.weather(Weather::Clear);
                }
            }
            LossWhileBehind if self.mode == Off => {
                primary.from_members.refuse().await;
                primary.from_members.cut(Cut::Reset);
                sleep(BEFORE).await;
                primary.kill9();
                cluster.next_primary(old).await;
                primary.from_members.listen();
                primary.start();
            }
            LossWhileBehind => {
                let behind = cluster.spare_standby().await;
                cluster.members[behind].signal_receiver(Signal::STOP);
                sleep(BEFORE).await;
                primary.kill9();
                let new = cluster.next_primary(old).await;
                if new == behind {
                    let resource = "a standby that was behind was promoted".to_owned();
                    self.log.add(Event::Recovered {
                        resource,
                        yes: false,
                    });
                }
                cluster.members[behind].signal_receiver(Signal::CONT);
                primary.start();
            }
        }
    }

    /// The rules that were broken, in words.
    async fn judge(&mut self) -> Option<String> {
        let log = self.log.entries();
        let mut found = check(&log);
        let mut missed = [0.0; 2];
        for (missed, proxy) in missed.iter_mut().zip(&self.proxies) {
            *missed = proxy.sum("fencepost_mark_regressions_total", &[]).await;
        }
        let mut said: Vec<String> = Vec::new();
        if self.mode == Off && matches!(self.fault, Loss | LossWhileBehind) {
            // An asynchronous failover may lose marks. A look that began before it is noticed sees
            // that, and what a lost mark would have stopped may pass.
            let (lost, other) = found
                .into_iter()
                .partition(|violation| [Rule::C1, Rule::C2, Rule::C3].contains(&violation.rule));
            found = other;
            let lost: Vec<_> = lost;
            println!(
                "patroni: {} signs of lost marks, {missed:?} noticed by the proxies",
                lost.len()
            );
            if self.fault == LossWhileBehind && missed.iter().all(|missed| *missed == 0.0) {
                said.push("no proxy noticed that marks were lost".to_owned());
            }
            said.extend(below(&log));
        } else if missed[0] > 0.0 || missed[1] > 0.0 && !self.fault.leaves_an_old_primary() {
            said.push(format!(
                "the proxies miss {missed:?} marks, and none can be lost"
            ));
        }
        for proxy in &mut self.proxies {
            if proxy.process().ended().is_some() {
                said.push("a proxy ended".to_owned());
            }
        }
        said.extend(found.iter().take(8).map(ToString::to_string));
        (!said.is_empty()).then(|| {
            let file = self.write_down(&log, &said);
            format!("\n  {}\n  the log: {file}", said.join("\n  "))
        })
    }

    fn write_down(&mut self, log: &[LogEntry], violations: &[String]) -> String {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fire");
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        let file = dir.join(format!("patroni-{}.log", self.plan.seed));
        let lines = self
            .proxies
            .each_mut()
            .map(|proxy| proxy.process().lines().join("\n"));
        let text = format!(
            "{}\n{}\n{}",
            violations.join("\n"),
            log::text(log),
            lines.join("\n---\n")
        );
        std::fs::write(&file, text).expect("the target directory is writable");
        file.display().to_string()
    }
}

/// The resources whose last mark is below a token that has arrived.
fn below(log: &[LogEntry]) -> Vec<String> {
    let last = log.iter().rev().find_map(|entry| match &entry.event {
        Event::Marks { marks, .. } => Some(marks.clone()),
        _ => None,
    });
    let last = last.unwrap_or_default();
    let mut arrived: BTreeMap<&str, u64> = BTreeMap::new();
    for (resource, arrivals) in History::of(log).by_resource() {
        let newest = arrivals.iter().filter_map(|arrival| arrival.token).max();
        arrived.insert(resource, newest.unwrap_or_default());
    }
    let lower = arrived
        .into_iter()
        .filter(|(resource, token)| last.get(*resource) < Some(token));
    lower
        .map(|(resource, token)| format!("{resource}: {token} has arrived, and the mark is below"))
        .collect()
}
