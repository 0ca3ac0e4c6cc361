//! [`Isolated`]: the resources that met a row lock, and are kept out of the shared batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::waiter::Waiter;
use crate::routing::ResourceKey;

/// The most statements that are under way beside the writer at once.
const MAX_STATEMENTS: usize = 8;

/// How long a resource that met a row lock is kept out of the shared batches.
const LOCKED: Duration = Duration::from_secs(30);

/// The resources that are retried alone.
pub(super) struct Isolated {
    /// Resources with a statement of their own under way, and the requests that came meanwhile.
    pub under_way: HashMap<ResourceKey, Vec<Waiter>>,
    /// Bounds the statements that are under way beside the writer.
    pub statements: Arc<Semaphore>,
    /// Resources that met a row lock recently, and until when they are kept out of the shared
    /// batches.
    locked: HashMap<ResourceKey, Instant>,
}

impl Isolated {
    pub(super) fn new() -> Self {
        Self {
            under_way: HashMap::new(),
            statements: Arc::new(Semaphore::new(MAX_STATEMENTS)),
            locked: HashMap::new(),
        }
    }

    pub(super) fn contains(&self, key: &ResourceKey) -> bool {
        self.under_way.contains_key(key) || self.locked.contains_key(key)
    }

    /// These met a row lock at `now`, or may have.
    pub(super) fn lock(&mut self, keys: impl IntoIterator<Item = ResourceKey>, now: Instant) {
        let until = now + LOCKED;
        self.locked.extend(keys.into_iter().map(|key| (key, until)));
    }

    pub(super) fn is_locked(&self, key: &ResourceKey, now: Instant) -> bool {
        self.locked.get(key).is_some_and(|until| *until > now)
    }

    pub(super) fn forget_expired(&mut self, now: Instant) {
        self.locked.retain(|_, until| *until > now);
    }
}
