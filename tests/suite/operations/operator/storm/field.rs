//! Where the storm rages: the holders and their clients, the operator, and what is checked in the
//! end.
//!
//! Each override begins a *reign* with a range of tokens of its own, far below the one before, so
//! that a token tells the reign it is of. Before an override the operator has the new holders
//! begin, who are refused for a while, and lets the old holders' last requests end: what comes of
//! an old reign after that would be fencepost's doing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::json;

use crate::support::proxy::{ADMIN_TOKEN, escape};
use crate::support::{Answer, Upstream, eventually, get, or_return, post, put};

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
pub struct Holders {
    pub reign: u64,
    pub newest: u64,
    /// How many requests of each reign have no answer yet.
    pub unanswered: HashMap<u64, usize>,
}

pub struct Storm {
    pub upstream: Upstream,
    pub holders: [Mutex<Holders>; RESOURCES],
    /// Where the proxies' data and admin ports are; `None` while one is down.
    pub ports: [Mutex<Option<(SocketAddr, SocketAddr)>>; 2],
    pub over: AtomicBool,
    pub statuses: [AtomicUsize; 600],
    pub overrides: AtomicUsize,
    pub resolved: AtomicUsize,
    pub advanced: AtomicUsize,
    /// The events and their times, to be read after a violation.
    journal: Mutex<Vec<(Instant, Option<usize>, String)>>,
}

impl Storm {
    /// `ports`: of the data and the admin listener of each proxy.
    pub fn new(upstream: Upstream, ports: [(SocketAddr, SocketAddr); 2]) -> Self {
        let holders = || Holders {
            newest: base(0) + 1,
            ..Holders::default()
        };
        Self {
            upstream,
            holders: std::array::from_fn(|_| Mutex::new(holders())),
            ports: ports.map(|ports| Mutex::new(Some(ports))),
            over: AtomicBool::new(false),
            statuses: [const { AtomicUsize::new(0) }; 600],
            overrides: AtomicUsize::new(0),
            resolved: AtomicUsize::new(0),
            advanced: AtomicUsize::new(0),
            journal: Mutex::new(Vec::new()),
        }
    }

    /// `resource`: what it is about, if not about all.
    pub fn note(&self, resource: Option<usize>, what: String) {
        self.journal
            .lock()
            .expect("nothing panics under this lock")
            .push((Instant::now(), resource, what));
    }

    /// A proxy has gone, or is back.
    pub fn moved(&self, proxy: usize, to: Option<(SocketAddr, SocketAddr)>) {
        *self.ports[proxy]
            .lock()
            .expect("nothing panics under this lock") = to;
    }

    pub fn answers(&self, status: usize) -> usize {
        self.statuses[status].load(Ordering::Relaxed)
    }

    pub fn holders(&self, resource: usize) -> MutexGuard<'_, Holders> {
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
        let request = put(&format!("/orders/{resource}"))
            .token(token)
            .body("write");
        let began = Instant::now();
        let answer = request.attempt(data).await;
        if let Ok(answer) = &answer {
            self.statuses[usize::from(answer.status())].fetch_add(1, Ordering::Relaxed);
        }
        let answer = answer.map(|answer| answer.status());
        self.note(
            Some(resource),
            format!(
                "{:?} by {data} answered {answer:?} after {:?}",
                rank(token),
                began.elapsed()
            ),
        );
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
            tokio::time::sleep(Duration::from_millis(
                u64::try_from(roll(&random, 150)).unwrap_or(0),
            ))
            .await;
        }
    }

    /// Raises a mark to a token that nobody holds yet; says whether that was heard to be done.
    async fn advance(&self, resource: usize, random: &Mutex<StdRng>) -> bool {
        let token = {
            let mut holders = self.holders(resource);
            holders.newest += 1;
            holders.newest
        };
        let done = self.act(resource, "advance", token, random).await == Some(200);
        self.advanced
            .fetch_add(usize::from(done), Ordering::Relaxed);
        done
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
        self.note(
            Some(resource),
            format!("{verb} to {:?} begins at {to}", rank(token)),
        );
        let status = command(to, resource, verb, &words.to_string())
            .await
            .map(|answer| answer.status());
        self.note(
            Some(resource),
            format!("{verb} to {:?} at {to}: {status:?}", rank(token)),
        );
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
        // Again and again: whom it was asked of may have died before it did, or may wait for one
        // who has.
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
            if matches!(done, None | Some(503)) {
                // In doubt: what it has told the server is done before the mark is looked at again.
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
            .host(Some("localhost"))
            .attempt(to)
            .await
            .ok()?;
        answer.json()["mark"].as_str()?.parse().ok()
    }

    /// Resolves an outcome that is known: the upstream has ended all that has arrived of that
    /// token.
    async fn resolve(&self, resource: usize, random: &Mutex<StdRng>) {
        let to = self.admin(random).await;
        let target = format!("/v1/marks/{}", escape(&key(resource)));
        let Ok(answer) = get(&target).host(Some("localhost")).attempt(to).await else {
            return;
        };
        let view = answer.json();
        let unknown = or_return!(view["unknown"].as_array().and_then(|all| all.first()));
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
        self.note(
            Some(resource),
            format!("resolve of {unknown} begins at {to}"),
        );
        let done = command(to, resource, "resolve", &words.to_string()).await;
        self.note(
            Some(resource),
            format!(
                "resolve of {:?} at {to}: {:?}",
                rank(token),
                done.as_ref().map(Answer::status)
            ),
        );
        let done = done.is_some_and(|answer| answer.status() == 200);
        self.resolved
            .fetch_add(usize::from(done), Ordering::Relaxed);
    }

    /// The events of a resource within ten seconds before a moment and one after it, a line
    /// each.
    fn told(&self, resource: usize, moment: Instant) -> String {
        let journal = self.journal.lock().expect("nothing panics under this lock");
        let about = |(when, of, what): &(Instant, Option<usize>, String)| {
            (of.is_none() || *of == Some(resource)).then(|| (*when, what.clone()))
        };
        let mut story: Vec<_> = journal.iter().filter_map(about).collect();
        for arrival in self.upstream.arrivals() {
            if arrival.resource() == Some(&key(resource)) {
                let rank = rank(arrival.token().expect("all have one"));
                let spent = arrival.ended.map(|ended| ended - arrival.began);
                let what = format!("{rank:?} at the upstream for {spent:?}");
                story.push((arrival.began, what));
            }
        }
        story.sort_by_key(|(when, _)| *when);
        let begin = story[0].0;
        story.retain(|(when, _)| {
            *when + Duration::from_secs(10) > moment && *when < moment + Duration::from_secs(1)
        });
        let line = |(when, what): (Instant, String)| {
            let sign = if when == moment { "->" } else { "  " };
            format!("{sign} {:9.4} s {what}\n", (when - begin).as_secs_f64())
        };
        story.into_iter().map(line).collect()
    }

    /// Across reigns as within one: nothing arrives behind what is newer, and nothing while what is
    /// older is in progress.
    pub fn assert_order(&self) {
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
                    "{resource}: {rank:?} after {newest:?} (reign, token)\n{}",
                    self.told(resource, arrival.began)
                );
                if rank > newest {
                    older_ended = older_ended.max(newest_ended.take());
                    newest = rank;
                }
                if let Some(ended) = older_ended {
                    assert!(
                        ended <= arrival.began,
                        "{resource}: {rank:?} began before an older one had ended\n{}",
                        self.told(resource, arrival.began)
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
