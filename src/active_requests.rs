//! The requests in progress, for operators who ask what is stuck, where and until when.
//!
//! A request is listed from its in-flight permit to the end of its exchange (unfenced: to the head
//! of its answer). That must cost nearly nothing. An entry is a slot of its worker's slab, behind a
//! lock that only this worker takes, except while an operator reads. It refers to what the request
//! keeps anyway, and has no text. A stage is an assignment under a lock of the request's own.
//! Together this is under 0.1 µs a request. Route, texts and what is in the way are worked out when
//! an operator asks, for the oldest requests only.

use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use slab::Slab;
use tokio::time::Instant;

use crate::body::UploadProgress;
use crate::fencing::Fencing;
use crate::locked::locked;
use crate::rejections::RequestText;
use crate::routing::{ResourceKey, Token};
use crate::worker::{self, PerWorker};

/// The stages of a request, by the thing that it waits for.
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

/// Where a request is. Its tasks write, and only operators read.
#[derive(Debug)]
pub struct Progress {
    /// When its head had arrived.
    pub began: Instant,
    /// Held for an assignment or a copy.
    now: Mutex<StageNow>,
    /// Set when its upload begins.
    upload: OnceLock<Arc<UploadProgress>>,
}

#[derive(Clone, Copy, Debug)]
struct StageNow {
    stage: Stage,
    /// The end of the stage at the latest. `None`: it has no limit.
    ends: Option<Instant>,
    /// The request is cut then, in any stage.
    cut: Option<Instant>,
}

impl Progress {
    #[must_use]
    pub fn new(began: Instant) -> Self {
        let (stage, ends, cut) = (Stage::Body, None, None);
        let now = Mutex::new(StageNow { stage, ends, cut });
        let upload = OnceLock::new();
        Self { began, now, upload }
    }

    /// A stage has begun, or its limit begins again.
    pub fn enter(&self, stage: Stage, ends: Option<Instant>) {
        let mut now = locked(&self.now);
        (now.stage, now.ends) = (stage, ends);
    }

    /// Its upload has begun; `upload` knows whether it waits for the client.
    pub(crate) fn sends(&self, upload: &Arc<UploadProgress>) {
        let _ = self.upload.set(Arc::clone(upload));
    }

    /// The request will be cut then, in any stage.
    pub fn cut_at(&self, at: Instant) {
        locked(&self.now).cut = Some(at);
    }

    /// The stage, and its end at the latest.
    pub fn now(&self) -> (Stage, Option<Instant>) {
        let now = *locked(&self.now);
        let waits_for_client = self.upload.get().is_some_and(|upload| upload.is_waiting());
        if now.stage == Stage::Upstream && waits_for_client {
            return (Stage::Body, now.cut);
        }
        (now.stage, now.ends.into_iter().chain(now.cut).min())
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
    pub ends_in_seconds: Option<f64>,
    pub route: String,
    /// `None`: there is no key, or not yet.
    pub resource: Option<ResourceKey>,
    pub token: Option<Token>,
    pub client: String,
    #[serde(flatten)]
    pub request: RequestText,
}

/// The place of a request in the list: its worker and its slot there.
pub type Place = (usize, usize);

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
        (worker, self.0.of(worker).insert(request))
    }

    pub fn remove(&self, (worker, slot): Place) {
        // Dropped outside the lock.
        let _request = self.0.of(worker).try_remove(slot);
    }

    /// The oldest requests, the oldest first, and the number of all.
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
