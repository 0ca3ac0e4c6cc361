//! The relay between proxy and Postgres holds notifications back where a test wants it.

use std::time::Duration;

use sqlx::postgres::PgListener;

use crate::support::postgres::Cluster;
use crate::support::relay::Relay;
use crate::support::{Must, Store, or_return, soon};

#[tokio::test]
async fn notifications_are_as_late_as_told() {
    let store = or_return!(Store::postgres().await);
    let relay = Relay::start(Cluster::shared().port()).await;
    let relayed = relay.url(&store.url());
    let mut listener = PgListener::connect(&relayed).must().await;
    listener.listen("x").must().await;
    relay.hold_notifications(true);
    store.execute("NOTIFY x, 'late'").await;
    let early = tokio::time::timeout(Duration::from_millis(100), listener.recv());
    early.await.expect_err("it is held");
    relay.hold_notifications(false);
    let heard = soon("the notification", listener.recv()).must().await;
    assert_eq!(heard.payload(), "late");
}
