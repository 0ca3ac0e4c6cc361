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
    let other = PostgresStore::open(address(&url), "other", TIMEOUT, true)
        .must()
        .await;
    let mut heard = store.listen().expect("it is shared");
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    let closed = |resource: &str| Notification {
        resource: key(resource),
        waits: None,
        to: None,
    };
    let waiting = Notification {
        waits: Some(token(i64::MAX)),
        to: Some(instance(1)),
        ..closed("order:ü\"7\\")
    };
    other.notify(&[closed("b")]).must().await;
    let both = [waiting.clone(), closed("a")];
    store.notify(&both).must().await;
    for sent in both {
        assert_eq!(next(&mut heard).await, Heard::Notification(sent));
    }
    // A cede tells all of each of its rows, once.
    for resource in ["order:ü\"7\\", "c"] {
        advance(&store, opening(resource, 1, 1)).await;
        advance(&store, opening(resource, 2, 2)).await;
    }
    let epochs = [epoch(1, 1, 1), epoch(1, 2, 2)];
    let named = |resource: &str| epochs.map(|epoch| (key(resource), epoch));
    let ceded = [named("order:ü\"7\\"), named("c")].concat();
    assert_eq!(store.cede(&ceded).must().await.len(), 2);
    for resource in ["c", "order:ü\"7\\"] {
        assert_eq!(
            next(&mut heard).await,
            Heard::Notification(closed(resource))
        );
    }
    let mut shell = shell(&url).await;
    sql(
        &mut shell,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    assert_eq!(next(&mut heard).await, Heard::Resumed);
    // The connection that notifies broke too; it says so at most once.
    let again = std::slice::from_ref(&waiting);
    if store.notify(again).await.is_err() {
        store.notify(again).must().await;
    }
    assert_eq!(next(&mut heard).await, Heard::Notification(waiting));
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
