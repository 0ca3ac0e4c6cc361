//! What a person on call follows: the instance's one name, and one line per refusal that says whose
//! request it was.

use serde_json::{Value, json};

use crate::support::{Config, Proxy, Step, Store, Upstream, eventually, get, over_both_stores, put};

/// The name that stands everywhere.
fn name(proxy: &Proxy) -> String {
    let logs = proxy.logs();
    let names: Vec<_> = logs.iter().map(|line| line["instance"].clone()).collect();
    let name = names[0].as_str().expect("each line names it").to_owned();
    assert!(names.iter().all(|other| *other == *name), "{names:?}");
    name
}

over_both_stores! {
async fn the_instance_has_one_name_everywhere(store: Store) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, &store)).await;
    upstream.next([Step::ok()]);
    let answer = proxy.send(put("/orders/7").token(5)).await;
    answer.assert_forwarded();
    let name = name(&proxy);
    assert_eq!(name.len(), 16, "{name}");

    let via = format!("1.1 fencepost-{name}");
    assert_eq!(answer.header("via"), Some(via.as_str()));
    assert_eq!(proxy.ask("/readyz").await.json()["instance"], name);
    let mark = proxy.ask("/v1/marks/order:7").await.json();
    assert_eq!(mark["instance"], name);
    assert_eq!(proxy.metrics().await.sum("fencepost_instance_info", &[("id", &name)]), 1.0);
    let rows = store.number(&format!("SELECT count(*) FROM instances WHERE id = '{name}'"));
    assert_eq!(rows.await, 1);
    if store.is_shared() {
        let sessions = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost-{name}'"
        );
        assert!(store.number(&sessions).await > 0);
    }
}
}

#[tokio::test]
async fn a_refusal_says_whose_request_it_was() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start(&config).await;
    proxy.send(put("/orders/7").token(5)).await.assert_forwarded();
    let stale = put("/orders/7?code=secret")
        .token(4)
        .header("X-Request-Id", "checkout-17")
        .header("X-Forwarded-For", "192.0.2.7")
        .header("User-Agent", "payments/2.1")
        .header("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let answer = proxy.send(stale).await;
    answer.assert_problem(412, "stale-token");
    assert_eq!(answer.header("x-request-id"), Some("checkout-17"));

    let about = json!({
        "route": "/orders/{id}", "resource": "order:7", "token": "4", "mark": "5", "gap": "1",
        "outcome": "stale-token", "method": "PUT", "path": "/orders/7", "status": 412,
        "client": "127.0.0.1", "forwarded_for": "192.0.2.7", "user_agent": "payments/2.1",
        "request_id": "checkout-17", "trace_id": "0af7651916cd43dd8448eb211c80319c",
    });
    let line = proxy.logged("the refusal", |line| line["message"] == "refused").await;
    let listed = proxy.ask("/v1/rejections").await.json()["rejections"][0].clone();
    for (field, value) in about.as_object().expect("an object") {
        assert_eq!(&line[field], value, "{field} in {line}");
        assert_eq!(&listed[field], value, "{field} in {listed}");
    }
    assert_eq!(line["instance"], name(&proxy));
}

#[tokio::test]
async fn the_query_is_logged_where_it_is_wanted() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite()).with("log: { query: true }");
    let proxy = Proxy::start(&config).await;
    proxy.send(put("/orders/7?code=x")).await.assert_problem(428, "token-required");
    let line = proxy.logged("the refusal", |line| line["message"] == "refused").await;
    assert_eq!(line["path"], "/orders/7?code=x");
}

/// The upstream, the client and the log have one id of a request: the client's own, or one made
/// here.
#[tokio::test]
async fn a_request_id_is_passed_on_or_made() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite())).await;
    proxy.send(get("/orders/7").header("X-Request-Id", "mine")).await.assert_forwarded();
    assert_eq!(upstream.last().head.get("x-request-id"), Some("mine"));
    proxy.send(put("/orders/7").token(1)).await.assert_forwarded();
    let arrival = upstream.last();
    let made = arrival.head.get("x-request-id").expect("made");
    assert!(made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{made}");
    let refused = proxy.send(put("/orders/7")).await;
    let id = Value::from(refused.header("x-request-id").expect("made"));
    eventually("its line", || async {
        proxy.logs().iter().find(|line| line["request_id"] == id).map(drop)
    })
    .await;
}
