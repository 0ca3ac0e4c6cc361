//! Readiness: whether the proxy is ready, and if not, why.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::AdminState;
use super::api::ReadyReport;

/// Shared by start-up, shutdown and `/readyz`.
#[derive(Debug, Default)]
pub struct Readiness {
    /// The store was reached and found fit since the start. The data port accepts before.
    pub store_reached: AtomicBool,
    /// Cancelled when the proxy begins to drain.
    pub draining: CancellationToken,
    /// Cancelled once it has drained: no request is in progress, and none will be.
    pub drained: CancellationToken,
}

impl AdminState {
    /// Everything at once, as `/readyz` says it.
    pub(super) fn ready(&self) -> ReadyReport {
        let store_reached = self.readiness.store_reached.load(Ordering::Acquire);
        let (store_up, store_error) = self.metrics.store_status();
        let draining = self.readiness.draining.is_cancelled();
        let follows_store = self.loaded.borrow().settings.admin.ready_follows_store;
        let mut not_ready_because = Vec::new();
        if !store_reached {
            not_ready_because.push("the store has not been reached and found fit since the start");
        } else if follows_store && !store_up {
            not_ready_because.push("the store is down (admin.ready_follows_store is on)");
        }
        if draining {
            not_ready_because.push("the proxy is draining");
        }
        let (state, store) = match (store_reached, store_up) {
            (false, _) => ("alive", "unknown"),
            (true, false) => ("alive", "down"),
            (true, true) => ("ready", "up"),
        };
        let others = self.routes.others();
        ReadyReport {
            state: if draining { "draining" } else { state }.to_owned(),
            instance: self.fencing.instance().name(),
            ready: not_ready_because.is_empty(),
            store: store.to_owned(),
            other_route_tables: others.iter().map(ToString::to_string).collect(),
            store_error: store_error.filter(|_| !store_up).map(|why| why.to_string()),
            not_ready_because: not_ready_because.into_iter().map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::admin::tests::fixture::Admin;
    use crate::store::{InstanceId, InstanceRow, StoreError, Terms};

    async fn new(follows_store: bool) -> Admin {
        let admin = Admin::new().await;
        admin.configure(|now| now.ready_follows_store = follows_store);
        admin
    }

    async fn started(follows_store: bool) -> Admin {
        let admin = new(follows_store).await;
        admin.state.metrics.store_answered();
        admin.reach_store();
        admin
    }

    #[tokio::test]
    async fn ready_needs_the_store() {
        let admin = new(false).await;
        assert!(!admin.state.ready().ready);
        assert_eq!(admin.state.ready().store, "unknown");
        assert_eq!(admin.state.ready().not_ready_because.len(), 1);
        admin.state.metrics.store_answered();
        assert!(!admin.state.ready().ready);
        admin.reach_store();
        assert!(admin.state.ready().ready);
        assert_eq!(admin.state.ready().store, "up");
    }

    #[tokio::test]
    async fn an_outage_shows_but_counts_only_where_asked() {
        for follows in [false, true] {
            let admin = started(follows).await;
            let error = StoreError::Connection("it burns".into());
            admin.state.metrics.store_failed(&error);
            assert_eq!(admin.state.ready().store, "down");
            let told = admin.state.ready().store_error.expect("a reason");
            assert_eq!(told, error.to_string());
            assert_eq!(admin.state.ready().ready, !follows);
            admin.state.metrics.store_answered();
            assert!(admin.state.ready().ready);
            assert_eq!(admin.state.ready().store_error, None);
        }
    }

    #[tokio::test]
    async fn another_route_table_shows_and_does_not_count() {
        let admin = started(true).await;
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
        admin.state.routes.observe(me, &[row]);
        assert_eq!(admin.state.ready().other_route_tables, [other.to_string()]);
        assert!(admin.state.ready().ready);
    }

    #[tokio::test]
    async fn draining_is_never_ready() {
        let admin = started(false).await;
        admin.state.readiness.draining.cancel();
        assert!(!admin.state.ready().ready);
    }
}
