//! The routes name the marks. Other routes never let an older token pass without being accepted,
//! and are never accepted beside proxies, or their work, that go by the old ones.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::proxy::ADMIN_TOKEN;
use crate::support::{
    Config, Proxy, Store, Upstream, eventually, forwarded, get, or_return, over_both_stores, put,
    request,
};

pub(super) const ORDERS: &str = "{ path: '/orders/{id}/{*rest}', resource: 'order:{id}' }";
const ITEMS: &str = "{ path: '/orders/{id}/items', resource: 'item:{id}' }";
/// The work of a killed proxy settles soon.
const SOON: &str = "{ upstream: { undelivered: 100ms }, store: { lease: 1s }, barrier: { wait: 200ms, settle: 2s } }";
pub(super) const ACCEPT: &[&str] = &["migrate", "--accept-new-keys"];

pub(super) fn routes(routes: &[&str]) -> String {
    format!("routes: [{}]", routes.join(", "))
}

/// Reloads, and waits until the proxy has taken the configuration over, or has not.
pub(super) async fn reload(proxy: &Proxy, config: &Config, taken: bool) {
    proxy.reload(config);
    let is = |value: f64| (value > 0.5) == taken;
    proxy
        .until_metric("fencepost_config_reload_ok", &[], is)
        .await;
}

/// Accepts new keys, which says this.
pub(super) async fn accept(config: &Config, word: &str) {
    let (status, said) = Proxy::run_with(config, ACCEPT).await;
    assert!(status.success() && said.contains(word), "{said}");
}

/// Waits until this stands in a line of the log.
pub(super) async fn logged(proxy: &Proxy, words: &[&str]) {
    let has = |line: &Value| {
        let line = line.to_string();
        words.iter().all(|word| line.contains(word))
    };
    proxy.logged(&words.join(", "), has).await;
}

