//! Starting, reloading and stopping.

use rustix::process::Signal;

use crate::support::{
    Config, Proxy, Store, Upstream, all_forwarded, eventually, fenced, forwarded, over_both_stores,
    put,
};

over_both_stores! {
    async fn sigterm_lets_what_is_at_work_end_and_exits_0(store: Store) {
        let (upstream, mut proxy) = Proxy::before(&store, "{}").await;
        let (at_work, gate) = proxy.held(&upstream, put("/orders/7").token(7)).await;
        proxy.process().signal(Signal::TERM);
        proxy.until_closed().await;
        assert!(proxy.process().ended().is_none(), "it waits for the one at work");
        gate.open();
        forwarded(at_work).await;
        assert!(proxy.process().exit().await.success());
    }
}

#[tokio::test]
async fn probes_tell_when_it_leaves_before_it_does() {
    let (_upstream, mut proxy) = fenced("shutdown: { delay: 3s }").await;
    assert_eq!(proxy.ask("/livez").await.status(), 200);
    assert_eq!(proxy.ask("/readyz").await.status(), 200);
    proxy.process().signal(Signal::TERM);
    proxy.until_ready_is(503).await;
    // Until the delay is over it serves: the load balancer may not have looked yet.
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!(proxy.ask("/livez").await.status(), 200);
    assert!(proxy.process().exit().await.success());
}

#[tokio::test]
async fn a_second_signal_ends_it_on_the_spot() {
    let (upstream, mut proxy) = fenced("shutdown: { deadline: 300s }").await;
    let (_at_work, gate) = proxy.begin_held(&upstream, put("/orders/7").token(7)).await;
    proxy.process().signal(Signal::TERM);
    proxy.until_ready_is(503).await;
    proxy.process().signal(Signal::TERM);
    let status = proxy.process().exit().await;
    assert!(!status.success(), "{status}");
    gate.open();
}

/// Waits until a stale request is answered with `status`; marks of `resource` must be above 1.
async fn stale_is(proxy: &Proxy, status: u16) {
    proxy.until_status(status, put("/orders/7").token(1)).await;
}

#[tokio::test]
async fn a_changed_file_is_read_again() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), "{}").await;
    proxy.forward(put("/orders/7").token(2)).await;
    stale_is(&proxy, 412).await;
    let loaded = "fencepost_config_loaded_timestamp_seconds";
    let at_start = proxy.sum(loaded, &[]).await;
    assert!(at_start > 1.7e9, "a time of today: {at_start}");
    proxy.rewrite(&config.clone().with("stale_status: 409"));
    stale_is(&proxy, 409).await;
    let later = |value| value > at_start;
    proxy.until_metric(loaded, &[], later).await;
    proxy.reload(&config);
    stale_is(&proxy, 412).await;
    proxy.until_some("fencepost_config_reload_ok").await;
}

#[tokio::test]
async fn a_config_map_is_followed_through_its_links() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let mut proxy = Proxy::start_linked(&config).await;
    proxy.forward(put("/orders/7").token(2)).await;
    stale_is(&proxy, 412).await;
    proxy.relink(&config.with("stale_status: 409"));
    stale_is(&proxy, 409).await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_is_reported() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), "{}").await;
    proxy.forward(put("/orders/7").token(2)).await;
    let valid = config.clone().with("stale_status: 409");
    for bad in [
        "routes: [",
        "stale_status: 418\n",
        "no_such_field: 1\n",
        &valid.clone().with("barrier: { wait: soon }").text(),
        &valid.route("mode: enforced").text(),
    ] {
        let loaded = "fencepost_config_loaded_timestamp_seconds";
        let before = proxy.sum(loaded, &[]).await;
        proxy.rewrite_text(bad);
        proxy.hang_up();
        proxy.until_none("fencepost_config_reload_ok").await;
        let after = proxy.sum(loaded, &[]).await;
        assert!((after - before).abs() < f64::EPSILON, "no reload: {after}");
        stale_is(&proxy, 412).await;
        proxy.reload(&config);
        proxy.until_some("fencepost_config_reload_ok").await;
    }
    eventually("each to be logged", || async {
        let logs = proxy.logs();
        let levels = logs.iter().map(|line| &line["level"]);
        let told = levels.filter(|level| **level == "ERROR" || **level == "WARN");
        (told.count() >= 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reload_does_not_interrupt_what_is_at_work() {
    let (upstream, config, proxy) =
        Proxy::with_config(&Store::sqlite(), "barrier: { wait: 25s }").await;
    let (older, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
    let newer = proxy.start_request(put("/orders/7").token(42));
    proxy.waiting("order:7", 1).await;
    proxy.rewrite(&config.with("stale_status: 409"));
    stale_is(&proxy, 409).await;
    assert_eq!(upstream.count(), 1, "42 still waits");
    gate.open();
    all_forwarded([older, newer]).await;
    upstream.assert_no_overtaking();
}
