//! [`Repairs`]: the resources whose marks or epochs the store has lost, and the doubts about
//! openings.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::routing::ResourceKey;

/// The most resources that are repaired together, before requests have a turn again.
pub(super) const MAX_TOGETHER: usize = 256;
/// How long a resource that could not be repaired by itself waits for its next turn.
const POSTPONED: Duration = Duration::from_secs(30);
/// For how long after a doubt, and how often, the own rows are searched for late openings.
const LATE: Duration = Duration::from_mins(10);
const BETWEEN_LATE: Duration = Duration::from_mins(1);

/// The resources whose marks or epochs the store has lost, and the doubts about openings.
pub(super) struct Repairs {
    pub keys: HashSet<ResourceKey>,
    /// Those that are not tried before this moment: a row lock, or a row that the store refuses.
    postponed: HashMap<ResourceKey, Instant>,
    /// A resource that must be repaired has not been tried yet.
    pub due: bool,
    /// How many are repaired together: fewer after a failure.
    pub most: usize,
    /// When the own rows were last searched for late openings.
    reconciled: Instant,
    /// When a statement's fate was last in doubt.
    doubted: Option<Instant>,
}

impl Repairs {
    pub(super) fn new() -> Self {
        Self {
            keys: HashSet::new(),
            postponed: HashMap::new(),
            due: false,
            most: MAX_TOGETHER,
            reconciled: Instant::now(),
            doubted: None,
        }
    }

    pub(super) fn push(&mut self, key: &ResourceKey) {
        self.keys.insert(key.clone());
        self.due = true;
    }

    /// Leaves these out for a while.
    pub(super) fn postpone(&mut self, keys: &[ResourceKey], now: Instant) {
        let keys = keys.iter().cloned();
        self.postponed
            .extend(keys.map(|key| (key, now + POSTPONED)));
    }

    /// At most `most` of the resources whose turn it is.
    pub(super) fn next(&mut self, most: usize, now: Instant) -> Vec<ResourceKey> {
        self.postponed.retain(|_, until| *until > now);
        let due = |key: &&ResourceKey| !self.postponed.contains_key(*key);
        self.keys.iter().filter(due).take(most).cloned().collect()
    }

    /// Notes that the fate of a statement is in doubt, so that its openings may be committed late.
    pub(super) fn doubted(&mut self, now: Instant) {
        self.doubted = Some(now);
    }

    /// Whether to search the own rows for late openings now.
    pub(super) fn seeks_late_openings(&mut self, now: Instant) -> bool {
        if self
            .doubted
            .is_some_and(|at| now.duration_since(at) >= LATE)
        {
            self.doubted = None;
        }
        let due = self.doubted.is_some() && now.duration_since(self.reconciled) >= BETWEEN_LATE;
        if due {
            self.reconciled = now;
        }
        due
    }
}
