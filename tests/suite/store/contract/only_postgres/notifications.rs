//! Notifications: they are heard in their namespace, and again after a break.

use super::*;
use crate::support::Must;

async fn next(heard: &mut Receiver<Heard>) -> Heard {
    tokio::time::timeout(TIMEOUT, heard.recv())
        .must()
        .await
        .expect("the listening goes on")
}

#[tokio::test]
async fn news_is_heard_in_its_namespace_and_after_a_break() {
    let (url, store) = or_return!(fresh().await);
    let other = PostgresStore::open(Secret::Literal(url.clone()), "other", TIMEOUT, true)
        .must()
        .await;
    let mut heard = store.listen().expect("it is shared");
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    let newer = Notification::Newer {
        resource: key("order:ü\"7"),
        token: token(i64::MAX),
        era: 3,
        owner: Some(instance(1)),
    };
    let closed = Notification::Closed { resource: key("a") };
    let elsewhere = Notification::Closed { resource: key("b") };
    other.announce(&[elsewhere]).must().await;
    store
        .announce(&[newer.clone(), closed.clone()])
        .must()
        .await;
    assert_eq!(next(&mut heard).await, Heard::Notification(newer.clone()));
    assert_eq!(next(&mut heard).await, Heard::Notification(closed));
    let mut shell = shell(&url).await;
    sql(
        &mut shell,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    // The writer's connection broke too; it says so at most once.
    if store.announce(std::slice::from_ref(&newer)).await.is_err() {
        store.announce(std::slice::from_ref(&newer)).must().await;
    }
    assert_eq!(next(&mut heard).await, Heard::Notification(newer));
    drop(heard);
    until(
        &mut shell,
        "the listening ended",
        "SELECT (count(*) = 0)::int::bigint FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
         AND (query LIKE '%LISTEN%' OR query LIKE 'SELECT 1')",
    )
    .await;
}
