//! Connections: in all, of one address, and as many as there are descriptors for.

use std::process::Command;

use crate::support::client::Exchange;
use crate::support::wire::Wire;
use crate::support::{
    Config, Gate, Must, Proxy, Step, Store, Upstream, eventually, fenced, get, put, soon,
};

/// A connection that has been served once, and stays open.
async fn served(proxy: &Proxy) -> Exchange {
    let mut exchange = proxy.begin(&get("/"), b"").await;
    exchange.finish().await.assert_forwarded();
    exchange
}

pub async fn open(proxy: &Proxy, count: f64) {
    let is = |open: f64| (open - count).abs() < 0.5;
    proxy.until_metric("fencepost_connections", &[], is).await;
}

/// A connection whose request the upstream holds until the gate is opened.
async fn busy(upstream: &Upstream, proxy: &Proxy, gate: &Gate) -> Exchange {
    let before = upstream.count();
    let held = [Step::Wait(gate.clone()), Step::ok()];
    upstream.when(|head| head.word(1) == "/busy", held);
    let exchange = proxy.begin(&get("/busy"), b"").await;
    upstream.reached(before + 1).await;
    exchange
}

/// The other side has closed.
async fn is_closed(mut wire: Wire) {
    let closed = soon("the close", wire.some()).await;
    assert!(closed.is_err() || closed.is_ok_and(|bytes| bytes.is_empty()));
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_a_place() {
    let (upstream, proxy) = fenced("limits: { connections: 2 }").await;
    let gate = Gate::shut();
    let mut first = busy(&upstream, &proxy, &gate).await;
    let second = busy(&upstream, &proxy, &gate).await;
    let mut third = proxy.begin(&get("/third"), b"").await;
    proxy.until_reached("connections", 1).await;
    open(&proxy, 2.0).await;
    assert_eq!(upstream.count(), 2, "the third is not served yet");
    drop(second);
    third.finish().await.assert_forwarded();
    gate.open();
    first.finish().await.assert_forwarded();
    drop((first, third));
    open(&proxy, 0.0).await;
}

#[tokio::test]
async fn one_address_has_no_more_connections_than_it_may() {
    let (_upstream, proxy) = fenced("limits: { connections_per_client: 2 }").await;
    let (first, second) = (served(&proxy).await, served(&proxy).await);
    is_closed(Wire::connect(proxy.data()).must().await).await;
    assert_eq!(proxy.reached("connections-per-client").await, 1);
    drop(first);
    open(&proxy, 1.0).await;
    let fourth = served(&proxy).await;
    drop((second, fourth));
}

/// The program by way of a shell that sets a limit on descriptors first.
async fn with_descriptors(ulimit: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {ulimit}; exec \"$@\""), "sh"]);
    let proxy = Proxy::start_under(&Config::new(&upstream, &Store::sqlite()), shell).await;
    (upstream, proxy)
}

fn said(proxy: &Proxy, what: &str) -> usize {
    let says = |line: &serde_json::Value| line["message"].to_string().contains(what);
    proxy.logs().iter().filter(|line| says(line)).count()
}

#[tokio::test]
async fn a_want_of_descriptors_makes_connections_wait_and_ends() {
    const WANTING: &str = "no connection can be accepted";
    let (_upstream, proxy) = with_descriptors("-n 64").await;
    proxy.forward(put("/orders/1").token(1)).await;
    let mut crowd = Vec::new();
    for _ in 0..80 {
        crowd.push(Wire::connect(proxy.data()).must().await);
    }
    eventually("the want to be told", || async {
        (said(&proxy, WANTING) > 0).then_some(())
    })
    .await;
    drop(crowd);
    proxy.forward(put("/orders/1").token(2)).await;
    assert!(proxy.reached("file-descriptors").await >= 1);
    assert_eq!(said(&proxy, WANTING), 1, "one line, not one per failure");
}

#[tokio::test]
async fn a_soft_limit_on_descriptors_is_raised_as_far_as_it_may() {
    let (_upstream, proxy) = with_descriptors("-S -n 256").await;
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let now = proxy.sum("process_max_fds", &[]).await;
    #[allow(
        clippy::cast_precision_loss,
        reason = "far below 2^53, or as good as none"
    )]
    let hard = hard.map_or(f64::INFINITY, |hard| hard as f64);
    assert!(now >= hard.min(8192.0), "{now} of {hard}");
}
