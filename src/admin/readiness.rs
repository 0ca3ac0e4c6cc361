//! Readiness: if the proxy is ready, and why not. Only the part that knows a fact sets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

/// Shared by start-up, the store's heartbeat, shutdown and `/readyz`.
#[derive(Debug)]
pub struct Readiness {
    /// The name of this instance.
    instance: Box<str>,
    started: SystemTime,
    /// `admin.ready_follows_store`.
    follows_store: bool,
    configured: AtomicBool,
    store_reached: AtomicBool,
    store_up: AtomicBool,
    other_route_tables: RwLock<Vec<String>>,
    /// Why it is not. Held to copy it in or out.
    store_error: Mutex<Option<Arc<str>>>,
    draining: CancellationToken,
    drained: CancellationToken,
}

impl Readiness {
    /// Nothing is ready yet. `follows_store`: an outage of the store makes it unready again.
    #[must_use]
    pub fn new(instance: &str, follows_store: bool) -> Self {
        Self {
            instance: instance.into(),
            #[expect(
                clippy::disallowed_methods,
                reason = "for people to read; nothing rests on it"
            )]
            started: SystemTime::now(),
            follows_store,
            configured: AtomicBool::new(false),
            store_reached: AtomicBool::new(false),
            store_up: AtomicBool::new(false),
            other_route_tables: RwLock::default(),
            store_error: Mutex::default(),
            draining: CancellationToken::new(),
            drained: CancellationToken::new(),
        }
    }

    /// When this process began, by the wall clock.
    #[must_use]
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// The configuration is in force and the data port listens.
    pub fn set_configured(&self) {
        self.configured.store(true, Ordering::Release);
    }

    /// The store was reached and found fit, for the first time since the start.
    pub fn set_store_reached(&self) {
        self.store_up.store(true, Ordering::Release);
        self.store_reached.store(true, Ordering::Release);
    }

    /// The last call to the store succeeded, or did not, and why.
    pub fn set_store_up(&self, up: bool, error: Option<Arc<str>>) {
        self.store_up.store(up, Ordering::Release);
        *self.error() = error;
    }

    fn error(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.store_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The live instances of the namespace that serve another route table.
    pub fn set_other_route_tables(&self, instances: Vec<String>) {
        let known = &self.other_route_tables;
        *known.write().unwrap_or_else(PoisonError::into_inner) = instances;
    }

    /// The proxy is draining. Never undone.
    pub fn set_draining(&self) {
        self.draining.cancel();
    }

    /// The proxy has drained: no request is in progress, and none will be. Never undone.
    pub fn set_drained(&self) {
        self.drained.cancel();
    }

    /// Ends when the proxy begins to drain.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Ends when it has drained.
    pub async fn drained(&self) {
        self.drained.cancelled().await;
    }

    /// Everything at once, as `/readyz` says it.
    #[must_use]
    pub fn report(&self) -> ReadyReport {
        let configured = self.configured.load(Ordering::Acquire);
        let store_reached = self.store_reached.load(Ordering::Acquire);
        let store_up = self.store_up.load(Ordering::Acquire);
        let draining = self.draining.is_cancelled();
        let known = &self.other_route_tables;
        let other_route_tables = known.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut not_ready_because = Vec::new();
        if !configured {
            not_ready_because.push("the configuration is not in force yet");
        }
        if !store_reached {
            not_ready_because.push("the store has not been reached and found fit since the start");
        } else if self.follows_store && !store_up {
            not_ready_because.push("the store is down (admin.ready_follows_store is on)");
        }
        if draining {
            not_ready_because.push("the proxy is draining");
        }
        ReadyReport {
            instance: self.instance.to_string(),
            ready: not_ready_because.is_empty(),
            configured,
            store_reached,
            store: if store_up {
                "up"
            } else if store_reached {
                "down"
            } else {
                "unknown"
            },
            other_route_tables,
            store_error: self
                .error()
                .as_deref()
                .filter(|_| !store_up)
                .map(str::to_owned),
            draining,
            not_ready_because,
        }
    }
}

/// The body of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, as the JSON has them"
)]
pub struct ReadyReport {
    /// The name of this instance, as in its log lines and in `Via`.
    pub instance: String,
    pub ready: bool,
    pub configured: bool,
    /// Once since the start.
    pub store_reached: bool,
    /// `up`, `down`, or `unknown` before it was first reached.
    pub store: &'static str,
    /// Live instances of the namespace with another route table. They make no instance unready,
    /// because that would stop a roll-out.
    pub other_route_tables: Vec<String>,
    /// Why it is down, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    pub draining: bool,
    /// Empty when ready.
    pub not_ready_because: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(follows_store: bool) -> Readiness {
        let readiness = Readiness::new("1", follows_store);
        readiness.set_configured();
        readiness.set_store_reached();
        readiness
    }

    #[test]
    fn ready_needs_configuration_and_store() {
        let readiness = Readiness::new("1", false);
        assert!(!readiness.report().ready);
        assert_eq!(readiness.report().store, "unknown");
        assert_eq!(readiness.report().not_ready_because.len(), 2);
        readiness.set_configured();
        assert!(!readiness.report().ready);
        readiness.set_store_reached();
        assert!(readiness.report().ready);
        assert_eq!(readiness.report().store, "up");
    }

    #[test]
    fn an_outage_shows_but_counts_only_where_asked() {
        for follows in [false, true] {
            let readiness = started(follows);
            readiness.set_store_up(false, Some("it burns".into()));
            assert_eq!(readiness.report().store, "down");
            assert_eq!(readiness.report().store_error.as_deref(), Some("it burns"));
            assert_eq!(readiness.report().ready, !follows);
            readiness.set_store_up(true, None);
            assert!(readiness.report().ready);
            assert_eq!(readiness.report().store_error, None);
        }
    }

    #[test]
    fn another_route_table_shows_and_does_not_count() {
        let readiness = started(true);
        readiness.set_other_route_tables(vec!["12".to_owned()]);
        assert_eq!(readiness.report().other_route_tables, ["12"]);
        assert!(readiness.report().ready);
    }

    #[test]
    fn draining_is_never_ready() {
        let readiness = started(false);
        readiness.set_draining();
        assert!(!readiness.report().ready);
    }
}
