//! The relay between proxy and Postgres: it fails where a test wants it, and knows every statement
//! that a proxy sends.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::postgres::{Cluster, free_port};
use crate::support::relay::{ALL, Action, Point, Relay, Statement};
use crate::support::{
    Config, Must, Proxy, Store, Upstream, all_forwarded, eventually, joined, or_return, post, put,
    soon,
};

/// A database with an empty table, and a relay in front of its server.
async fn table() -> Option<(String, Relay)> {
    let store = Store::postgres().await?;
    let url = store.url();
    run(&mut connect(&url).await, "CREATE TABLE t (n bigint)")
        .must()
        .await;
    Some((url, Relay::start(Cluster::shared().port()).await))
}

async fn connect(url: &str) -> PgConnection {
    try_connect(url).must().await
}

async fn try_connect(url: &str) -> sqlx::Result<PgConnection> {
    let options: PgConnectOptions = url.parse().expect("a URL");
    soon("a connection", options.connect()).await
}

async fn run(connection: &mut PgConnection, sql: &'static str) -> sqlx::Result<()> {
    soon(sql, sqlx::query(sql).execute(connection)).await?;
    Ok(())
}

/// How many rows there are, by another way than the relay.
async fn rows(url: &str) -> i64 {
    let mut direct = connect(url).await;
    let count = sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut direct);
    soon("the count", count).must().await
}

const INSERT: &str = "INSERT INTO t VALUES (1)";

#[tokio::test]
async fn what_is_held_before_the_server_happens_when_released() {
    let (url, relay) = or_return!(table().await);
    let mut client = connect(&relay.url(&url)).await;
    run(&mut client, INSERT).must().await;
    assert_eq!(rows(&url).await, 1);

    let trap = relay.arm(Point::Before(Statement::Any), Action::Hold);
    assert!(!trap.has_sprung());
    let held = tokio::spawn(async move { run(&mut client, INSERT).await });
    trap.sprung().await;
    assert_eq!(rows(&url).await, 1, "it is held");
    trap.release();
    joined(held).must().await;
    assert_eq!(rows(&url).await, 2);
}

#[tokio::test]
async fn what_is_held_after_the_server_has_happened() {
    let (url, relay) = or_return!(table().await);
    let mut client = connect(&relay.url(&url)).await;
    let trap = relay.arm(Point::After(Statement::Any), Action::Hold);
    let held = tokio::spawn(async move { run(&mut client, INSERT).await });
    trap.sprung().await;
    assert_eq!(rows(&url).await, 1);
    assert!(!held.is_finished());
    drop(trap);
    joined(held).must().await;
}

#[tokio::test]
async fn a_cut_is_an_error_before_and_after_the_commit() {
    let (url, relay) = or_return!(table().await);
    for (point, inserted) in [
        (Point::Before(Statement::Any), 0),
        (Point::After(Statement::Any), 1),
    ] {
        let mut client = connect(&relay.url(&url)).await;
        let trap = relay.arm(point, Action::Cut);
        run(&mut client, INSERT).await.expect_err("it is cut");
        trap.sprung().await;
        assert_eq!(rows(&url).await, inserted, "{point:?}");
        let mut next = connect(&relay.url(&url)).await;
        run(&mut next, "SELECT 1").must().await;
    }
}