over_both_stores! {
    async fn a_route_that_takes_requests_from_another_one_is_refused_until_it_is_accepted(store: Store) {
        let upstream = Upstream::start().await;
        let old = Config::new(&upstream, &store).with(&routes(&[ORDERS]));
        let new = old.clone().with(&routes(&[ORDERS, ITEMS]));
        let mut proxy = Proxy::start(&old).await;
        let item = || put("/orders/7/items");
        proxy.forward(item().token(42)).await;
        proxy.stale(item().token(41)).await;

        reload(&proxy, &new, false).await;
        proxy.stale(item().token(41)).await;
        let example = ["PUT /orders/2/items", "order:{id}", "item:{id}", "--accept-new-keys"];
        logged(&proxy, &example).await;
        proxy.stop().await;

        Proxy::refused_for(&new, &example).await;
        Proxy::fails_for(&new, &["migrate"], &example).await;
        // That alone has accepted nothing.
        Proxy::refused_for(&new, &example).await;
        accept(&new, "item:{id}").await;
        let mut proxy = Proxy::start(&new).await;
        proxy.forward(item().token(1)).await;
        assert_eq!(upstream.tokens("item:7"), [1]);
        proxy.stale(put("/orders/7").token(41)).await;
        proxy.stop().await;
        // Acceptance covers the old routes as well.
        Proxy::refused_for(&old, &["--accept-new-keys"]).await;
    }

    async fn a_capture_that_is_renamed_with_its_key_changes_nothing(store: Store) {
        let upstream = Upstream::start().await;
        let old = Config::new(&upstream, &store).with(&routes(&[ORDERS]));
        let renamed = "{ path: '/orders/{order}/{*more}', resource: 'order:{order}' }";
        let new = old.clone().with(&routes(&[renamed])).with("stale_status: 409");
        let mut proxy = Proxy::start(&old).await;
        proxy.forward(put("/orders/7").token(42)).await;
        proxy.reload(&new);
        proxy.until_status(409, put("/orders/7").token(41)).await;
        proxy.stop().await;
        let proxy = Proxy::start(&old).await;
        proxy.stale(put("/orders/7").token(41)).await;
    }

    /// The marks stay on record while routes refuse the request.
    async fn a_request_that_is_refused_in_between_gets_no_other_key(store: Store) {
        let upstream = Upstream::start().await;
        let config = |key: &str, methods: &str, more: &str| {
            let route = format!("{{ path: '/orders/{{id}}', resource: '{key}:{{id}}', methods: [{methods}], \
                                 safe_methods: ignored{more} }}");
            Config::new(&upstream, &store).with(&routes(&[&route]))
        };
        let mut proxy = Proxy::start(&config("order", "PUT", ", allow: [semicolon]")).await;
        proxy.forward(put("/orders/7").token(42)).await;
        proxy.stop().await;
        Proxy::refused_for(&config("order", "PUT", ""), &["it is refused"]).await;
        let deletes = config("order", "DELETE", ", allow: [semicolon]");
        let mut proxy = Proxy::start(&deletes).await;
        proxy.refuse(put("/orders/7").token(41), 405, "method-not-allowed").await;
        proxy.stop().await;
        let other = config("other", "PUT", ", allow: [semicolon]");
        Proxy::refused_for(&other, &["fenced as order:{id}"]).await;
        assert_eq!(upstream.count(), 1);
    }

    /// The filter `plain` changes which requests are taken. Those that it takes keep their keys,
    /// and those that it refuses have none any more: the next table could give them another one.
    async fn a_filter_that_refuses_leaves_the_keys_and_their_marks(store: Store) {
        let upstream = Upstream::start().await;
        let config = |key: &str| {
            let route = format!("{{ path: '/orders/{{id}}', resource: '{key}' }}");
            Config::new(&upstream, &store).with(&routes(&[&route]))
        };
        let (open, plain) = (config("order:{id}"), config("order:{id|plain}"));
        let mut proxy = Proxy::start(&open).await;
        for path in ["/orders/7", "/orders/7.json"] {
            proxy.forward(put(path).token(42)).await;
        }
        reload(&proxy, &plain, false).await;
        let told = ["order:", "it is refused", "--accept-new-keys"];
        logged(&proxy, &told).await;
        proxy.stop().await;
        Proxy::refused_for(&plain, &told).await;
        accept(&plain, "").await;
        let mut proxy = Proxy::start(&plain).await;
        proxy.stale(put("/orders/7").token(41)).await;
        proxy.refuse(put("/orders/7.json").token(43), 400, "ambiguous-request").await;
        assert_eq!(proxy.token("order:7").await, Some(42));
        proxy.stop().await;
        // Back again, every key is what it was, so nothing has to be accepted.
        let proxy = Proxy::start(&open).await;
        proxy.stale(put("/orders/7.json").token(41)).await;
        assert_eq!(upstream.count(), 2);
    }

    async fn new_keys_wait_for_the_work_that_a_killed_proxy_has_left(store: Store) {
        let upstream = Upstream::start().await;
        let old = Config::new(&upstream, &store).with(SOON).with(&routes(&[ORDERS]));
        let new = old.clone().with(&routes(&[ORDERS, ITEMS]));
        let mut proxy = Proxy::start(&old).await;
        let (_at_work, gate) = proxy.begin_held(&upstream, put("/orders/7/items").token(41)).await;
        proxy.kill9();
        let died = Instant::now();
        accept(&new, "instances on record: 1").await;
        let waited = died.elapsed();
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
        gate.open();
        let proxy = Proxy::start(&new).await;
        proxy.forward(put("/orders/7/items").token(42)).await;
    }
}

#[tokio::test]
async fn routes_that_no_longer_fence_are_refused_by_a_reload() {
    const BY_ID: &str = "{ path: '/orders/{id}', resource: 'order:{id}' }";
    let upstream = Upstream::start().await;
    let parts = "{ path: '/t/{a}/{b}', resource: 't:{a}' }";
    let config = Config::new(&upstream, &Store::sqlite()).with(&routes(&[BY_ID, parts]));
    let proxy = Proxy::start(&config).await;
    proxy.forward(put("/orders/7").token(42)).await;
    let route = |changed: &str| config.clone().route(changed);
    let wide = routes(&["{ path: '/{*path}', mode: bypass }"]);
    // The name is another segment's.
    let moved = routes(&[BY_ID, "{ path: '/t/{b}/{a}', resource: 't:{a}' }"]);
    for (new, word) in [
        (route("mode: bypass"), "bypassed"),
        (config.clone().with(&wide), "bypassed"),
        (route("safe_methods: ignored"), "(with a token)"),
        (route("token: { format: hex }"), "read as hex"),
        (route("resource: '{host}:{id}'"), "{host}:{id}"),
        (config.clone().with(&moved), "(route /t/{b}/{a})"),
    ] {
        reload(&proxy, &new, false).await;
        logged(&proxy, &["was not reloaded", word]).await;
        proxy.stale(put("/orders/7").token(41)).await;
        reload(&proxy, &config, true).await;
    }
    assert_eq!(upstream.count(), 1);
}

