//! Everything at once, from a seed: clients at two proxies, an operator who advances, resolves and
//! overrides, and one of the proxies killed, frozen, cut off from Postgres, or held in the middle
//! of a statement.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use self::field::{RESOURCES, Storm, base, key};
use crate::support::pair::through;
use crate::support::postgres::Cluster;
use crate::support::relay::{Point, Relay, Statement};
use crate::support::upstream::Arrival;
use crate::support::{Config, Proxy, Step, Store, Upstream, or_return, put};

mod field;

const CLIENTS: u64 = 6;

/// The upstream works for at most 150 ms after its caller has given up on it.
const RUGGED: &str = "{ upstream: { timeout: 150ms, undelivered: 500ms }, store: { lease: 2s, timeout: 2s }, \
    barrier: { wait: 2s, grace: 500ms, settle: 1s } }";

/// The fault of the second proxy.
#[derive(Clone, Copy, Debug)]
enum StormFault {
    Kill,
    /// For less than its lease: a longer stop may fall between the last look at the lease and a
    /// write, which nobody can close from here.
    Freeze,
    CutOff,
    Hold(Point),
    LoseNews,
}

/// The proxy that it all befalls, behind a relay.
struct Victim {
    proxy: Proxy,
    relay: Relay,
    config: Config,
    faults: [usize; 5],
}

fn ports(proxy: &Proxy) -> (SocketAddr, SocketAddr) {
    (proxy.data(), proxy.admin())
}

impl Victim {
    fn draw(random: &mut StdRng) -> StormFault {
        let statements = [
            Statement::Advance,
            Statement::Advance,
            Statement::Look,
            Statement::Cede,
            Statement::Notify,
            Statement::Renew,
        ];
        let statement = statements[random.random_range(0..statements.len())];
        match random.random_range(0..10) {
            0..3 => StormFault::Kill,
            3..5 => StormFault::Freeze,
            5..7 => StormFault::CutOff,
            7 => StormFault::Hold(Point::Before(statement)),
            8 => StormFault::Hold(Point::After(statement)),
            _ => StormFault::LoseNews,
        }
    }

    async fn suffer(&mut self, fault: StormFault, field: &Storm, random: &mut StdRng) {
        let mut wait =
            |most: u64| tokio::time::sleep(Duration::from_millis(random.random_range(0..most)));
        field.note(&format!("{fault:?} at {}", self.proxy.data()));
        match fault {
            StormFault::Kill => {
                field.moved(1, None);
                self.proxy.kill9();
                wait(1000).await;
                self.proxy = Proxy::start(&self.config).await;
                field.moved(1, Some(ports(&self.proxy)));
                self.faults[0] += 1;
            }
            StormFault::Freeze => {
                self.proxy.pause().await;
                wait(1200).await;
                self.proxy.resume();
                self.faults[1] += 1;
            }
            StormFault::CutOff => {
                self.relay.refuse(true);
                self.relay.cut_all();
                wait(6000).await;
                self.relay.refuse(false);
                self.faults[2] += 1;
            }
            StormFault::Hold(point) => {
                let trap = self.relay.hold(point);
                wait(5000).await;
                self.faults[3] += usize::from(trap.has_sprung());
            }
            StormFault::LoseNews => {
                self.relay.lose_notifications(true);
                wait(2000).await;
                self.relay.lose_notifications(false);
                self.faults[4] += 1;
            }
        }
        field.note(&format!("{fault:?} is over"));
    }
}

fn moody(upstream: &Upstream, seed: u64) {
    let mut moods = StdRng::seed_from_u64(seed);
    let work = |ms| vec![Step::Work(Duration::from_millis(ms)), Step::ok()];
    upstream.otherwise(move |_| match moods.random_range(0..100) {
        0..70 => vec![Step::ok()],
        70..95 => work(moods.random_range(1..20)),
        95..98 => work(moods.random_range(150..280)),
        _ => vec![Step::Reset],
    });
}

/// Sets a number of its own by an environment variable.
fn set(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_a_way_out_of_a_storm() {
    let store = or_return!(Store::postgres().await);
    let seed = set("FENCEPOST_SEED").unwrap_or_else(rand::random);
    let time = Duration::from_secs(set("FENCEPOST_STORM_SECONDS").unwrap_or(12));
    eprintln!("seed {seed}");
    let random = |of: u64| StdRng::seed_from_u64(seed ^ (of << 32));
    let upstream = Upstream::start().await;
    let relay = Relay::start(Cluster::shared().port()).await;
    let config = Config::new(&upstream, &store).with(RUGGED);
    let witness = Proxy::start(&config).await;
    let config = through(&config, &store, &relay);
    let mut victim = Victim {
        proxy: Proxy::start(&config).await,
        relay,
        config,
        faults: [0; 5],
    };
    // Or the holders of the first new reign would find no mark that refuses them.
    for resource in 0..RESOURCES {
        let request = put(&format!("/orders/{resource}")).token(base(0) + 1);
        witness.until_forwarded(request.clone()).await;
    }
    moody(&upstream, seed);
    let field = Arc::new(Storm::new(
        upstream,
        [ports(&witness), ports(&victim.proxy)],
    ));
    let mut tasks = Vec::new();
    for client in 0..CLIENTS {
        let (field, random) = (Arc::clone(&field), random(1 + client));
        let at = usize::from(client % 2 == 1);
        tasks.push(tokio::spawn(async move { field.client(at, random).await }));
    }
    let (operator, rolls) = (Arc::clone(&field), random(99));
    tasks.push(tokio::spawn(async move { operator.operator(rolls).await }));

    let mut random = random(100);
    let started = Instant::now();
    while started.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1500))).await;
        let fault = Victim::draw(&mut random);
        victim.suffer(fault, &field, &mut random).await;
    }
    field.over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }

    // Once more each; and both proxies take what is lower now.
    let random = Mutex::new(random);
    for resource in 0..RESOURCES {
        field.overthrow(resource, &random).await;
        let (reign, newest) = {
            let holders = field.holders(resource);
            (holders.reign, holders.newest)
        };
        let request = put(&format!("/orders/{resource}")).token(newest);
        for proxy in [&witness, &victim.proxy] {
            proxy.until_forwarded(request.clone()).await;
        }
        let view = witness.mark(&key(resource)).await.expect("it has a mark");
        assert_eq!(view["mark"], newest.to_string(), "{view}");
        let audit = view["audit"].as_array().expect("a list");
        let last = audit.iter().find(|row| row["action"] == "override");
        let last = last.expect("it is on record");
        assert_eq!(last["after"], base(reign).to_string(), "{view}");
    }
    for proxy in [&witness, &victim.proxy] {
        let regressions = proxy.count("fencepost_mark_regressions_total", &[]).await;
        assert_eq!(regressions, 0, "no override was taken for a loss");
    }
    let all_ended = |all: &[Arrival]| all.iter().all(|one| one.ended.is_some());
    field.upstream.until("all ended", all_ended).await;
    field.assert_order();
    eprintln!(
        "{}; killed, frozen, cut off, held, deaf: {:?}",
        field.summary(),
        victim.faults
    );
    let acts = ["override", "advance"].map(|act| field.counted(act));
    assert!(
        acts[0] > RESOURCES && acts[1] > RESOURCES,
        "an operator was at work: {acts:?}"
    );
    let answers = ["200", "412"].map(|status| field.counted(status));
    assert!(
        answers[0] > 100 && answers[1] > 10,
        "there was traffic: {answers:?}"
    );
}
