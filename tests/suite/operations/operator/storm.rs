//! Everything at once, from a seed: clients at two proxies, an operator who advances, resolves and
//! overrides, and one of the proxies killed, frozen, cut off from Postgres, or held in the middle
//! of a statement.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;

use self::field::{RESOURCES, Storm, base, key};
use crate::support::pair::{around, through};
use crate::support::postgres::Cluster;
use crate::support::relay::{Relay, Statement};
use crate::support::upstream::Arrival;
use crate::support::{Config, Proxy, Step, Store, Upstream, or_return, put};

mod field;

const CLIENTS: u64 = 6;

/// The upstream works for at most 150 ms after its caller has given up on it.
const RUGGED: &str = "{ upstream: { timeout: 150ms, undelivered: 500ms }, store: { lease: 2s, timeout: 2s }, \
    barrier: { wait: 2s, grace: 500ms, settle: 1s } }";

/// The proxy that it all befalls, behind a relay.
struct Victim {
    proxy: Proxy,
    relay: Relay,
    config: Config,
}

fn ports(proxy: &Proxy) -> (SocketAddr, SocketAddr) {
    (proxy.data(), proxy.admin())
}

impl Victim {
    /// One fault, at random.
    async fn suffer(&mut self, field: &Storm, random: &mut StdRng) {
        use Statement::{Advance, Cede, Look, Notify, Renew};
        let statements = [Advance, Advance, Look, Cede, Notify, Renew];
        let statement = statements[random.random_range(0..statements.len())];
        let dice = random.random_range(0..10);
        let mut wait =
            |most: u64| tokio::time::sleep(Duration::from_millis(random.random_range(0..most)));
        let at = self.proxy.data();
        let note = |what: &str| field.note(&format!("{what} at {at}"));
        match dice {
            0..3 => {
                note("killed");
                field.moved(1, None);
                self.proxy.kill9();
                wait(1000).await;
                self.proxy = Proxy::start(&self.config).await;
                field.moved(1, Some(ports(&self.proxy)));
            }
            // For less than its lease: a longer stop may fall between the last look at the lease
            // and a write, which nobody can close from here.
            3..5 => {
                note("frozen");
                self.proxy.pause().await;
                wait(1200).await;
                self.proxy.resume();
            }
            5..7 => {
                note("cut off");
                self.relay.refuse(true);
                self.relay.cut_all();
                wait(6000).await;
                self.relay.refuse(false);
            }
            7..9 => {
                let point = around(statement)[dice - 7];
                note(&format!("held {point:?}"));
                let _trap = self.relay.hold(point);
                wait(5000).await;
            }
            _ => {
                note("deaf");
                self.relay.lose_notifications(true);
                wait(2000).await;
                self.relay.lose_notifications(false);
            }
        }
        note("the fault is over");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_a_way_out_of_a_storm() {
    let store = or_return!(Store::postgres().await);
    // One that has failed can be played again.
    let seed = std::env::var("FENCEPOST_SEED").map(|seed| seed.parse().expect("a number"));
    let seed: u64 = seed.unwrap_or_else(|_| rand::random());
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
    };
    // Or the holders of the first new reign would find no mark that refuses them.
    for resource in 0..RESOURCES {
        let request = put(&format!("/orders/{resource}")).token(base(0) + 1);
        witness.until_forwarded(request.clone()).await;
    }
    moody(&upstream, seed);
    let both = [ports(&witness), ports(&victim.proxy)];
    let field = Arc::new(Storm::new(upstream, both));
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let (field, random) = (Arc::clone(&field), random(1 + client));
        let at = usize::from(client % 2 == 1);
        tasks.spawn(async move { field.client(at, random).await });
    }
    let (operator, rolls) = (Arc::clone(&field), random(99));
    tasks.spawn(async move { operator.operator(rolls).await });

    let mut random = random(100);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(12) {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1500))).await;
        victim.suffer(&field, &mut random).await;
    }
    field.over.store(true, Ordering::Relaxed);
    tasks.join_all().await;

    // Once more each; and both proxies take what is lower now.
    let random = Mutex::new(random);
    for resource in 0..RESOURCES {
        field.overthrow(resource, &random).await;
        let (reign, newest) = field.now(resource);
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
    // An operator was at work, and there was traffic.
    for (what, least) in [("override", 3), ("advance", 3), ("200", 100), ("412", 10)] {
        let counts = field.counts();
        assert!(counts.get(what) > Some(&least), "{what}: {counts:?}");
    }
}
