//! [`Ready`]: the resources that are due for a statement.
//!
//! All main lanes take from one queue. While one of them has a large statement on its way, what is
//! due gathers for the next: one large statement costs the store less than two small ones. The lane
//! whose statement has ended sends it, without waking another thread. Before it does, requests that
//! are ready on its worker join. A statement that is small, or takes long, is not waited for.
//!
//! A batch that meets a row lock is rolled back whole. Its resources are suspects from then on:
//! each is asked for by itself, over a lane aside, until one of its statements has passed. So a
//! locked row delays the other resources of its batch once, and no others.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use crate::locked::locked;
use crate::routing::ResourceKey;
use crate::store::Lane;

/// The most resources that one statement names.
const TOGETHER: usize = 1024;
/// A statement about so few resources is not waited for: with little to do, an answer that comes
/// soon is worth more than a large batch.
const FEW: usize = 4;
/// A statement about so many resources is large enough: one more costs as much as it saves.
const ENOUGH: usize = 64;
/// How often what is ready on a worker runs before its lane sends.
const MOST_TURNS: usize = 2;
/// The longest wait for another lane's large statement.
const PATIENCE: Duration = Duration::from_millis(5);
/// The most suspects that are known at once.
const MAX_SUSPECTS: usize = 16 << 10;

pub(super) struct Ready {
    queues: Mutex<Queues>,
    /// One for each main lane.
    bells: Box<[Notify]>,
    aside_bell: Notify,
}

/// Short sections, never across an await.
struct Queues {
    /// For the main lanes.
    due: VecDeque<ResourceKey>,
    aside: VecDeque<ResourceKey>,
    suspects: HashSet<ResourceKey>,
    /// The statement that each lane has sent: its number of resources, and when.
    on_way: Box<[Option<(usize, Instant)>]>,
    /// The store takes one statement at a time.
    one_by_one: bool,
}

impl Queues {
    /// Whether a statement is on its way that is waited for, however long.
    fn held(&self) -> bool {
        let mut on_way = self.on_way.iter().flatten();
        on_way.any(|(resources, _)| self.one_by_one || *resources > FEW)
    }

    /// How long a lane with nothing on its way lets resources gather. `None`: until it is rung.
    fn gathers(&self, now: Instant) -> Option<Duration> {
        if self.due.is_empty() || self.one_by_one && self.held() {
            return None;
        }
        let large = self.on_way.iter().flatten();
        let large = large.filter(|(resources, _)| *resources > FEW);
        let left = large.map(|(_, since)| PATIENCE.saturating_sub(now.duration_since(*since)));
        Some(left.max().unwrap_or_default())
    }
}

impl Ready {
    /// For a store that takes this many statements at a time, each from a lane of its own. Where it
    /// takes one, any worker may send it.
    pub(super) fn new(statements: usize, workers: usize) -> Self {
        let one_by_one = statements == 1;
        let lanes = if one_by_one {
            workers.max(1)
        } else {
            statements
        };
        Self {
            queues: Mutex::new(Queues {
                due: VecDeque::new(),
                aside: VecDeque::new(),
                suspects: HashSet::new(),
                on_way: vec![None; lanes].into(),
                one_by_one,
            }),
            bells: (0..lanes).map(|_| Notify::new()).collect(),
            aside_bell: Notify::new(),
        }
    }

    /// How many main lanes there are.
    pub(super) fn lanes(&self) -> usize {
        self.bells.len()
    }

    /// The lane of requests that come on this worker.
    pub(super) fn lane(&self, worker: usize) -> Lane {
        Lane::Main(worker % self.bells.len())
    }

    /// Queues a resource (aside if it is a suspect), and rings this lane if it is idle. A busy lane
    /// looks when its statement ends; the idle ones are rung in case that takes long.
    pub(super) fn push(&self, lane: Lane, key: ResourceKey) {
        let mut queues = locked(&self.queues);
        match lane {
            Lane::Main(lane) if !queues.suspects.contains(&key) => {
                let first = queues.due.is_empty();
                queues.due.push_back(key);
                // A lane that gathers needs no second ring.
                if queues.on_way[lane].is_some() {
                    if first {
                        self.ring_idle(&queues);
                    }
                } else if first || !queues.held() {
                    self.bells[lane].notify_one();
                }
            }
            Lane::Main(_) | Lane::Aside => {
                queues.aside.push_back(key);
                self.aside_bell.notify_one();
            }
        }
    }

    /// Takes the resources of the lane's next statement.
    pub(super) fn take(&self, lane: Lane, now: Instant) -> Vec<ResourceKey> {
        let mut queues = locked(&self.queues);
        match lane {
            Lane::Main(lane) => {
                let taken = queues.due.len().min(TOGETHER);
                queues.on_way[lane] = Some((taken, now));
                let keys = queues.due.drain(..taken).collect();
                if !queues.due.is_empty() {
                    self.ring_idle(&queues);
                }
                keys
            }
            Lane::Aside => queues.aside.pop_front().into_iter().collect(),
        }
    }

    /// The lane's statement has ended. Waits until the next one is due, which counts as on its way
    /// from then on.
    pub(super) async fn due(&self, lane: Lane) {
        let Lane::Main(lane) = lane else {
            let empty = locked(&self.queues).aside.is_empty();
            if empty {
                self.aside_bell.notified().await;
            }
            return;
        };
        locked(&self.queues).on_way[lane] = None;
        self.fill().await;
        loop {
            let now = Instant::now();
            let gathers = {
                let mut queues = locked(&self.queues);
                let gathers = queues.gathers(now);
                if gathers == Some(Duration::ZERO) {
                    queues.on_way[lane] = Some((0, now));
                    return;
                }
                gathers
            };
            let rung = self.bells[lane].notified();
            match gathers {
                Some(time) => drop(tokio::time::timeout(time, rung).await),
                None => rung.await,
            }
        }
    }

    /// Lets what is ready on this worker run, while that makes a small statement larger.
    async fn fill(&self) {
        let mut before = None;
        for _ in 0..MOST_TURNS {
            let due = {
                let queues = locked(&self.queues);
                (!queues.one_by_one).then_some(queues.due.len())
            };
            if due == before || due.is_none_or(|due| due >= ENOUGH) {
                return;
            }
            before = due;
            tokio::task::yield_now().await;
        }
    }

    /// Rings the lanes that have nothing on their way.
    fn ring_idle(&self, queues: &Queues) {
        for (bell, on_way) in self.bells.iter().zip(&queues.on_way) {
            if on_way.is_none() && !queues.one_by_one {
                bell.notify_one();
            }
        }
    }

    /// A statement with this resource met a row lock.
    pub(super) fn suspect(&self, key: &ResourceKey) {
        let suspects = &mut locked(&self.queues).suspects;
        if suspects.len() == MAX_SUSPECTS {
            suspects.clear();
        }
        suspects.insert(key.clone());
    }

    /// A statement with these resources met none.
    pub(super) fn passed<'k>(&self, keys: impl Iterator<Item = &'k ResourceKey>) {
        let suspects = &mut locked(&self.queues).suspects;
        if !suspects.is_empty() {
            keys.for_each(|key| drop(suspects.take(key)));
        }
    }
}

#[cfg(test)]
mod tests;
