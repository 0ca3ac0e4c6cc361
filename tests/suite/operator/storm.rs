//! Everything at once, from a seed: clients at two proxies, an operator who advances, resolves and overrides, and
//! kill -9 of one proxy again and again.
//!
//! Each override begins a *reign* with a range of tokens of its own, far below the one before, so that a token
//! tells the reign it is of. Before an override the operator has the new holders begin, who are refused for
//! a while, and lets the old holders' last requests end: what comes of an old reign after that would be
//! fencepost's doing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::proxy::{ADMIN_TOKEN, escape};
use crate::support::{Answer, Config, Proxy, Step, Store, Upstream, eventually, get, post, put};

const RESOURCES: usize = 3;
const CLIENTS: u64 = 6;
/// The tokens of one reign.
const REIGN: u64 = 10_000;
/// More than there can be.
const REIGNS: u64 = 1000;

/// The upstream works for at most 150 ms after its caller has given up on it.
const RUGGED: &str = "{ upstream: { timeout: 150ms }, store: { lease: 2s }, \
    barrier: { wait: 2s, drain: 500ms, settle: 400ms } }";

/// The lowest token of a reign: its mark is set to this.
fn base(reign: u64) -> u64 {
    (REIGNS - reign) * REIGN
}

/// What orders tokens across reigns.
fn rank(token: u64) -> (u64, u64) {
    (REIGNS - token / REIGN, token % REIGN)
}

fn key(resource: usize) -> String {
    format!("order:{resource}")
}

/// What the lock service and its clients know of one resource.
#[derive(Default)]
struct Holders {
    reign: u64,
    newest: u64,
    /// How many requests of each reign have no answer yet.
    unanswered: HashMap<u64, usize>,
}

struct Field {
    upstream: Upstream,
    holders: [Mutex<Holders>; RESOURCES],
    /// Where the proxies' data and admin ports are; `None` while one is down.
    ports: [Mutex<Option<(SocketAddr, SocketAddr)>>; 2],
    over: AtomicBool,
    statuses: [AtomicUsize; 600],
    overrides: AtomicUsize,
    resolved: AtomicUsize,
    advanced: AtomicUsize,
}

