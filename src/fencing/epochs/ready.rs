//! [`Ready`]: the resources that are due for a statement, by the lane that sends it.
//!
//! A batch that meets a row lock is rolled back whole. Its resources are suspects from then on:
//! each is asked for by itself, over a lane aside, until one of its statements has passed. So a
//! locked row delays the other resources of its batch once, and no others.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::routing::ResourceKey;
use crate::store::Lane;

/// The most resources that one statement names.
const TOGETHER: usize = 1024;
/// The most suspects that are known at once.
const MAX_SUSPECTS: usize = 16 << 10;

pub(super) struct Ready {
    /// The main lanes, and behind them the one aside.
    lanes: Vec<Queue>,
    suspects: Mutex<HashSet<ResourceKey>>,
    /// There may be suspects: saves their lock where there is none.
    suspicious: AtomicBool,
}

/// Short sections, never across an await.
#[derive(Default)]
struct Queue {
    due: Mutex<VecDeque<ResourceKey>>,
    bell: Notify,
}

impl Ready {
    /// With this many main lanes.
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..=lanes).map(|_| Queue::default()).collect(),
            suspects: Mutex::default(),
            suspicious: AtomicBool::new(false),
        }
    }

    /// The lane of requests that come on this worker.
    pub(super) fn lane(&self, worker: usize) -> Lane {
        Lane::Main(worker % (self.lanes.len() - 1))
    }

    /// The resource is due, on this lane unless it is a suspect.
    pub(super) fn push(&self, lane: Lane, key: ResourceKey) {
        let suspicious = self.suspicious.load(Ordering::Acquire);
        let lane = if suspicious && self.suspects().contains(&key) {
            Lane::Aside
        } else {
            lane
        };
        let queue = self.queue(lane);
        queue.lock().push_back(key);
        queue.bell.notify_one();
    }

    /// Takes the resources of the lane's next statement.
    pub(super) fn take(&self, lane: Lane) -> Vec<ResourceKey> {
        let most = match lane {
            Lane::Main(_) => TOGETHER,
            Lane::Aside => 1,
        };
        let mut due = self.queue(lane).lock();
        let most = most.min(due.len());
        due.drain(..most).collect()
    }

    /// Waits until the lane may have something to send.
    pub(super) async fn due(&self, lane: Lane) {
        if self.queue(lane).lock().is_empty() {
            self.queue(lane).bell.notified().await;
        }
    }

    /// A statement with this resource met a row lock.
    pub(super) fn suspect(&self, key: &ResourceKey) {
        let mut suspects = self.suspects();
        if suspects.len() == MAX_SUSPECTS {
            suspects.clear();
        }
        suspects.insert(key.clone());
        self.suspicious.store(true, Ordering::Release);
    }

    /// A statement with this resource met none.
    pub(super) fn passed(&self, key: &ResourceKey) {
        if self.suspicious.load(Ordering::Acquire) {
            let mut suspects = self.suspects();
            suspects.remove(key);
            self.suspicious
                .store(!suspects.is_empty(), Ordering::Release);
        }
    }

    fn queue(&self, lane: Lane) -> &Queue {
        match lane {
            Lane::Main(lane) => &self.lanes[lane],
            Lane::Aside => &self.lanes[self.lanes.len() - 1],
        }
    }

    fn suspects(&self) -> MutexGuard<'_, HashSet<ResourceKey>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<ResourceKey>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
