//! [`OwnHandle`]: asks the [walker](super::own) over this instance's own rows for something.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::routing::ResourceKey;

/// The most resources that wait to be asked about. Beyond them everything is walked through.
const MOST_WAITING: usize = 8192;

/// The requests to the walker.
#[derive(Debug, Default)]
pub(super) struct OwnWishes {
    pub(super) hints: HashSet<ResourceKey>,
    /// A walk through all rows, soon.
    pub(super) walk: bool,
    /// A check that what is open here is on record, soon.
    pub(super) check: bool,
    /// Whether every notification arrives; `None`: nobody listens for any.
    pub(super) whole: Option<bool>,
}

#[derive(Debug)]
pub(super) struct Desk {
    /// Whether other instances can raise marks, too.
    pub(super) shared: bool,
    /// Short sections, never across an await.
    wishes: Mutex<OwnWishes>,
    pub(super) bell: Notify,
}

impl Desk {
    pub(super) fn lock(&self) -> MutexGuard<'_, OwnWishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wish(&self, f: impl FnOnce(&mut OwnWishes)) {
        f(&mut self.lock());
        self.bell.notify_one();
    }
}

/// Asks the walker for something. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct OwnHandle(pub(super) Arc<Desk>);

impl OwnHandle {
    pub(super) fn new(shared: bool) -> Self {
        Self(Arc::new(Desk {
            shared,
            wishes: Mutex::default(),
            bell: Notify::new(),
        }))
    }

    pub(super) fn poll(&self) {
        self.0.wish(|wishes| wishes.walk |= self.0.shared);
    }

    pub(super) fn reconcile(&self) {
        self.0
            .wish(|wishes| (wishes.check, wishes.walk) = (true, true));
    }

    pub(super) fn hint(&self, key: ResourceKey) {
        self.0.wish(|wishes| {
            if wishes.hints.len() < MOST_WAITING {
                wishes.hints.insert(key);
            } else {
                wishes.walk = true;
            }
        });
    }

    pub(super) fn listening(&self, whole: bool) {
        if !self.0.shared {
            return;
        }
        self.0.wish(|wishes| {
            // What was missed until now is looked for once more.
            wishes.walk |= wishes.whole != Some(whole);
            wishes.whole = Some(whole);
        });
    }
}
