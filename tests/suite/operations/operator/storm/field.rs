//! Where the storm rages: the holders and their clients, the operator, and what is checked in the
//! end.
//!
//! Each override begins a *reign* with a range of tokens of its own, far below the one before, so
//! that a token tells the reign it is of. Before an override the operator has the new holders
//! begin, who are refused for a while, and lets the old holders' last requests end: what comes of
//! an old reign after that would be fencepost's doing.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::support::proxy::{ADMIN_TOKEN, escape};
use crate::support::upstream::Arrival;
use crate::support::{Upstream, eventually, get, or_return, post, put};

pub const RESOURCES: usize = 3;
/// The tokens of one reign.
const REIGN: u64 = 10_000;
/// More than there can be.
const REIGNS: u64 = 1000;

/// The lowest token of a reign: its mark is set to this.
pub fn base(reign: u64) -> u64 {
    (REIGNS - reign) * REIGN
}

/// The order of tokens across reigns.
fn rank(token: u64) -> (u64, u64) {
    (REIGNS - token / REIGN, token % REIGN)
}

pub fn key(resource: usize) -> String {
    format!("order:{resource}")
}

/// The knowledge of the lock service and its clients about one resource.
#[derive(Default)]
struct Holders {
    reign: u64,
    newest: u64,
    /// How many requests of each reign have no answer yet.
    unanswered: HashMap<u64, usize>,
}

/// The data and the admin port of a proxy.
pub type Ports = (SocketAddr, SocketAddr);

pub struct Storm {
    pub upstream: Upstream,
    holders: [Mutex<Holders>; RESOURCES],
    /// `None` while the proxy is down.
    ports: [Mutex<Option<Ports>>; 2],
    pub over: AtomicBool,
    counts: Mutex<BTreeMap<String, usize>>,
    began: Instant,
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("nothing panics under this lock")
}

impl Storm {
    pub fn new(upstream: Upstream, ports: [Ports; 2]) -> Self {
        let holders = || Holders {
            newest: base(0) + 1,
            ..Holders::default()
        };
        Self {
            upstream,
            holders: std::array::from_fn(|_| Mutex::new(holders())),
            ports: ports.map(|ports| Mutex::new(Some(ports))),
            over: AtomicBool::new(false),
            counts: Mutex::default(),
            began: Instant::now(),
        }
    }

    /// Writes an event to the test's output, which is shown if it fails.
    pub fn note(&self, what: &str) {
        eprintln!("{:9.4} s {what}", self.began.elapsed().as_secs_f64());
    }

    /// A proxy has gone, or is back.
    pub fn moved(&self, proxy: usize, to: Option<Ports>) {
        *locked(&self.ports[proxy]) = to;
    }

    fn count(&self, what: &str) {
        *self.counts().entry(what.to_owned()).or_default() += 1;
    }