impl Field {
    fn holders(&self, resource: usize) -> MutexGuard<'_, Holders> {
        self.holders[resource]
            .lock()
            .expect("nothing panics under this lock")
    }

    fn ports(&self, proxy: usize) -> Option<(SocketAddr, SocketAddr)> {
        *self.ports[proxy]
            .lock()
            .expect("nothing panics under this lock")
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// One client's life.
    async fn client(&self, proxy: usize, mut random: StdRng) {
        while !self.is_over() {
            let Some((data, _)) = self.ports(proxy) else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let resource = random.random_range(0..RESOURCES);
            let (reign, token) = self.draw(resource, &mut random);
            self.send(data, resource, reign, token).await;
        }
    }

    /// A token that somebody may hold: a new one, the newest, or one of before.
    fn draw(&self, resource: usize, random: &mut StdRng) -> (u64, u64) {
        let mut holders = self.holders(resource);
        let (reign, dice) = (holders.reign, random.random_range(0..30));
        holders.newest += u64::from(dice == 0);
        *holders.unanswered.entry(reign).or_default() += 1;
        let older = (1..3).contains(&dice) && holders.newest > base(reign) + 1;
        (reign, holders.newest - u64::from(older))
    }

    async fn send(&self, data: SocketAddr, resource: usize, reign: u64, token: u64) {
        let request = put(&format!("/orders/{resource}"))
            .token(token)
            .body("write");
        if let Ok(answer) = request.attempt(data).await {
            self.statuses[usize::from(answer.status())].fetch_add(1, Ordering::Relaxed);
        }
        *self.holders(resource).unanswered.entry(reign).or_default() -= 1;
    }

    /// A proxy that is up, at random.
    async fn admin(&self, random: &Mutex<StdRng>) -> SocketAddr {
        loop {
            if let Some((_, admin)) = self.ports(roll(random, 2)) {
                return admin;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn operator(&self, random: StdRng) {
        let random = Mutex::new(random);
        while !self.is_over() {
            let resource = roll(&random, RESOURCES);
            match roll(&random, 10) {
                0..2 => self.overthrow(resource, &random).await,
                2..5 => {
                    let token = {
                        let mut holders = self.holders(resource);
                        holders.newest += 1;
                        holders.newest
                    };
                    let done = self.act(resource, "advance", token, &random).await;
                    self.advanced
                        .fetch_add(usize::from(done == Some(200)), Ordering::Relaxed);
                }
                _ => self.resolve(resource, &random).await,
            }
            tokio::time::sleep(Duration::from_millis(
                u64::try_from(roll(&random, 150)).unwrap_or(0),
            ))
            .await;
        }
    }

    async fn act(
        &self,
        resource: usize,
        verb: &str,
        token: u64,
        random: &Mutex<StdRng>,
    ) -> Option<u16> {
        let words = json!({ "token": token.to_string(), "reason": "storm" });
        let to = self.admin(random).await;
        Some(
            command(to, resource, verb, &words.to_string())
                .await?
                .status(),
        )
    }

    /// Begins a new reign: new holders at once, the mark when what was has ended.
    async fn overthrow(&self, resource: usize, random: &Mutex<StdRng>) {
        let (reign, shut) = {
            let mut holders = self.holders(resource);
            let shut = holders.newest + 1;
            holders.reign += 1;
            holders.newest = base(holders.reign) + 1;
            (holders.reign, shut)
        };
        eventually(
            "the last of the old holders' requests to be answered",
            || async {
                (self
                    .holders(resource)
                    .unanswered
                    .get(&(reign - 1))
                    .copied()
                    .unwrap_or(0)
                    == 0)
                    .then_some(())
            },
        )
        .await;
        // Again and again: whom it was asked of may have died before it did, or may wait for one who has.
        eventually("the advance", || async {
            let done = self.act(resource, "advance", shut, random).await;
            (done == Some(200)).then_some(())
        })
        .await;
        eventually("the override", || async {
            // It may have been done by one that could not say so any more.
            if self.mark(resource, random).await? < base(reign - 1) {
                return Some(());
            }
            let done = self.act(resource, "override", base(reign), random).await;
            if done.is_none() {
                // Killed over it: what it has told the server is done before the mark is looked at again.
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            (done == Some(200)).then(|| {
                self.overrides.fetch_add(1, Ordering::Relaxed);
            })
        })
        .await;
    }

    async fn mark(&self, resource: usize, random: &Mutex<StdRng>) -> Option<u64> {
        let to = self.admin(random).await;
        let answer = get(&format!("/v1/marks/{}", escape(&key(resource))))
            .attempt(to)
            .await
            .ok()?;
        answer.json()["mark"].as_str()?.parse().ok()
    }

    /// Resolves an outcome that is known: the upstream has ended all that has arrived of that token.
    async fn resolve(&self, resource: usize, random: &Mutex<StdRng>) {
        let to = self.admin(random).await;
        let target = format!("/v1/marks/{}", escape(&key(resource)));
        let Ok(answer) = get(&target).attempt(to).await else {
            return;
        };
        let view = answer.json();
        let Some(unknown) = view["unknown"].as_array().and_then(|all| all.first()) else {
            return;
        };
        let token: u64 = unknown["token"]
            .as_str()
            .and_then(|token| token.parse().ok())
            .expect("a token");
        let seen = self.upstream.count();
        let of_it = |arrival: &crate::support::upstream::Arrival| {
            arrival.resource() == Some(&key(resource)) && arrival.token() == Some(token)
        };
        self.upstream
            .until("the outcome to be known", |all| {
                all.iter()
                    .take(seen)
                    .filter(|one| of_it(one))
                    .all(|one| one.ended.is_some())
            })
            .await;
        let words = json!({ "id": unknown["id"], "reason": "storm" });
        let done = command(to, resource, "resolve", &words.to_string()).await;
        let done = done.is_some_and(|answer| answer.status() == 200);
        self.resolved
            .fetch_add(usize::from(done), Ordering::Relaxed);
    }

    /// Across reigns as within one: nothing arrives behind what is newer, and nothing while what is older is at work.
    fn assert_order(&self) {
        for resource in 0..RESOURCES {
            let of_it = |arrival: &crate::support::upstream::Arrival| {
                arrival.resource() == Some(&key(resource))
            };
            let arrivals: Vec<_> = self.upstream.arrivals().into_iter().filter(of_it).collect();
            let mut newest = (0, 0);
            let (mut older_ended, mut newest_ended): (Option<Instant>, Option<Instant>) =
                (None, None);
            for arrival in &arrivals {
                let rank = rank(arrival.token().expect("all have one"));
                assert!(
                    rank >= newest,
                    "{resource}: {rank:?} after {newest:?} (reign, token)"
                );
                if rank > newest {
                    older_ended = older_ended.max(newest_ended.take());
                    newest = rank;
                }
                if let Some(ended) = older_ended {
                    assert!(
                        ended <= arrival.began,
                        "{resource}: {rank:?} began before an older one had ended"
                    );
                }
                newest_ended = newest_ended.max(Some(arrival.ended.expect("all have ended")));
            }
        }
    }
}

/// Behind a lock only so that a probe that is called again and again can have it.
fn roll(random: &Mutex<StdRng>, sides: usize) -> usize {
    random
        .lock()
        .expect("nothing panics under this lock")
        .random_range(0..sides)
}

async fn command(to: SocketAddr, resource: usize, verb: &str, words: &str) -> Option<Answer> {
    let request = post(&format!("/v1/marks/{}/{verb}", escape(&key(resource))))
        .header("Authorization", format!("Bearer {ADMIN_TOKEN}"))
        .header("Content-Type", "application/json")
        .body(words);
    request.attempt(to).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_a_way_out_of_a_storm() {
    let Some(store) = Store::postgres("an_operator_finds_a_way_out_of_a_storm").await else {
        return;
    };
    let set = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seed = set("FENCEPOST_SEED").unwrap_or_else(rand::random);
    let time = Duration::from_secs(set("FENCEPOST_STORM_SECONDS").unwrap_or(12));
    eprintln!("seed {seed}");
    let upstream = Upstream::start().await;
    let mut moods = StdRng::seed_from_u64(seed);
    upstream.otherwise(move |_| match moods.random_range(0..100) {
        0..70 => vec![Step::ok()],
        70..95 => vec![
            Step::Work(Duration::from_millis(moods.random_range(1..20))),
            Step::ok(),
        ],
        95..98 => vec![
            Step::Work(Duration::from_millis(moods.random_range(150..280))),
            Step::ok(),
        ],
        _ => vec![Step::Reset],
    });
    let config = Config::new(&upstream, &store).with(RUGGED);
    let mut proxies = [Proxy::start(&config).await, Proxy::start(&config).await];
    let ports = |proxy: &Proxy| Mutex::new(Some((proxy.data(), proxy.admin())));
    let field = Arc::new(Field {
        upstream,
        holders: std::array::from_fn(|_| {
            Mutex::new(Holders {
                newest: base(0) + 1,
                ..Holders::default()
            })
        }),
        ports: [ports(&proxies[0]), ports(&proxies[1])],
        over: AtomicBool::new(false),
        statuses: [const { AtomicUsize::new(0) }; 600],
        overrides: AtomicUsize::new(0),
        resolved: AtomicUsize::new(0),
        advanced: AtomicUsize::new(0),
    });
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for client in 0..CLIENTS {
        let (field, random) = (
            Arc::clone(&field),
            StdRng::seed_from_u64(seed ^ (client + 1) << 32),
        );
        tasks.push(tokio::spawn(async move {
            field.client(usize::from(client % 2 == 1), random).await
        }));
    }
    let (other, random) = (Arc::clone(&field), StdRng::seed_from_u64(seed ^ 99 << 32));
    tasks.push(tokio::spawn(async move { other.operator(random).await }));

    let mut random = StdRng::seed_from_u64(seed ^ 100 << 32);
    let started = Instant::now();
    let mut kills = 0;
    while started.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(random.random_range(500..2500))).await;
        *field.ports[1]
            .lock()
            .expect("nothing panics under this lock") = None;
        proxies[1].kill9();
        kills += 1;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1000))).await;
        proxies[1] = Proxy::start(&config).await;
        *field.ports[1]
            .lock()
            .expect("nothing panics under this lock") =
            Some((proxies[1].data(), proxies[1].admin()));
    }
    field.over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let random = Mutex::new(random);
    // Once more each, from a proxy that lives on and one that has just begun; and both take what is lower now.
    for resource in 0..RESOURCES {
        field.overthrow(resource, &random).await;
        let newest = field.holders(resource).newest;
        for proxy in &proxies {
            eventually("the lower token to be taken", || async {
                let answer = proxy
                    .send(put(&format!("/orders/{resource}")).token(newest))
                    .await;
                (answer.status() == 200).then_some(())
            })
            .await;
        }
        let view = proxies[0]
            .mark(&key(resource))
            .await
            .expect("it has a mark");
        assert_eq!(view["mark"], newest.to_string(), "{view}");
        let audit = view["audit"].as_array().expect("a list");
        let last = audit
            .iter()
            .find(|row| row["action"] == "override")
            .expect("it is on record");
        assert_eq!(
            last["after"],
            base(field.holders(resource).reign).to_string(),
            "{view}"
        );
    }
    for proxy in &proxies {
        let regressions = proxy
            .metrics()
            .await
            .sum("fencepost_mark_regressions_total", &[]);
        assert!(regressions < 0.5, "no override was taken for a loss");
    }
    field
        .upstream
        .until("all ended", |all| all.iter().all(|one| one.ended.is_some()))
        .await;
    field.assert_order();
    let status = |status: usize| field.statuses[status].load(Ordering::Relaxed);
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (overrides, resolved, advanced) = (
        of(&field.overrides),
        of(&field.resolved),
        of(&field.advanced),
    );
    eprintln!(
        "{kills} kills, {overrides} overrides, {resolved} resolved, {advanced} advanced, {} forwarded, {} stale, {} 503, {} unknown",
        status(200),
        status(412),
        status(503),
        status(502) + status(504)
    );
    assert!(
        kills > 1 && overrides > RESOURCES && advanced > 0,
        "a storm it was"
    );
    assert!(
        status(200) > 100 && status(412) > 20 && status(502) + status(504) > 0,
        "traffic there was"
    );
}
