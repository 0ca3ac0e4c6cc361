//! Any login of the database can send a notification. None is believed: each is a hint to look at the store.

use crate::support::{Config, Proxy, Store, Upstream, eventually, put};

/// Sends this many notifications about the resource, as a fencepost would, of tokens from 2^62 on.
async fn forge(store: &Store, resource: &str, count: u64) {
    // The channel of the namespace of these tests.
    let channel = "'fencepost_' || left(encode(sha256('orders'), 'hex'), 16)";
    let payload = format!(
        r#"'{{"k":"newer","r":"{resource}","t":"' || 4611686018427387904 + i || '","e":0}}'"#
    );
    store
        .execute(&format!(
            "SELECT pg_notify({channel}, {payload}) FROM generate_series(1, {count}) AS i"
        ))
        .await;
}

#[tokio::test]
async fn a_forged_notification_moves_no_mark_and_closes_no_epoch() {
    let Some(store) = Store::postgres("a_forged_notification_…").await else {
        return;
    };
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &store)
        .with("{ store: { lease: 60s }, barrier: { wait: 25s, settle: 300s } }");
    let (a, b) = (Proxy::start(&config).await, Proxy::start(&config).await);
    a.send(put("/orders/7").token(41)).await.assert_forwarded();
    a.send(put("/orders/9").token(1)).await.assert_forwarded();
    for count in [1, 5000] {
        for resource in ["order:7", "order:8"] {
            forge(&store, resource, count).await;
        }
        // A true one that comes after them is heard, and the epoch closes.
        let token = 1 + count;
        b.send(put("/orders/9").token(token))
            .await
            .assert_forwarded();
        a.send(put("/orders/9").token(1))
            .await
            .assert_problem(412, "stale-token");
        a.send(put("/orders/9").token(token))
            .await
            .assert_forwarded();
        for proxy in [&a, &b] {
            for order in ["/orders/7", "/orders/8"] {
                proxy.send(put(order).token(41)).await.assert_forwarded();
            }
        }
    }
    let open = "SELECT count(*) FROM epochs WHERE resource = 'order:7' AND token = 41";
    assert_eq!(store.number(open).await, 2, "one at each");
    assert_eq!(a.token("order:7").await, Some(41));
    b.send(put("/orders/7").token(42)).await.assert_forwarded();
    eventually("A knows of 42", || async {
        let answer = a.send(put("/orders/7").token(41)).await;
        (answer.status() == 412).then_some(())
    })
    .await;
    upstream.assert_no_overtaking();
}
