//! Notifications: they are heard in their namespace, and again after a break.

use std::sync::Arc;

use super::super::{Home, script};
use super::*;
use crate::support::Must;

#[tokio::test]
async fn news_is_heard_in_its_namespace_and_after_a_break() {
    let database = or_return!(Store::postgres().await);
    let home = Home(database.clone());
    let (store, other) = (home.open().await, home.open_in("other").await);
    let mut listening = store.listen().expect("it is shared");
    let mut next = async || {
        let heard = tokio::time::timeout(TIMEOUT, listening.recv()).must();
        heard.await.expect("the listening goes on")
    };
    assert_eq!(next().await, Heard::Resumed);
    let closed = |resource: &str| Notification {
        resource: key(resource),
        waits: None,
        to: None,
    };
    let odd = "order:ü\"7\\";
    let waiting = Notification::to(instance(1), &key(odd), token(i64::MAX));
    other.notify(&[closed("b")]).must().await;
    let both = [waiting.clone(), closed("a")];
    store.notify(&both).must().await;
    for sent in both {
        assert_eq!(next().await, Heard::Notification(sent));
    }
    // A cede tells all of each of its rows, once.
    let ceded = format!(
        "advance {odd} 1 #1..2
         advance c 1 #1..2
         cede {odd}:1#1@1 {odd}:1#2@1 c:1#1@1 c:1#2@1 = c {odd}"
    );
    script::play_on(&home, Arc::clone(&store), &ceded).await;
    for resource in ["c", odd] {
        assert_eq!(next().await, Heard::Notification(closed(resource)));
    }
    let mut shell = database.direct().await;
    sql(&mut shell, END_THE_OTHERS).await;
    assert_eq!(next().await, Heard::Resumed);
    // The connection that notifies broke too; it says so at most once.
    let again = std::slice::from_ref(&waiting);
    if store.notify(again).await.is_err() {
        store.notify(again).must().await;
    }
    assert_eq!(next().await, Heard::Notification(waiting));
    drop(listening);
    let ended = "SELECT (count(*) = 0)::int::bigint FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid() \
        AND (query LIKE '%LISTEN%' OR query LIKE 'SELECT 1')";
    until(&mut shell, "the listening ended", ended).await;
}
