//! The relay between proxy and Postgres fails where a test wants it.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgListener};
use sqlx::{ConnectOptions as _, PgConnection};

use crate::support::postgres::Cluster;
use crate::support::relay::{Action, Point, Relay, Statement};
use crate::support::{Must, Store, joined, or_return, soon};

/// A database with an empty table, and a relay in front of its server.
struct RelayRig {
    store: Store,
    relay: Relay,
}

impl RelayRig {
    async fn start() -> Option<Self> {
        let store = Store::postgres().await?;
        store.execute("CREATE TABLE t (n bigint)").await;
        let relay = Relay::start(Cluster::shared().port()).await;
        Some(Self { store, relay })
    }

    async fn connect(&self) -> PgConnection {
        let url = self.relay.url(&self.store.url());
        let options: PgConnectOptions = url.parse().expect("a URL");
        soon("a connection", options.connect()).must().await
    }

    /// How many rows there are, by another way than the relay.
    async fn rows(&self) -> i64 {
        self.store.number("SELECT count(*) FROM t").await
    }
}

async fn run(connection: &mut PgConnection, sql: &'static str) -> sqlx::Result<()> {
    soon(sql, sqlx::query(sql).execute(connection)).await?;
    Ok(())
}

const INSERT: &str = "INSERT INTO t VALUES (1)";

#[tokio::test]
async fn what_is_held_or_cut_has_happened_after_the_server_and_not_before() {
    let rig = or_return!(RelayRig::start().await);
    for (point, done) in [
        (Point::Before(Statement::Any), 0),
        (Point::After(Statement::Any), 1),
    ] {
        for action in [Action::Hold, Action::Cut] {
            let (before, mut client) = (rig.rows().await, rig.connect().await);
            let trap = rig.relay.arm(point, action);
            let call = tokio::spawn(async move { run(&mut client, INSERT).await });
            trap.sprung().await;
            assert_eq!(rig.rows().await, before + done, "{point:?} {action:?}");
            if action == Action::Cut {
                joined(call).await.expect_err("it is cut");
                continue;
            }
            assert!(!call.is_finished());
            trap.release();
            joined(call).must().await;
            assert_eq!(rig.rows().await, before + 1);
        }
    }
}

#[tokio::test]
async fn what_was_held_when_its_client_was_cut_off_happens_late() {
    let rig = or_return!(RelayRig::start().await);
    let mut client = rig.connect().await;
    let trap = rig.relay.hold(Point::Before(Statement::Any));
    let held = tokio::spawn(async move { run(&mut client, INSERT).await });
    trap.sprung().await;
    rig.relay.cut_all();
    joined(held).await.expect_err("it is cut");
    assert_eq!(rig.rows().await, 0);
    trap.release();
    rig.store.until("SELECT count(*) FROM t", 1).await;
}

#[tokio::test]
async fn a_slow_way_is_one() {
    let rig = or_return!(RelayRig::start().await);
    let each_way = Duration::from_millis(100);
    let mut client = rig.connect().await;
    rig.relay.delay(each_way);
    let began = Instant::now();
    run(&mut client, INSERT).must().await;
    assert!(began.elapsed() >= each_way * 2);
    rig.relay.delay(Duration::ZERO);
    let slow = Action::Delay(each_way);
    let trap = rig.relay.arm(Point::After(Statement::Any), slow);
    let began = Instant::now();
    run(&mut client, INSERT).must().await;
    assert!(trap.has_sprung() && began.elapsed() >= each_way);
}

#[tokio::test]
async fn notifications_are_as_late_as_told() {
    let rig = or_return!(RelayRig::start().await);
    let relayed = rig.relay.url(&rig.store.url());
    let mut listener = PgListener::connect(&relayed).must().await;
    listener.listen("x").must().await;
    rig.relay.hold_notifications(true);
    rig.store.execute("NOTIFY x, 'late'").await;
    let early = tokio::time::timeout(Duration::from_millis(100), listener.recv());
    early.await.expect_err("it is held");
    rig.relay.hold_notifications(false);
    let heard = soon("the notification", listener.recv()).must().await;
    assert_eq!(heard.payload(), "late");
}
