//! [`WalkHandle`]: asks the [task that walks](super::own) through this instance's own rows.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::routing::ResourceKey;

/// The most resources that wait to be read one by one. Beyond that, all rows are walked through.
const MAX_HINTS: usize = 8192;

/// The pending requests to the walk.
#[derive(Debug, Default)]
pub(super) struct WalkRequests {
    pub(super) hints: HashSet<ResourceKey>,
    /// A walk through all rows, soon.
    pub(super) walk: bool,
    /// A check, soon, that the epochs open here are in the store.
    pub(super) check: bool,
    /// Walks are made regularly.
    pub(super) regular: bool,
}

#[derive(Debug)]
pub(super) struct WalkMailbox {
    /// Whether other instances can raise marks, too.
    pub(super) shared: bool,
    /// Short sections, never across an await.
    requests: Mutex<WalkRequests>,
    pub(super) bell: Notify,
}

impl WalkMailbox {
    pub(super) fn lock(&self) -> MutexGuard<'_, WalkRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ask(&self, f: impl FnOnce(&mut WalkRequests)) {
        f(&mut self.lock());
        self.bell.notify_one();
    }
}

/// Asks for walks and checks. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct WalkHandle(pub(super) Arc<WalkMailbox>);

impl WalkHandle {
    pub(super) fn new(shared: bool) -> Self {
        Self(Arc::new(WalkMailbox {
            shared,
            requests: Mutex::default(),
            bell: Notify::new(),
        }))
    }

    pub(super) fn poll(&self) {
        self.0.ask(|requests| requests.walk |= self.0.shared);
    }

    pub(super) fn reconcile(&self) {
        self.0
            .ask(|requests| (requests.check, requests.walk) = (true, true));
    }

    pub(super) fn hint(&self, key: ResourceKey) {
        self.0.ask(|requests| {
            if requests.hints.len() < MAX_HINTS {
                requests.hints.insert(key);
            } else {
                requests.walk = true;
            }
        });
    }

    pub(super) fn begin(&self) {
        self.0.ask(|requests| requests.regular = self.0.shared);
    }
}
