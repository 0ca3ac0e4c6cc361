//! How many resources get their first mark in a second: unbounded by default, and bounded over all
//! workers where `limits.new_resources` is set.

use std::time::Instant;

use crate::support::wire::Wire;
use crate::support::{Config, Proxy, Store, Upstream, fenced, over_both_stores, post, put};

const CONNECTIONS: u32 = 64;

/// A claim of a resource that nobody has named before.
fn claim(name: &str) -> crate::support::Request {
    let key = format!("order:{name}-{}", "x".repeat(900));
    post("/.well-known/fencing/claim")
        .header("X-Fencing-Resource", key)
        .token(1)
}

/// Claims until there is room for no more; returns how many were granted.
async fn fill(proxy: &Proxy, prefix: &str) -> u64 {
    let began = Instant::now();
    let mut granted = 0;
    for n in 0.. {
        let answer = proxy.send(claim(&format!("{prefix}{n}"))).await;
        if answer.status() == 204 {
            granted += 1;
            let most = 11 + began.elapsed().as_secs();
            assert!(
                granted <= most,
                "{granted} new resources where {most} are the most"
            );
            continue;
        }
        let problem = answer.assert_problem(503, "overloaded");
        assert_eq!(problem["retry"], "same-token");
        assert_eq!(answer.retry_after(), Some(1));
        break;
    }
    granted
}

over_both_stores! {
    async fn new_resources_are_bounded_and_known_ones_are_not(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with("limits: { new_resources: 1 }");
        let mut proxy = Proxy::start(&config).await;
        for id in 0..3 {
            proxy.forward(put(&format!("/orders/{id}")).token(1)).await;
        }
        // Ten at once, and three of them are in use.
        let granted = fill(&proxy, "a").await;
        assert!(granted >= 7, "{granted}");
        // A resource with a mark goes on, with the same token and with newer ones.
        for id in 0..3 {
            let path = format!("/orders/{id}");
            proxy.forward(put(&path).token(1)).await;
            proxy.forward(put(&path).token(2)).await;
        }
        let new = proxy.count("fencepost_new_resources_total", &[]).await;
        assert_eq!(new, granted + 3);
        assert!(proxy.reached("new-resources").await >= 1);
        // An operator is not bounded.
        let body = serde_json::json!({ "token": "7", "reason": "a test" });
        let answer = proxy.command("/v1/marks/order:by-hand/advance", &body).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        proxy.stop().await;
        // Nothing is in memory now: what has a mark is only known to the store.
        let proxy = Proxy::start(&config).await;
        fill(&proxy, "b").await;
        for id in 0..3 {
            proxy.forward(put(&format!("/orders/{id}")).token(3)).await;
        }
        // And there is room again with time.
        proxy.until_forwarded(put("/orders/new").token(1)).await;
    }
}

/// Claims so many resources over connections enough that every worker serves some. Returns how many
/// were granted, and how many were refused as overloaded.
async fn burst(proxy: &Proxy, count: u32) -> (u32, u32) {
    let data = proxy.data();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|client| {
            tokio::spawn(async move {
                let mut wire = Wire::connect(data).await.expect("the proxy listens");
                let (mut granted, mut refused) = (0, 0);
                for n in (client..count).step_by(CONNECTIONS as usize) {
                    let claim = post("/.well-known/fencing/claim")
                        .header("X-Fencing-Resource", format!("order:{n}"))
                        .token(1);
                    match wire.status(&claim.bytes()).await.as_str() {
                        "204" => granted += 1,
                        "503" => refused += 1,
                        other => panic!("{other}"),
                    }
                }
                (granted, refused)
            })
        })
        .collect();
    let (mut granted, mut refused) = (0, 0);
    for client in clients {
        let (more, fewer) = client.await.expect("no panic");
        granted += more;
        refused += fewer;
    }
    (granted, refused)
}

/// A new order is a new resource, and a service may have thousands of them in a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_setting_every_resource_gets_a_mark() {
    let (_upstream, proxy) = fenced("{}").await;
    assert_eq!(burst(&proxy, 20_000).await, (20_000, 0));
    assert_eq!(proxy.reached("new-resources").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_is_one_for_all_workers_and_clients() {
    let (_upstream, proxy) = fenced("limits: { new_resources: 10 }").await;
    let began = Instant::now();
    let (granted, refused) = burst(&proxy, 2_000).await;
    let most = 100.0 + 10.0 * began.elapsed().as_secs_f64();
    assert!(
        (100.0..=most).contains(&f64::from(granted)),
        "{granted} new resources where {most} are the most"
    );
    let made = proxy.count("fencepost_new_resources_total", &[]).await;
    assert_eq!(made, u64::from(granted));
    assert_eq!(proxy.reached("new-resources").await, u64::from(refused));
}

/// The request is not the fence's to refuse there; the store does not grow all the same.
#[tokio::test]
async fn observed_requests_pass_and_make_no_mark() {
    let (upstream, proxy) = fenced(
        "{ limits: { new_resources: 1 }, routes: [{ path: '/orders/{id}', resource: 'order:{id}', mode: observe }] }",
    )
    .await;
    for id in 0..40 {
        let path = format!("/orders/{id}");
        proxy.forward(put(&path).token(1)).await;
    }
    assert_eq!(upstream.count(), 40);
    proxy.until_outcome("observed-overloaded", 1).await;
}

#[tokio::test]
async fn a_reload_changes_the_limit() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start(&config.clone().with("limits: { new_resources: 1 }")).await;
    fill(&proxy, "a").await;
    proxy.rewrite(&config.with("limits: { new_resources: none, in_flight: 64 }"));
    proxy.hang_up();
    proxy
        .logged("what needs a restart", |line| {
            let kept = line["kept"].as_str();
            kept == Some("limits.in_flight")
        })
        .await;
    proxy
        .log_of("message", "the configuration was reloaded")
        .await;
    for n in 0..50 {
        let answer = proxy.send(claim(&format!("b{n}"))).await;
        assert_eq!(answer.status(), 204, "{}", answer.text());
    }
}

#[tokio::test]
async fn keys_have_at_most_1024_bytes() {
    let (upstream, proxy) = fenced("{}").await;
    let (fits, long) = ("x".repeat(1018), "x".repeat(1019));
    let path = |id: &str| format!("/orders/{id}");
    let by_key = |id: &str| {
        post("/.well-known/fencing/claim")
            .header("X-Fencing-Resource", format!("order:{id}"))
            .token(1)
    };
    proxy.forward(put(&path(&fits)).token(1)).await;
    assert_eq!(proxy.send(by_key(&fits)).await.status(), 204);
    for refused in [put(&path(&long)).token(1), by_key(&long)] {
        proxy
            .send(refused)
            .await
            .assert_problem(400, "ambiguous-request");
    }
    assert_eq!(upstream.count(), 1);
}