    /// How often each status was answered, and each act of the operator was done.
    pub fn counts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        locked(&self.counts)
    }

    /// The reign of a resource, and its newest token.
    pub fn now(&self, resource: usize) -> (u64, u64) {
        let holders = self.holders(resource);
        (holders.reign, holders.newest)
    }

    fn holders(&self, resource: usize) -> MutexGuard<'_, Holders> {
        locked(&self.holders[resource])
    }

    fn ports(&self, proxy: usize) -> Option<Ports> {
        *locked(&self.ports[proxy])
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// One client's life.
    pub async fn client(&self, proxy: usize, mut random: StdRng) {
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
        let request = put(&format!("/orders/{resource}")).token(token);
        let began = Instant::now();
        let answer = request.body("write").attempt(data).await;
        let status = match &answer {
            Ok(answer) => answer.status().to_string(),
            Err(error) => error.kind().to_string(),
        };
        self.count(&status);
        let (rank, took) = (rank(token), began.elapsed());
        let what = format!("{resource}: {rank:?} by {data} answered {status} after {took:?}");
        self.note(&what);
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

    pub async fn operator(&self, random: StdRng) {
        let random = Mutex::new(random);
        // One of each, whatever is rolled later and however much of it there is time for.
        eventually("an advance", || async {
            let done = self.advance(roll(&random, RESOURCES), &random).await;
            done.then_some(())
        })
        .await;
        self.overthrow(roll(&random, RESOURCES), &random).await;
        while !self.is_over() {
            let resource = roll(&random, RESOURCES);
            match roll(&random, 10) {
                0..2 => self.overthrow(resource, &random).await,
                2..5 => {
                    self.advance(resource, &random).await;
                }
                _ => self.resolve(resource, &random).await,
            }
            let pause = Duration::from_millis(1) * u32::try_from(roll(&random, 150)).unwrap_or(0);
            tokio::time::sleep(pause).await;
        }
    }

    /// Raises a mark to a token that nobody holds yet; says whether that was heard to be done.
    async fn advance(&self, resource: usize, random: &Mutex<StdRng>) -> bool {
        let token = {
            let mut holders = self.holders(resource);
            holders.newest += 1;
            holders.newest
        };
        self.sets(resource, "advance", token, random).await == Some(200)
    }

    /// Sets the mark at a proxy that is up; the status, if an answer came.
    async fn sets(
        &self,
        resource: usize,
        verb: &str,
        token: u64,
        random: &Mutex<StdRng>,
    ) -> Option<u16> {
        let words = json!({ "token": token.to_string(), "reason": "storm" });
        let to = self.admin(random).await;
        self.act(to, resource, verb, &words).await
    }

    async fn act(&self, to: SocketAddr, resource: usize, verb: &str, words: &Value) -> Option<u16> {
        self.note(&format!("{resource}: {verb} begins at {to}: {words}"));
        let request = post(&format!("/v1/marks/{}/{verb}", escape(&key(resource))))
            .header("Authorization", format!("Bearer {ADMIN_TOKEN}"))
            .header("Content-Type", "application/json")
            .body(words.to_string());
        let status = request.attempt(to).await.ok().map(|answer| answer.status());
        self.note(&format!("{resource}: {verb} at {to}: {status:?}"));
        if status == Some(200) {
            self.count(verb);
        }
        status
    }

    /// Begins a new reign: new holders at once, the mark when what was has ended.
    pub async fn overthrow(&self, resource: usize, random: &Mutex<StdRng>) {
        let (reign, shut) = {
            let mut holders = self.holders(resource);
            let shut = holders.newest + 1;
            holders.reign += 1;
            holders.newest = base(holders.reign) + 1;
            (holders.reign, shut)
        };
        let last = "the last of the old holders' requests to be answered";
        eventually(last, || async {
            let holders = self.holders(resource);
            let left = holders.unanswered.get(&(reign - 1));
            left.is_none_or(|left| *left == 0).then_some(())
        })
        .await;
        // Again and again: whom it was asked of may have died before it did, or may wait for one
        // who has.
        eventually("the advance", || async {
            let done = self.sets(resource, "advance", shut, random).await;
            (done == Some(200)).then_some(())
        })
        .await;
        eventually("the override", || async {
            // It may have been done by one that could not say so any more.
            let (_, view) = self.view(resource, random).await?;
            let mark: u64 = view["mark"].as_str()?.parse().ok()?;
            if mark < base(reign - 1) {
                return Some(());
            }
            let done = self.sets(resource, "override", base(reign), random).await;
            if matches!(done, None | Some(503)) {
                // In doubt: what it has told the server is done before the mark is looked at again.
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            (done == Some(200)).then_some(())
        })
        .await;
    }

    /// A proxy that is up, and its view of a mark.
    async fn view(&self, resource: usize, random: &Mutex<StdRng>) -> Option<(SocketAddr, Value)> {
        let to = self.admin(random).await;
        let view = get(&format!("/v1/marks/{}", escape(&key(resource)))).host(Some("localhost"));
        Some((to, view.attempt(to).await.ok()?.json()))
    }

    /// Resolves an outcome that is known: the upstream has ended all that has arrived of that
    /// token.
    async fn resolve(&self, resource: usize, random: &Mutex<StdRng>) {
        let (to, view) = or_return!(self.view(resource, random).await);
        let unknown = or_return!(view["unknown"].as_array().and_then(|all| all.first()));
        let token = unknown["token"].as_str().expect("a token");
        let token: u64 = token.parse().expect("a number");
        let seen = self.upstream.count();
        let of_it = |arrival: &Arrival| {
            arrival.resource() == Some(&key(resource)) && arrival.token() == Some(token)
        };
        self.upstream
            .until("the outcome to be known", |all| {
                let mut before = all.iter().take(seen).filter(|one| of_it(one));
                before.all(|one| one.ended.is_some())
            })
            .await;
        let words = json!({ "id": unknown["id"], "reason": "storm" });
        self.act(to, resource, "resolve", &words).await;
    }

    /// Across reigns as within one: nothing arrives behind what is newer, and nothing while what is
    /// older is in progress. The arrivals are in the output too.
    pub fn assert_order(&self) {
        for resource in 0..RESOURCES {
            let mut newest = (0, 0);
            let (mut older_ended, mut newest_ended) = (None::<Instant>, None);
            for arrival in self.upstream.arrivals() {
                if arrival.resource() != Some(&key(resource)) {
                    continue;
                }
                let rank = rank(arrival.token().expect("all have one"));
                let (began, ended) = (arrival.began, arrival.ended.expect("all have ended"));
                let at = [began, ended].map(|at| at.saturating_duration_since(self.began));
                eprintln!("{resource}: {rank:?} at the upstream: {at:?}");
                assert!(rank >= newest, "{resource}: {rank:?} after {newest:?}");
                if rank > newest {
                    older_ended = older_ended.max(newest_ended.take());
                    newest = rank;
                }
                let alone = older_ended.is_none_or(|ended| ended <= began);
                assert!(alone, "{resource}: {rank:?} began too early");
                newest_ended = newest_ended.max(Some(ended));
            }
        }
    }
}

/// Behind a lock only so that a probe that is called again and again can have it.
fn roll(random: &Mutex<StdRng>, sides: usize) -> usize {
    locked(random).random_range(0..sides)
}