#[tokio::test]
async fn what_was_held_when_its_client_was_cut_off_happens_late() {
    let (url, relay) = or_return!(table().await);
    let mut client = connect(&relay.url(&url)).await;
    let trap = relay.arm(Point::Before(Statement::Any), Action::Hold);
    let held = tokio::spawn(async move { run(&mut client, INSERT).await });
    trap.sprung().await;
    relay.cut_all();
    joined(held).await.expect_err("it is cut");
    assert_eq!(rows(&url).await, 0);
    trap.release();
    eventually("it commits", || async {
        (rows(&url).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_named_point_is_passed_by_its_own_statement_only() {
    let (url, relay) = or_return!(table().await);
    let mut client = connect(&relay.url(&url)).await;
    let trap = relay.arm(Point::Before(Statement::Notify), Action::Cut);
    run(&mut client, INSERT).must().await;
    assert!(!trap.has_sprung());
    // Prepared by name, and then executed by it alone.
    let notify = "SELECT pg_notify('x', 'y')";
    run(&mut client, notify).await.expect_err("it is cut");
    assert!(trap.has_sprung());
    let mut client = connect(&relay.url(&url)).await;
    for sent in 1..=3 {
        run(&mut client, notify).must().await;
        assert_eq!(relay.passed(Statement::Notify), sent);
    }
}

#[tokio::test]
async fn notifications_are_lost_or_late_as_told() {
    let (url, relay) = or_return!(table().await);
    let mut listener = sqlx::postgres::PgListener::connect(&relay.url(&url))
        .must()
        .await;
    listener.listen("x").must().await;
    let mut direct = connect(&url).await;
    let mut heard = async || {
        soon("news", listener.recv())
            .must()
            .await
            .payload()
            .to_owned()
    };
    relay.lose_notifications(true);
    run(&mut direct, "NOTIFY x, 'lost'").must().await;
    // The server delivers it with the answer at the latest; what comes after it is not lost.
    let mut witness = sqlx::postgres::PgListener::connect(&url).must().await;
    witness.listen("x").must().await;
    run(&mut direct, "NOTIFY x, 'lost too'").must().await;
    soon("a witness", witness.recv()).must().await;
    eventually("the relay has dropped both", || async {
        (relay.lost() == 2).then_some(())
    })
    .await;
    relay.hold_notifications(true);
    run(&mut direct, "NOTIFY x, 'late'").must().await;
    relay.hold_notifications(false);
    assert_eq!(heard().await, "late");
}

#[tokio::test]
async fn a_slow_or_closed_way_is_one() {
    let (url, relay) = or_return!(table().await);
    let each_way = Duration::from_millis(100);
    let mut client = connect(&relay.url(&url)).await;
    run(&mut client, INSERT).must().await;
    relay.delay(each_way);
    let began = std::time::Instant::now();
    run(&mut client, INSERT).must().await;
    assert!(began.elapsed() >= each_way * 2);
    relay.delay(Duration::ZERO);

    let trap = relay.arm(Point::After(Statement::Any), Action::Delay(each_way));
    let began = std::time::Instant::now();
    run(&mut client, INSERT).must().await;
    assert!(trap.has_sprung() && began.elapsed() >= each_way);

    relay.refuse(true);
    try_connect(&relay.url(&url))
        .await
        .expect_err("it is closed");
    run(&mut client, INSERT).must().await;
    relay.refuse(false);
    relay.retarget(free_port());
    try_connect(&relay.url(&url))
        .await
        .expect_err("nobody is there");
    relay.retarget(Cluster::shared().port());
    connect(&relay.url(&url)).await;
    drop(relay);
    run(&mut client, INSERT)
        .await
        .expect_err("it ended with the relay");
}

#[tokio::test]
async fn a_cancel_is_seen() {
    let (url, relay) = or_return!(table().await);
    let relayed = relay.url(&url);
    let (_, port) = relayed.rsplit_once(':').expect("a port");
    let port = port.split('/').next().and_then(|port| port.parse().ok());
    let mut stream = TcpStream::connect(("127.0.0.1", port.expect("a port")))
        .must()
        .await;
    let mut cancel = Vec::new();
    for word in [16_u32, 80_877_102, 1, 1] {
        cancel.extend_from_slice(&word.to_be_bytes());
    }
    stream.write_all(&cancel).must().await;
    let mut end = Vec::new();
    soon("the end", stream.read_to_end(&mut end)).must().await;
    assert_eq!((end.len(), relay.cancels()), (0, 1));
}

/// Leads proxies through everything that a store is asked.
#[tokio::test]
async fn every_statement_of_a_proxy_is_recognised() {
    let store = or_return!(Store::postgres().await);
    let url = store.url();
    let relay = Relay::start(Cluster::shared().port()).await;
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store)
        .with("{ upstream: { undelivered: 500ms }, store: { lease: 4s } }")
        .with("barrier: { wait: 25s, settle: 500ms }")
        .with(&format!("store: {{ url: '{}' }}", relay.url(&url)));
    let nobody = Config::to(&format!("http://127.0.0.1:{}", free_port()), &store)
        .with(&format!("store: {{ url: '{}' }}", relay.url(&url)))
        .route("reuse: once");
    let seen = async |what: Statement| {
        relay.until_passed(what, 1).await;
    };

    let (mut a, mut b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    for statement in [Statement::Join, Statement::Renew, Statement::Instances] {
        seen(statement).await;
    }
    // A newer token at B waits for an older one at A.
    let (older, gate) = a.held(&upstream, put("/orders/1").token(1)).await;
    let newer = b.start_request(put("/orders/1").token(2));
    seen(Statement::Notify).await;
    gate.open();
    all_forwarded([older, newer]).await;
    for statement in [Statement::Advance, Statement::Look, Statement::Cede] {
        seen(statement).await;
    }
    // An exchange that never began gives its token back.
    let mut unlucky = Proxy::start(&nobody).await;
    unlucky
        .refuse(post("/orders/2").token(1), 502, "upstream-unreachable")
        .await;
    seen(Statement::GiveBack).await;
    unlucky.stop().await;
    seen(Statement::Leave).await;
    // A route that remembers outcomes.
    let mut remembers = Proxy::start(&config.clone().route("outcome: {}")).await;
    let named = put("/orders/4").token(1).header("X-Fencing-Operation", "o");
    remembers.forward(named).await;
    for statement in [Statement::BeginOperation, Statement::KnowOperation] {
        seen(statement).await;
    }
    remembers.stop().await;
    // After an outage A looks at the rows of its epochs, and writes the lost one back.
    a.send(put("/orders/3").token(1)).await.assert_forwarded();
    b.kill9();
    run(&mut connect(&url).await, "UPDATE marks SET open = '{}'")
        .must()
        .await;
    let cut = relay.arm(Point::Before(Statement::Renew), Action::Cut);
    cut.sprung().await;
    for statement in [Statement::Repair, Statement::DeclareDead, Statement::Settle] {
        seen(statement).await;
    }
    a.stop().await;
    for (statement, _) in ALL {
        assert!(relay.passed(statement) > 0, "{statement:?}");
    }
    assert_eq!(relay.cancels(), 0, "no cancel is ever sent");
}
