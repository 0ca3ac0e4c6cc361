//! The rows of operations: one attempt at a time may send, and only its name changes a row.

use std::time::Duration;

use fencepost::store::{Attempt, AttemptEnd, AttemptKey, MarkStore, OperationState};

use super::*;

const DAY: Duration = Duration::from_hours(24);

fn named(name: &str) -> AttemptKey {
    AttemptKey {
        resource: key("order:7"),
        operation: "charge".to_owned(),
        attempt: name.to_owned(),
    }
}

pub fn attempt(name: &str, number: i64) -> Attempt {
    Attempt {
        key: named(name),
        digest: "of a request".to_owned(),
        token: token(number),
        instance: instance(1),
    }
}

async fn begin(store: &dyn MarkStore, name: &str, number: i64) -> (String, OperationState) {
    let found = store.begin_operation(&attempt(name, number)).must().await;
    assert_eq!(found.digest, "of a request");
    (found.attempt, found.state)
}

async fn know(store: &dyn MarkStore, name: &str, remember: Duration) -> bool {
    let of = named(name);
    let end = AttemptEnd::Known("{}", remember);
    store.end_operation(&of, end).must().await
}

async fn forget(store: &dyn MarkStore, name: &str) -> bool {
    let end = AttemptEnd::Undone;
    store.end_operation(&named(name), end).must().await
}

async fn settle(store: &dyn MarkStore, name: &str) -> bool {
    let end = AttemptEnd::Settled;
    store.end_operation(&named(name), end).must().await
}

fn sent() -> OperationState {
    OperationState::Sent(false)
}

pub async fn one_attempt_may_send(home: Home) {
    let store = home.open().await;
    assert_eq!(begin(&*store, "a", 41).await, ("a".to_owned(), sent()));
    // Another one finds the first, by whose name alone a row is changed.
    assert_eq!(begin(&*store, "b", 42).await, ("a".to_owned(), sent()));
    assert!(!know(&*store, "b", DAY).await && !forget(&*store, "b").await);
    assert!(!store.retake_operation(&attempt("b", 42), "c").must().await);
    assert!(!settle(&*store, "b").await);
    assert_eq!(begin(&*store, "c", 42).await, ("a".to_owned(), sent()));
    // It gives back what it has not sent.
    assert!(forget(&*store, "a").await);
    assert_eq!(begin(&*store, "c", 42).await, ("c".to_owned(), sent()));
    assert!(settle(&*store, "c").await);
    assert_eq!(begin(&*store, "d", 42).await.1, OperationState::Settled);
    // Of those that take its place, one does.
    assert!(store.retake_operation(&attempt("d", 43), "c").must().await);
    assert!(!store.retake_operation(&attempt("e", 43), "c").must().await);
    assert!(!know(&*store, "c", DAY).await, "its time is over");
    assert!(know(&*store, "d", DAY).await && !know(&*store, "d", DAY).await);
    let known = OperationState::Known("{}".to_owned());
    assert_eq!(
        begin(&*store, "f", 44).await,
        ("d".to_owned(), known.clone())
    );
    assert!(!forget(&*store, "d").await, "what is known stays");
    assert!(!store.retake_operation(&attempt("f", 44), "d").must().await);
    let store = home.reopen(store).await;
    assert_eq!(begin(&*store, "f", 44).await, ("d".to_owned(), known));
}

pub async fn an_attempt_settles_with_its_instance(home: Home) {
    let store = home.open().await;
    join(&*store, 1).await;
    begin(&*store, "a", 41).await;
    assert_eq!(begin(&*store, "b", 41).await.1, sent());
    store.declare_dead(instance(1), 0).must().await;
    assert_eq!(
        begin(&*store, "b", 41).await.1,
        sent(),
        "it may be in flight"
    );
    let unknown = store.unknown_operations("order:", None, 10).must().await;
    assert!(!unknown[0].settled);
    assert!(store.settle(instance(1)).must().await);
    assert_eq!(begin(&*store, "b", 41).await.1, OperationState::Sent(true));
    let unknown = store
        .unknown_operations("order:", Some("charge"), 10)
        .must()
        .await;
    assert_eq!(
        (unknown.len(), unknown[0].settled, &*unknown[0].key.attempt),
        (1, true, "a")
    );
    assert_eq!(unknown[0].token, token(41));
    for none in [("order:", Some("other")), ("job:", None)] {
        let unknown = store.unknown_operations(none.0, none.1, 10).must().await;
        assert_eq!(unknown, []);
    }
}

pub async fn only_known_outcomes_expire(home: Home) {
    let store = home.open().await;
    begin(&*store, "a", 41).await;
    assert_eq!(store.expire_operations().must().await, 0);
    assert!(know(&*store, "a", DAY).await);
    assert_eq!(store.expire_operations().must().await, 0);
    home.sql("UPDATE operations SET expires = expires - 86400001")
        .await;
    assert_eq!(store.expire_operations().must().await, 1);
    assert_eq!(begin(&*store, "b", 42).await, ("b".to_owned(), sent()));
    assert!(settle(&*store, "b").await);
    assert_eq!(store.expire_operations().must().await, 0);
    assert_eq!(begin(&*store, "c", 43).await.0, "b");
}
