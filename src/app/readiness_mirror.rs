//! The readiness probe's view of the store and of the other instances.

use std::sync::Arc;
use std::time::Duration;

use crate::admin::Readiness;
use crate::fencing::Fencing;
use crate::store::routes::RouteRecord;

/// The interval at which the readiness probe's view of the store is updated.
const MIRROR: Duration = Duration::from_millis(200);

/// Keeps it up to date until it is aborted.
pub(super) async fn mirror(
    readiness: Arc<Readiness>,
    fencing: Arc<Fencing>,
    routes: Arc<RouteRecord>,
) {
    let mut tick = tokio::time::interval(MIRROR);
    loop {
        tick.tick().await;
        let (up, why) = fencing.store_status();
        readiness.set_store_up(up, why);
        let others = routes.others();
        readiness.set_other_route_tables(others.iter().map(ToString::to_string).collect());
    }
}
