//! The hooks of an orchestrator: the process's health, and a drain that begins before the end is
//! asked for.

use std::process::Command;

use rustix::process::Signal;

use crate::support::client::Exchange;
use crate::support::postgres::{Cluster, free_port};
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::run::{Exit, run, run_with};
use crate::support::store::{LIVING, has_postgres};
use crate::support::{
    Config, Proxy, Store, Upstream, eventually, fenced, forwarded, get, over_both_stores, put,
    request, return_unless, soon,
};

pub async fn health(listen: &str, probe: &[&str]) -> (Option<i32>, String, String) {
    let mut command = fencepost();
    command.env("FENCEPOST_ADMIN_LISTEN", listen);
    command.arg("health").args(probe);
    let Exit { code, out, err } = run(command).await;
    (code, out.trim().to_owned(), err.trim().to_owned())
}

async fn drain(pid: u32) -> Exit {
    run_with(&["drain", "--pid", &pid.to_string()]).await
}

over_both_stores! {
    async fn a_drain_ends_the_work_and_not_the_process(store: Store) {
        let (upstream, mut proxy) = Proxy::before(&store, "{}").await;
        let admin = proxy.admin();
        let (at_work, gate) = proxy.held(&upstream, put("/orders/7").token(7)).await;
        let mut hook = Exchange::open(admin, "GET").await.expect("the admin port listens");
        hook.wire.send(&get("/drained").bytes()).await.expect("a live connection");

        assert_eq!(drain(proxy.process().id()).await.code, Some(0));
        proxy.until_closed().await;
        let (code, _, why) = health(&admin.to_string(), &[]).await;
        assert_eq!((code, why.as_str()), (Some(1), "not ready: the proxy is draining"));
        gate.open();
        forwarded(at_work).await;

        let drained = hook.answer().await.expect("an answer");
        assert_eq!(drained.status(), 200);
        assert_eq!(store.number(&store.open_epochs("true")).await, 0, "all are over");
        let again = request("GET", "/drained").attempt(admin).await.expect("an answer");
        assert_eq!(again.status(), 200, "it has drained for whoever asks later, too");
        assert_eq!(health(&admin.to_string(), &["live"]).await.0, Some(0));
        assert!(proxy.process().ended().is_none(), "it stays");
        proxy.stop().await;
    }

    async fn the_end_that_is_asked_for_during_a_drain_waits_for_it(store: Store) {
        let (upstream, mut proxy) = Proxy::before(&store, "{}").await;
        let (at_work, gate) = proxy.held(&upstream, put("/orders/7").token(7)).await;
        proxy.process().signal(Signal::USR1);
        proxy.log_of("signal", "SIGUSR1").await;
        // One that is asked twice is not in a hurry.
        proxy.process().signal(Signal::USR1);
        proxy.process().signal(Signal::TERM);
        proxy.until_closed().await;
        assert!(proxy.process().ended().is_none(), "it waits for the one at work");
        gate.open();
        forwarded(at_work).await;
        assert!(proxy.process().exit().await.success());
    }
}

#[tokio::test]
async fn health_is_what_the_probes_say() {
    let (_upstream, proxy) = fenced("{}").await;
    let everywhere = format!("0.0.0.0:{}", proxy.admin().port());
    for (probe, word) in [(&[][..], "ready"), (&["live"], "alive")] {
        let told = health(&everywhere, probe).await;
        assert_eq!(told, (Some(0), word.into(), String::new()));
    }
    // A port that is no admin port is not healthy, whatever it answers.
    let nobody = format!("127.0.0.1:{}", free_port());
    for (listen, says) in [
        (proxy.data().to_string(), "is not fencepost's admin port"),
        (nobody, "cannot connect to http://127.0.0.1"),
    ] {
        let (code, _, why) = health(&listen, &[]).await;
        assert_eq!(code, Some(1));
        assert!(why.contains(says), "{why}");
    }
    assert_eq!(health(&everywhere, &["well"]).await.0, Some(2));
}

#[tokio::test]
async fn only_a_proxy_is_told_to_drain() {
    let mut sleeper = Process::start(Command::new("sleep").arg("60"));
    let words = format!("/proc/{}/cmdline", sleeper.id());
    eventually("sleep to run", || {
        let words = std::fs::read(&words).ok();
        std::future::ready(words.filter(|words| words == b"sleep\x0060\0"))
    })
    .await;
    let Exit { code, err: why, .. } = drain(sleeper.id()).await;
    assert_eq!(code, Some(1));
    assert!(why.contains("`sleep 60`, not `fencepost serve`"), "{why}");
    assert!(sleeper.ended().is_none(), "it got no signal");
}

/// An unfenced request has no permit to wait for, and is in progress all the same.
#[tokio::test]
async fn when_a_drain_is_over_nothing_is_at_work_fenced_or_not() {
    let (upstream, mut proxy) = fenced("shutdown: { deadline: 500ms }").await;
    let gate = upstream.hold_next();
    let mut at_work = proxy.begin(&get("/orders/7"), b"").await;
    upstream.reached(1).await;
    proxy.process().signal(Signal::USR1);
    proxy.until_drained().await;
    let cut = soon("its end", at_work.answer()).await;
    assert!(cut.is_err(), "it was cut");
    gate.open();
}

/// A store that is away when the drain ends must not leave a lease that goes on being renewed.
#[tokio::test]
async fn what_has_drained_renews_no_lease() {
    return_unless!(has_postgres());
    let cluster = Cluster::start();
    let store = Store::on(&cluster).await;
    let upstream = Upstream::start().await;
    let brief = "{ store: { lease: 2s, timeout: 1s }, barrier: { wait: 1s, settle: 1s }, \
        upstream: { timeout: 1s, undelivered: 500ms } }";
    let config = Config::new(&upstream, &store).with(brief);
    let (mut p, q) = (Proxy::start(&config).await, Proxy::start(&config).await);
    p.forward(put("/orders/7").token(5)).await;
    cluster.freeze();
    p.process().signal(Signal::USR1);
    p.until_drained().await;
    let left = p.sum("fencepost_lease_remaining_seconds", &[]).await;
    assert!(left.is_infinite(), "there is nothing to renew: {left}");
    // Long enough that no statement of before is waited for any more.
    q.until_metric("fencepost_lease_remaining_seconds", &[], |left| left <= 0.0)
        .await;
    cluster.thaw();
    store.until(LIVING, 1).await;
    q.until_forwarded(put("/orders/7").token(6)).await;
    let ended = p.process().ended();
    assert!(ended.is_none(), "the one that has drained is still there");
}

/// Where the store cannot be reached yet, what is not fenced is served; a stop lets it end as well.
#[tokio::test]
async fn a_stop_before_the_store_was_reached_lets_what_is_at_work_end() {
    let upstream = Upstream::start().await;
    let url = format!("postgres://fencepost@127.0.0.1:{}/fencepost", free_port());
    let store = format!("store: {{ url: '{url}', namespace: x, timeout: 1s }}");
    let config = Config::new(&upstream, &Store::sqlite()).with(&store);
    let mut proxy = Proxy::start_unready(&config).await;
    let gate = upstream.hold_next();
    let at_work = proxy.start_request(get("/orders/7"));
    upstream.reached(1).await;
    proxy.process().signal(Signal::TERM);
    proxy.until_closed().await;
    let ended = proxy.process().ended();
    assert!(ended.is_none(), "it waits for the one at work");
    gate.open();
    forwarded(at_work).await;
    assert!(proxy.process().exit().await.success());
}
