//! What a person on call follows: the instance's one name, and one line per refusal that says whose
//! request it was.

use serde_json::{Value, json};

use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, fenced, get, over_both_stores, put,
};

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
    let (_upstream, proxy) = Proxy::before(&store, "{}").await;
    let answer = proxy.forward(put("/orders/7").token(5)).await;
    let name = name(&proxy);
    assert_eq!(name.len(), 12, "{name}");

    let via = format!("1.1 fencepost-{name}");
    assert_eq!(answer.header("via"), Some(via.as_str()));
    assert_eq!(proxy.ask("/readyz").await.json()["instance"], name);
    let mark = proxy.ask("/v1/marks/order:7").await.json();
    assert_eq!(mark["instance"], name);
    assert_eq!(proxy.count("fencepost_instance_info", &[("id", &name)]).await, 1);
    let id = store.number("SELECT id >> 16 FROM instances").await;
    assert_eq!(format!("{id:012x}"), name);
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
    let (_upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let stale = put("/orders/7?code=secret")
        .token(4)
        .header("X-Request-Id", "checkout-17")
        .header("X-Forwarded-For", "192.0.2.7")
        .header("User-Agent", "payments/2.1")
        .header("Traceparent", context);
    let answer = proxy.send(stale).await;
    answer.assert_problem(412, "stale-token");
    assert_eq!(answer.header("x-request-id"), Some("checkout-17"));

    let about = json!({
        "route": "/orders/{id}", "resource": "order:7", "token": "4", "mark": "5", "gap": "1",
        "outcome": "stale-token", "method": "PUT", "path": "/orders/7", "status": 412,
        "client": "127.0.0.1", "forwarded_for": "192.0.2.7", "user_agent": "payments/2.1",
        "request_id": "checkout-17", "trace_id": "0af7651916cd43dd8448eb211c80319c",
    });
    let line = proxy.log_of("message", "refused").await;
    let listed = proxy.ask("/v1/rejections").await.json()["rejections"][0].clone();
    for (field, value) in about.as_object().expect("an object") {
        assert_eq!(&line[field], value, "{field} in {line}");
        assert_eq!(&listed[field], value, "{field} in {listed}");
    }
    assert_eq!(line["instance"], name(&proxy));
}

#[tokio::test]
async fn the_query_is_logged_where_it_is_wanted() {
    let (_upstream, proxy) = fenced("log: { query: true }").await;
    let path = "/orders/7?code=x";
    proxy.refuse(put(path), 428, "token-required").await;
    assert_eq!(proxy.log_of("message", "refused").await["path"], path);
}

/// The upstream, the client and the log have one id of a request: the client's own, or one made
/// here.
#[tokio::test]
async fn a_request_id_is_passed_on_or_made() {
    let (upstream, proxy) = fenced("{}").await;
    let own = get("/orders/7").header("X-Request-Id", "mine");
    proxy.forward(own).await;
    assert_eq!(upstream.last().head.get("x-request-id"), Some("mine"));
    proxy.forward(put("/orders/7").token(1)).await;
    let arrival = upstream.last();
    let made = arrival.head.get("x-request-id").expect("made");
    assert_eq!(made.len(), 32, "{made}");
    assert!(made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{made}");
    let refused = proxy.send(put("/orders/7")).await;
    let id = refused.header("x-request-id").expect("made");
    proxy.log_of("request_id", id).await;
}

const TWO_ROUTES: &str = "routes: [{ path: '/orders/{id}', resource: 'order:{id}' }, \
    { path: '/open', mode: bypass }]\n";

#[tokio::test]
async fn answered_requests_are_logged_where_it_is_wanted() {
    let upstream = Upstream::start().await;
    for (access, paths) in [
        ("all", &["/open", "/orders/7"][..]),
        ("fenced", &["/orders/7"]),
        ("refusals", &[]),
        ("off", &[]),
    ] {
        let config = Config::new(&upstream, &Store::sqlite()).with(TWO_ROUTES);
        let access_log = format!("log: {{ access: '{access}' }}");
        let mut proxy = Proxy::start(&config.with(&access_log)).await;
        let fenced = put("/orders/7").token(1).header("X-Request-Id", "r-1");
        upstream.next([Step::answer("201 Created", "", "done")]);
        assert_eq!(proxy.send(fenced).await.status(), 201);
        proxy.forward(put("/open")).await;
        proxy.refuse(put("/orders/7"), 428, "token-required").await;
        // `/v1/rejections` has it in any case.
        let list = proxy.ask("/v1/rejections").await.json();
        assert_eq!(list["rejections"][0]["status"], 428);
        // A line is written when its answer has been taken, and by another thread.
        proxy.stop().await;
        proxy.process().output();
        let logs = proxy.logs();
        let about =
            |message: &'static str| logs.iter().filter(move |line| line["message"] == message);
        let told = about("answered").filter_map(|line| line["path"].as_str());
        let mut told: Vec<_> = told.collect();
        told.sort_unstable();
        assert_eq!(told, paths, "{access}");
        let refused = about("refused").count();
        assert_eq!(refused, usize::from(access != "off"), "{access}");
        let Some(line) = about("answered").find(|line| line["path"] == "/orders/7") else {
            continue;
        };
        let fields = "status bytes whole outcome resource request_id".split(' ');
        let told: Value = fields.map(|field| line[field].clone()).collect();
        let wanted = json!([201, 4, true, "advanced", "order:7", "r-1"]);
        assert_eq!(told, wanted, "{line}");
        let [all, there] = ["duration_ms", "upstream_ms"].map(|name| line[name].as_f64());
        assert!(all >= there && there > Some(0.0), "{line}");
    }
}

/// A client that leaves in the middle of its answer has not taken all of it.
#[tokio::test]
async fn an_answer_that_was_cut_short_is_logged_as_such() {
    let (upstream, proxy) = fenced("log: { access: all }").await;
    let gate = Gate::shut();
    let head = Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    upstream.next([head, Step::Wait(gate.clone())]);
    let mut exchange = proxy.begin(&get("/orders/7"), b"").await;
    exchange.any_head().await;
    drop(exchange);
    let line = proxy.log_of("message", "answered").await;
    assert_eq!(line["whole"], false, "{line}");
    gate.open();
}
