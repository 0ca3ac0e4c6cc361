//! Requests that wait for a mark's row: what was decided before they got its lock is decided anew under
//! it (guarantees G2 and G3). The row is held by a session of the test's own, so that the order of those
//! who wait is the test's.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use crate::support::{Config, Gate, Proxy, Step, Store, Upstream, eventually, put, soon};

/// Two proxies that have all the patience these tests need, and a session that holds the row of
/// `order:7`, whose mark is 40.
async fn held(test: &str) -> Option<(Upstream, Proxy, Proxy, PgConnection)> {
    let store = Store::postgres(test).await?;
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store)
        .with("{ barrier: { wait: 25s }, store: { timeout: 50s, lease: 60s } }");
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    a.send(put("/orders/7").token(40)).await.assert_forwarded();
    let mut holder = PgConnection::connect(&store.url())
        .await
        .expect("the server is up");
    sqlx::raw_sql("BEGIN; SELECT * FROM marks WHERE resource = 'order:7' FOR UPDATE")
        .execute(&mut holder)
        .await
        .expect("the row is there");
    Some((upstream, a, b, holder))
}

/// Waits until so many statements wait for a row's lock.
async fn queued(holder: &mut PgConnection, count: i64) {
    const WAIT: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND datname = current_database()";
    for _ in 0..3000 {
        // What a transaction has seen of the statistics it keeps seeing.
        sqlx::raw_sql("SELECT pg_stat_clear_snapshot()")
            .execute(&mut *holder)
            .await
            .expect("the session lives");
        let waiting: i64 = sqlx::query_scalar(WAIT)
            .fetch_one(&mut *holder)
            .await
            .expect("the session lives");
        if waiting == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {count} statements that wait for the row");
}

async fn let_go(mut holder: PgConnection) {
    sqlx::raw_sql("COMMIT")
        .execute(&mut holder)
        .await
        .expect("the session lives");
}

/// The statement of 42 began, and took its snapshot, before 41 had an epoch.
#[tokio::test]
async fn an_epoch_that_was_opened_while_a_newer_token_waited_for_the_row_is_seen() {
    let Some((upstream, a, b, mut holder)) = held("an_epoch_that_was_opened_while_…").await
    else {
        return;
    };
    let gate = Gate::shut();
    upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let older = a.start_request(put("/orders/7").token(41));
    queued(&mut holder, 1).await;
    let newer = b.start_request(put("/orders/7").token(42));
    queued(&mut holder, 2).await;
    let_go(holder).await;
    upstream
        .until("41 at work", |all| {
            all.iter().any(|one| one.token() == Some(41))
        })
        .await;
    b.waiting("order:7", 1).await;
    assert_eq!(upstream.tokens("order:7"), [40, 41], "42 waits");
    gate.open();
    for held in [older, newer] {
        soon("both", held)
            .await
            .expect("no panic")
            .assert_forwarded();
    }
    upstream.assert_no_overtaking();
}

/// Both were sent while the mark was 40; the newer one gets the row first.
#[tokio::test]
async fn of_two_that_wait_for_the_row_the_older_is_refused_behind_the_newer() {
    let Some((upstream, a, b, mut holder)) = held("of_two_that_wait_for_the_row_…").await else {
        return;
    };
    let newer = b.start_request(put("/orders/7").token(42));
    queued(&mut holder, 1).await;
    let older = a.start_request(put("/orders/7").token(41));
    queued(&mut holder, 2).await;
    let_go(holder).await;
    soon("42", newer)
        .await
        .expect("no panic")
        .assert_forwarded();
    let problem = soon("41", older)
        .await
        .expect("no panic")
        .assert_problem(412, "stale-token");
    assert_eq!(problem["mark"], "42");
    assert_eq!(upstream.tokens("order:7"), [40, 42]);
    eventually("both say 42", || async {
        (a.token("order:7").await == Some(42) && b.token("order:7").await == Some(42)).then_some(())
    })
    .await;
    upstream.assert_no_overtaking();
}
