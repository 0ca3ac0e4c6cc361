//! Something in front of fencepost that repeats requests: an unmodified nginx which passes a request
//! on to the next server after a 502. Whatever it repeats, fencepost cannot tell from the client's
//! own.

use std::path::Path;

use super::lock_services::programs;
use crate::support::nginx::Nginx;
use crate::support::{Config, Proxy, Step, Store, Upstream, or_return, put};

/// How often the upstream gets a write whose answer is lost, with these settings of nginx and of the
/// route.
async fn arrivals(nginx: &Path, settings: &str, route: &str) -> usize {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite()).route(route);
    let proxy = Proxy::start(&config).await;
    // It knows fencepost as two servers.
    let fence = proxy.data();
    let servers = format!("upstream fence {{ server {fence}; server {fence}; }}");
    let location = format!("proxy_pass http://fence; {settings}");
    let balancer = Nginx::start(nginx, &location, &servers).await;
    upstream.next([Step::Close]);
    let write = put("/orders/7").token(5).body("pay 10");
    let answer = write.send(([127, 0, 0, 1], balancer.port).into()).await;
    let repeated = upstream.count() > 1;
    assert_eq!(answer.status() == 200, repeated, "{}", answer.status());
    upstream.count()
}

#[tokio::test]
async fn a_balancer_that_repeats_a_502_writes_twice() {
    let [nginx] = or_return!(programs(["nginx"]));
    let repeats = "proxy_next_upstream error timeout http_502;";
    assert_eq!(arrivals(&nginx, repeats, "{}").await, 2);
    // The two ways to switch it off.
    assert_eq!(arrivals(&nginx, "proxy_next_upstream off;", "{}").await, 1);
    assert_eq!(arrivals(&nginx, repeats, "{ reuse: once }").await, 1);
}
