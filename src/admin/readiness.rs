//! Readiness: whether the proxy is ready, and if not, why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::json_values::wall_clock;
use crate::metrics::StoreMetrics;
use crate::store::routes::RouteRecord;

/// Shared by start-up, shutdown and `/readyz`.
#[derive(Debug)]
pub struct Readiness {
    /// The name of this instance.
    instance: Box<str>,
    /// By the wall clock.
    pub started: SystemTime,
    /// `admin.ready_follows_store`.
    follows_store: bool,
    configured: AtomicBool,
    store_reached: AtomicBool,
    /// It knows if the store answers.
    store: Arc<StoreMetrics>,
    routes: Arc<RouteRecord>,
    /// Cancelled when the proxy begins to drain.
    pub draining: CancellationToken,
    /// Cancelled once it has drained: no request is in progress, and none will be.
    pub drained: CancellationToken,
}

impl Readiness {
    /// Nothing is ready yet. `follows_store`: an outage of the store makes it unready again.
    #[must_use]
    pub fn new(
        instance: &str,
        follows_store: bool,
        store: Arc<StoreMetrics>,
        routes: Arc<RouteRecord>,
    ) -> Self {
        Self {
            instance: instance.into(),
            started: wall_clock(),
            follows_store,
            configured: AtomicBool::new(false),
            store_reached: AtomicBool::new(false),
            store,
            routes,
            draining: CancellationToken::new(),
            drained: CancellationToken::new(),
        }
    }

    /// The configuration is in force and the data port listens.
    pub fn set_configured(&self) {
        self.configured.store(true, Ordering::Release);
    }

    /// The store was reached and found fit, for the first time since the start.
    pub fn set_store_reached(&self) {
        self.store_reached.store(true, Ordering::Release);
    }

    /// Everything at once, as `/readyz` says it.
    #[must_use]
    pub fn report(&self) -> ReadyReport {
        let configured = self.configured.load(Ordering::Acquire);
        let store_reached = self.store_reached.load(Ordering::Acquire);
        let (store_up, store_error) = self.store.status();
        let draining = self.draining.is_cancelled();
        let others = self.routes.others();
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
        let state = match (draining, configured && store_reached && store_up) {
            (true, _) => "draining",
            (false, true) => "ready",
            (false, false) => "alive",
        };
        ReadyReport {
            state: state.to_owned(),
            instance: self.instance.to_string(),
            ready: not_ready_because.is_empty(),
            store: match (store_reached, store_up) {
                (false, _) => "unknown",
                (true, true) => "up",
                (true, false) => "down",
            }
            .to_owned(),
            other_route_tables: others.iter().map(ToString::to_string).collect(),
            store_error: store_error.filter(|_| !store_up).map(|why| why.to_string()),
            not_ready_because: not_ready_because.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// The body of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyReport {
    /// `ready`, `draining`, or `alive`: it runs, and does not reach its store. It may count as ready
    /// nevertheless, see `admin.ready_follows_store`.
    pub state: String,
    /// The name of this instance, as in its log lines and in `Via`.
    pub instance: String,
    pub ready: bool,
    /// `up`, `down`, or `unknown` before it was first reached.
    pub store: String,
    /// Live instances of the namespace with another route table. They make no instance unready,
    /// because that would stop a roll-out.
    pub other_route_tables: Vec<String>,
    /// The reason why it is down, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    /// Empty when ready.
    pub not_ready_because: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RouteTable;
    use crate::metrics::Metrics;
    use crate::store::{InstanceId, InstanceRow, StoreError, Terms};

    fn new(follows_store: bool) -> Readiness {
        let store = Arc::clone(Metrics::new(&[]).store());
        let gauge = store.series.route_table_mismatch.clone();
        let routes = Arc::new(RouteRecord::new(RouteTable::default(), gauge));
        Readiness::new("1", follows_store, store, routes)
    }

    fn started(follows_store: bool) -> Readiness {
        let readiness = new(follows_store);
        readiness.set_configured();
        readiness.store.answered();
        readiness.set_store_reached();
        readiness
    }

    #[test]
    fn ready_needs_configuration_and_store() {
        let readiness = new(false);
        assert!(!readiness.report().ready);
        assert_eq!(readiness.report().store, "unknown");
        assert_eq!(readiness.report().not_ready_because.len(), 2);
        readiness.set_configured();
        assert!(!readiness.report().ready);
        readiness.store.answered();
        readiness.set_store_reached();
        assert!(readiness.report().ready);
        assert_eq!(readiness.report().store, "up");
    }

    #[test]
    fn an_outage_shows_but_counts_only_where_asked() {
        for follows in [false, true] {
            let readiness = started(follows);
            let error = StoreError::Connection("it burns".into());
            readiness.store.failed(&error);
            assert_eq!(readiness.report().store, "down");
            let told = readiness.report().store_error.expect("a reason");
            assert_eq!(told, error.to_string());
            assert_eq!(readiness.report().ready, !follows);
            readiness.store.answered();
            assert!(readiness.report().ready);
            assert_eq!(readiness.report().store_error, None);
        }
    }

    #[test]
    fn another_route_table_shows_and_does_not_count() {
        let readiness = started(true);
        let (me, other) = (InstanceId::from_bits(1), InstanceId::from_bits(2));
        let row = InstanceRow {
            id: other,
            terms: Terms {
                routes: "another".to_owned(),
                ..Terms::default()
            },
            dead: false,
            ended: false,
        };
        readiness.routes.observe(me, &[row]);
        assert_eq!(readiness.report().other_route_tables, [other.to_string()]);
        assert!(readiness.report().ready);
    }

    #[test]
    fn draining_is_never_ready() {
        let readiness = started(false);
        readiness.draining.cancel();
        assert!(!readiness.report().ready);
    }
}