const BEFORE: &[&str] = &[
    "{ path: '/a/{id}/{*rest}', resource: 'a:{id}' }",
    "{ path: '/b/{id}', resource: 'b:{id}' }",
    "{ path: '/c/{id}', resource: '{header.x-tenant}:{id}' }",
    "{ path: '/d', resource: 'd:{query.q}' }",
    "{ path: '/e/{*rest}', resource: 'e:{rest}' }",
    "{ path: '/f/{id}', resource: 'f:{id}' }",
    "{ path: '/g/{id}', resource: 'g:{id}' }",
    "{ path: '/h/{id}', resource: 'h:{id}' }",
    "{ path: '/i-i/{id}', resource: 'i-i:{id}' }",
    "{ path: '/j/{id}', resource: 'j:{id}' }",
];
const AFTER: &[&str] = &[
    "{ path: '/a/{id}/{*rest}', resource: 'a:{id}' }",
    "{ path: '/a/{id}/items', resource: 'item:{id}' }",
    "{ path: '/b/{id}', resource: 'b:{id|int}' }",
    "{ path: '/c/{id}', resource: '{host}:{id}' }",
    "{ path: '/d', resource: '{path}' }",
    "{ path: '/e/{*rest}', resource: 'e:{rest}' }",
    "{ path: '/e/{one}', mode: bypass }",
    "{ path: '/f/{id}/', resource: 'f:{id}' }",
    "{ path: '/g/{id}', resource: 'g:{id}', safe_methods: ignored }",
    "{ path: '/h/{id}', resource: 'h:{id|lower}' }",
    "{ path: '/{kind}/{id}', resource: '{kind}:{id}' }",
    "{ path: '/j/{id}', resource: 'j:{id|plain}' }",
];

/// What `migrate` tells of a request, one with a target that is meant, its fate in words and by its
/// key or status, and the same with the new routes.
const TOLD: &[&str] = &[
    "PUT /a/2/items | /a/2/items | is fenced as a:{id} | a:2 | is fenced as item:{id} | item:2",
    "PUT /b/2 | /b/2 | is fenced as b:{id} | b:2 | is fenced as b:{id|int} | b:2",
    "PUT /c/2 | /c/2 | is fenced as {header.x-tenant}:{id} | t:2 \
     | is fenced as {host}:{id} | h.test:2",
    "PUT /d | /d?q=2 | is fenced as d:{query.q} | d:2 | is fenced as {path} | /d",
    "PUT /h/2 | /h/2 | is fenced as h:{id} | h:2 | is fenced as h:{id|lower} | h:2",
    "PUT /i-i/2 | /i-i/2 | is fenced as i-i:{id} | i-i:2 | is fenced as {kind}:{id} | i-i:2",
    "PUT /e/2 | /e/2 | is fenced as e:{rest} | e:2 | passes unfenced: the route is bypassed | open",
    "GET /g/2 (with a token) | /g/2 | is fenced as g:{id} | g:2 \
     | passes unfenced: safe_methods is ignored | open",
    "PUT /b/2 | /b/x.y | is fenced as b:{id} | b:x.y | is refused in some spellings | 400",
    "PUT /j/2 | /j/x.y | is fenced as j:{id} | j:x.y | is refused in some spellings | 400",
    "PUT /f/2/ | /f/2/ | gets a 404 | 404 | is fenced as f:{id} | f:2",
    "PUT /1/2 | /1/2 | gets a 404 | 404 | is fenced as {kind}:{id} | 1:2",
];

#[tokio::test]
async fn what_is_told_of_a_request_is_what_becomes_of_it() {
    let upstream = Upstream::start().await;
    let config = |of: &[&str]| Config::new(&upstream, &Store::sqlite()).with(&routes(of));
    let (before, after) = (config(BEFORE), config(AFTER));
    Proxy::start(&before).await.stop().await;
    let new = before.clone().with(&routes(AFTER));
    let (_, said) = Proxy::run_with(&new, &["migrate"]).await;
    let proxies = [Proxy::start(&before).await, Proxy::start(&after).await];
    let lines = || said.lines().filter(|line| line.contains(": until now it "));
    assert_eq!(lines().count(), TOLD.len(), "{said}");
    for (token, row) in TOLD.iter().enumerate() {
        let fields: Vec<_> = row.split(" | ").collect();
        let [asked, target, was, before, becomes, after] = fields[..] else {
            panic!("{row}");
        };
        let was = format!("{asked}: until now it {was} (");
        let becomes = format!("; with the new routes it {becomes} (");
        let told = lines().any(|line| line.starts_with(&was) && line.contains(&becomes));
        assert!(told, "{row}\n{said}");
        let method = &asked[..3];
        for (proxy, fate) in proxies.iter().zip([before, after]) {
            let came = upstream.count();
            let asked = request(method, target).host(Some("h.test"));
            let answer = proxy.send(asked.header("x-tenant", "t").token(token)).await;
            match fate {
                "404" => drop(answer.assert_problem(404, "no-route")),
                "400" => drop(answer.assert_problem(400, "ambiguous-request")),
                key => {
                    answer.assert_forwarded();
                    assert_eq!(upstream.last().resource().unwrap_or("open"), key);
                }
            }
            let arrives = usize::from(answer.status() == 200);
            assert_eq!(upstream.count(), came + arrives, "{row}");
        }
    }
}

