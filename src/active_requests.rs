//! The requests in progress, for operators who ask what is stuck, where and until when.
//!
//! A request is listed from its in-flight permit to the end of its exchange (unfenced: to the head
//! of its answer). That must cost nearly nothing. An entry is a slot of its worker's slab, behind a
//! lock that only this worker takes, except while an operator reads. It refers to what the request
//! keeps anyway, and has no text. A stage is three relaxed stores to the request's own memory.
//! Together this is about 50 ns a request. Route, texts and what is in the way are worked out when
//! an operator asks, for the oldest requests only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slab::Slab;
use tokio::time::Instant;

use crate::fencing::Fencing;
use crate::json_values::seconds;
use crate::locked::locked;
use crate::rejections::RequestText;
use crate::routing::{ResourceKey, Token};
use crate::worker::{self, PerWorker};

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The rest of its body, from its client.
    Body,
    /// The store's answer.
    Store,
    /// Older requests of its resource. Entered as [`Self::Store`]: operators are told which it is.
    OlderInFlight,
    /// A connection to the upstream.
    Connection,
    /// The head of the upstream's response.
    Upstream,
    /// The rest of the upstream's response.
    Response,
}

const STAGES: [Stage; 6] = [
    Stage::Body,
    Stage::Store,
    Stage::OlderInFlight,
    Stage::Connection,
    Stage::Upstream,
    Stage::Response,
];

/// Where a request is. Its tasks write, and only operators read.
#[derive(Debug)]
pub struct Progress {
    /// When its head had arrived. The other times are nanoseconds since then.
    pub began: Instant,
    stage: AtomicU8,
    since: AtomicU64,
    ends: AtomicU64,
    cut: AtomicU64,
}

/// [`Progress`] at one moment.
#[derive(Clone, Copy, Debug)]
pub struct StageNow {
    pub stage: Stage,
    pub since: Instant,
    /// The end of the stage at the latest. `None`: it has no limit.
    pub ends: Option<Instant>,
}

impl Progress {
    #[must_use]
    pub fn new(began: Instant) -> Self {
        Self {
            began,
            stage: AtomicU8::new(Stage::Body as u8),
            since: AtomicU64::new(0),
            ends: AtomicU64::new(u64::MAX),
            cut: AtomicU64::new(u64::MAX),
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// A stage has begun, which `limit` ends. Also when the limit begins again.
    pub fn enter(&self, stage: Stage, since: Instant, limit: Duration) {
        self.stage.store(stage as u8, Relaxed);
        self.since.store(self.nanos(since), Relaxed);
        self.ends.store(self.nanos(since + limit), Relaxed);
    }

    /// As [`Self::enter`], of a stage that takes as long as it moves.
    pub fn enter_unlimited(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
        self.ends.store(u64::MAX, Relaxed);
    }

    /// The request will be cut then, in any stage.
    pub fn cut_at(&self, at: Instant) {
        self.cut.fetch_min(self.nanos(at), Relaxed);
    }

    #[must_use]
    pub fn now(&self) -> StageNow {
        let at = |nanos| self.began + Duration::from_nanos(nanos);
        let ends = self.ends.load(Relaxed).min(self.cut.load(Relaxed));
        StageNow {
            stage: STAGES[usize::from(self.stage.load(Relaxed))],
            since: at(self.since.load(Relaxed)),
            ends: (ends < u64::MAX).then(|| at(ends)),
        }
    }
}

/// A request that can be listed.
pub trait InProgress: Send + Sync {
    fn progress(&self) -> &Progress;

    /// The request in words.
    fn describe(&self, fencing: &Fencing) -> ActiveRequest;
}

/// One request in progress.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActiveRequest {
    /// Since its head had arrived.
    pub age_seconds: f64,
    pub waits_for: Stage,
    /// The tokens of the requests that it waits for.
    pub older: Vec<Token>,
    /// It goes on, is refused or is cut by then. `None`: no limit is known.
    #[serde(rename = "ends_in_seconds", with = "seconds")]
    pub ends_in: Option<Duration>,
    pub route: String,
    /// `None`: there is no key, or not yet.
    pub resource: Option<ResourceKey>,
    pub token: Option<Token>,
    pub client: String,
    #[serde(flatten)]
    pub request: RequestText,
}

/// The place of a request in the list.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    worker: usize,
    slot: usize,
}

/// The list. Each worker has its own.
pub struct ActiveRequests(PerWorker<Slab<Arc<dyn InProgress>>>);

impl Default for ActiveRequests {
    fn default() -> Self {
        Self(PerWorker::new(Slab::new))
    }
}

impl ActiveRequests {
    /// Lists a request until [`Self::remove`].
    pub fn add(&self, request: Arc<dyn InProgress>) -> Place {
        let worker = worker::index();
        let slot = self.0.of(worker).insert(request);
        Place { worker, slot }
    }

    pub fn remove(&self, place: Place) {
        // Dropped outside the lock.
        let _request = self.0.of(place.worker).try_remove(place.slot);
    }

    /// The oldest requests, the oldest first, and the number of all.
    #[must_use]
    pub fn oldest(&self, limit: usize, fencing: &Fencing) -> (Vec<ActiveRequest>, usize) {
        let mut all: Vec<Arc<dyn InProgress>> = Vec::new();
        for of_worker in self.0.all() {
            all.extend(locked(of_worker).iter().map(|(_, one)| Arc::clone(one)));
        }
        all.sort_unstable_by_key(|one| one.progress().began);
        let oldest = all.iter().take(limit).map(|one| one.describe(fencing));
        (oldest.collect(), all.len())
    }
}