#[tokio::test]
async fn two_live_proxies_with_different_routes_say_so() {
    let store = or_return!(Store::postgres().await);
    let (_upstream, config, a) = Proxy::with_config(&store, "{}").await;
    let more = config.with(&routes(&[
        "{ path: '/orders/{id}', resource: 'order:{id}' }",
        "{ path: '/bills/{id}', resource: 'bill:{id}' }",
    ]));
    let mismatch = "fencepost_route_table_mismatch";
    assert_eq!(a.count(mismatch, &[]).await, 0);
    let b = Proxy::start(&more).await;
    for proxy in [&a, &b] {
        proxy.until_some(mismatch).await;
        let other = eventually("the other one in /readyz", || async {
            let answer = proxy.ask("/readyz").await;
            assert_eq!(answer.status(), 200, "a roll-out goes on");
            let others = answer.json()["other_route_tables"].clone();
            others[0].as_str().map(str::to_owned)
        })
        .await;
        logged(proxy, &["different route tables", &other]).await;
        assert_eq!(proxy.count(mismatch, &[]).await, 1);
    }
    reload(&a, &more, true).await;
    for proxy in [&a, &b] {
        proxy.until_none(mismatch).await;
        logged(proxy, &["have the same route table again"]).await;
        let differ = |line: &Value| line.to_string().contains("different route tables");
        let told = proxy.logs().into_iter().filter(differ).count();
        assert_eq!(told, 1, "once, and not at every look");
        eventually("none in /readyz", || async {
            let said = proxy.ask("/readyz").await.json();
            (said["other_route_tables"] == json!([])).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn new_keys_are_not_accepted_beside_a_proxy_with_the_old_ones() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let old = Config::new(&upstream, &store).with(SOON);
    let old = old.with(&routes(&[ORDERS]));
    let mut a = Proxy::start(&old).await;
    let new = old.clone().with(&routes(&[ORDERS, ITEMS]));
    let (at_work, gate) = a.held(&upstream, put("/orders/7/items").token(41)).await;
    Proxy::fails_for(&new, ACCEPT, &["is alive"]).await;
    Proxy::refused_for(&new, &[]).await;
    gate.open();
    forwarded(at_work).await;
    a.stop().await;
    accept(&new, "").await;
    let b = Proxy::start(&new).await;
    b.forward(put("/orders/7/items").token(42)).await;
    upstream.assert_no_overtaking();
}

/// A proxy that stood still while it was declared dead and the keys were accepted.
#[tokio::test]
async fn a_proxy_that_was_away_does_not_come_back_with_the_old_keys() {
    let store = or_return!(Store::postgres().await);
    let upstream = Upstream::start().await;
    let old = Config::new(&upstream, &store).with(SOON);
    let old = old.with(&routes(&[ORDERS]));
    let new = old.clone().with(&routes(&[ORDERS, ITEMS]));
    let frozen = Proxy::start(&old).await;
    frozen.pause().await;
    accept(&new, "").await;
    let b = Proxy::start(&new).await;
    b.forward(put("/orders/7/items").token(42)).await;
    frozen.resume();
    logged(&frozen, &["item:{id}", "--accept-new-keys"]).await;
    let answer = frozen.send(put("/orders/7/items").token(41)).await;
    answer.assert_problem(503, "store-unavailable");
    frozen.forward(get("/health")).await;
    assert!(upstream.tokens("order:7").is_empty());
}

#[tokio::test]
async fn a_running_proxy_keeps_new_keys_out_of_its_file() {
    let upstream = Upstream::start().await;
    let old = Config::new(&upstream, &Store::sqlite()).with(&routes(&[ORDERS]));
    let proxy = Proxy::start(&old).await;
    let said = Proxy::fails_for(&old.with(&routes(&[ITEMS])), ACCEPT, &["in use"]).await;
    assert!(!said.contains(ADMIN_TOKEN));
    drop(proxy);
}
