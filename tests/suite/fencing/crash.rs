//! Death of the proxy at any moment. No mark is below a token that the upstream has seen, and only
//! those resources wait whose older work was open (guarantees G1 to G3).

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

use super::broken::STAYS_UNKNOWN;
use crate::support::skip::or_lacks;
use crate::support::store::program;
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, joined, or_return,
    over_both_stores, put,
};

over_both_stores! {
    async fn after_kill_9_at_any_moment_no_mark_is_below_what_was_sent(store: Store) {
        let seed = rand::random();
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
        for round in 0..100 {
            let before = upstream.count();
            // Each round has resources of its own, so that none waits for what died before.
            let clients: Vec<_> = (0..6).map(|client| {
                let to = proxy.data();
                let path = format!("/orders/{round}-{}", client % 3);
                tokio::spawn(async move {
                    let mut token = 1_u64;
                    while put(&path).token(token).attempt(to).await.is_ok() {
                        token += 1;
                    }
                })
            }).collect();
            upstream.reached(before + random.random_range(1..40)).await;
            proxy.kill9();
            for client in clients {
                joined(client).await;
            }
            // The next round kills this one.
            proxy = Proxy::start(&config).await;
            for order in 0..3 {
                let resource = format!("order:{round}-{order}");
                let sent = upstream.tokens(&resource).into_iter().max();
                let mark = proxy.token(&resource).await;
                assert!(mark >= sent, "round {round}: {resource} has {mark:?}, {sent:?} was sent");
            }
        }
    }

    async fn who_waited_when_it_died_waits_again(store: Store) {
        // On a shared store a dead instance is known by its lease.
        let short = "{ upstream: { undelivered: 500ms }, store: { lease: 3s }, \
            barrier: { wait: 300ms, settle: 4s } }";
        let (upstream, config, mut proxy) = Proxy::with_config(&store, short).await;
        let gate = Gate::shut();
        let work = Step::Work(Duration::from_millis(2500));
        upstream.on_token(6, [Step::Wait(gate.clone()), work, Step::ok()]);
        let at_work = proxy.begin(&put("/orders/7").token(6), b"").await;
        upstream.reached(1).await;
        proxy.refuse(put("/orders/7").token(7), 503, "older-in-flight").await;
        assert_eq!(proxy.token("order:7").await, Some(7));

        proxy.kill9();
        drop(at_work);
        // The upstream works on, for less than `settle`.
        gate.open();
        let restarted = Instant::now();
        let proxy = Proxy::start(&config).await;
        let again = proxy.send(put("/orders/7").token(7)).await;
        again.assert_problem(503, "older-in-flight");
        assert!(again.retry_after().is_some());
        proxy.stale(put("/orders/7").token(6)).await;
        proxy.forward(put("/orders/8").token(1)).await;
        assert_eq!(upstream.tokens("order:7"), [6]);

        proxy.until_forwarded(put("/orders/7").token(7)).await;
        assert_eq!(upstream.tokens("order:7"), [6, 7]);
        let waited = upstream.last().began - restarted;
        assert!(waited >= Duration::from_secs(4), "it waited {waited:?}: less than `settle`");
        upstream.assert_no_overtaking();
    }

    async fn who_was_alone_when_it_died_passes_at_once(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with(STAYS_UNKNOWN);
        let gate = Proxy::dies_holding(&config, &upstream, put("/orders/7").token(7)).await;
        let proxy = Proxy::start(&config).await;
        proxy.forward(put("/orders/7").token(7)).await;
        proxy.refuse(put("/orders/7").token(8), 503, "older-in-flight").await;
        proxy.stale(put("/orders/7").token(7)).await;
        assert_eq!(upstream.tokens("order:7"), [7, 7]);
        gate.open();
    }

    /// What was idle at the last heartbeat is over, however many there were.
    async fn only_what_was_in_use_waits_after_kill_9(store: Store) {
        let more = "{ store: { lease: 200s }, barrier: { wait: 300ms, settle: 300s } }";
        let (upstream, config, mut killed) = Proxy::with_config(&store, more).await;
        let other = if store.is_shared() { Some(Proxy::start(&config).await) } else { None };
        let path = |order: u64| format!("/orders/{order}");
        for order in 1..=20 {
            killed.forward(put(&path(order)).token(5)).await;
        }
        let (at_work, gate) = killed.begin_held(&upstream, put("/orders/30").token(5)).await;
        store.until(&store.open_epochs("true"), 1).await;
        killed.forward(put("/orders/31").token(5)).await;
        killed.kill9();
        drop(at_work);
        let proxy = match other {
            Some(other) => other,
            None => Proxy::start(&config).await,
        };
        for order in 1..=20 {
            proxy.forward(put(&path(order)).token(6)).await;
        }
        for order in [30, 31] {
            proxy.refuse(put(&path(order)).token(6), 503, "older-in-flight").await;
        }
        gate.open();
    }

    async fn a_stop_in_good_order_leaves_only_what_is_unknown_to_wait_for(store: Store) {
        let (upstream, config, mut proxy) = Proxy::with_config(&store, STAYS_UNKNOWN).await;
        proxy.forward(put("/orders/8").token(7)).await;
        upstream.next([Step::Reset]);
        proxy.refuse(put("/orders/7").token(7), 502, "outcome-unknown").await;
        for newer in [8, 9] {
            proxy.stop().await;
            proxy = Proxy::start(&config).await;
            proxy.refuse(put("/orders/7").token(8), 503, "older-in-flight").await;
            proxy.stale(put("/orders/8").token(newer - 2)).await;
            proxy.forward(put("/orders/8").token(newer)).await;
        }
        assert_eq!(upstream.tokens("order:7"), [7]);
        assert_eq!(upstream.tokens("order:8"), [7, 8, 9]);
    }

    async fn under_reuse_once_a_crash_counts_as_spent(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).route("reuse: once");
        let gate = Proxy::dies_holding(&config, &upstream, put("/orders/7").token(7)).await;
        let proxy = Proxy::start(&config).await;
        proxy.stale(put("/orders/7").token(7)).await;
        assert_eq!(upstream.count(), 1);
        gate.open();
    }
}

#[tokio::test]
async fn the_disk_has_the_mark_before_the_upstream_has_a_byte() {
    let strace = program("strace").filter(|strace| may_trace(strace));
    let strace = or_return!(or_lacks(strace, "strace"));
    let dir = TempDir::new().expect("a temporary directory");
    let trace = dir.path().join("trace");
    let upstream = Upstream::start().await;
    let store = Store::sqlite();
    let mut runner = Command::new(strace);
    let calls = "trace=fdatasync,fsync,read,readv,recvfrom,write,writev,sendto,sendmsg";
    runner.args(["-D", "-f", "-y", "-s", "64", "-e", calls, "-o"]);
    runner.arg(&trace);
    let mut proxy = Proxy::start_under(&Config::new(&upstream, &store), runner).await;
    for token in [3, 4] {
        proxy.forward(put("/orders/traced").token(token)).await;
    }
    proxy.kill9();
    let lines = eventually("the trace's end", || async {
        let text = std::fs::read_to_string(&trace).ok()?;
        text.contains("+++ killed by SIGKILL +++").then_some(text)
    })
    .await;
    let events = trace_events(&lines);
    assert_eq!(events, "read sync send read sync send", "in\n{lines}");
}

pub fn may_trace(strace: &std::path::Path) -> bool {
    Command::new(strace)
        .args(["-o", "/dev/null", "true"])
        .status()
        .is_ok_and(|status| status.success())
}

/// The order of what matters, one word each, repetitions of a word folded: the request is read, a
/// sync of the store's files has *returned*, the request is written.
fn trace_events(trace: &str) -> String {
    let (mut words, mut syncing) = (vec!["send"], HashSet::new());
    for line in trace.lines() {
        let (pid, call) = line.split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        let name = call.trim_start_matches("<... ");
        let event = if name.starts_with("fdatasync") || name.starts_with("fsync") {
            if call.contains("marks.db") {
                syncing.insert(pid);
            }
            // The line of one that another thread's calls interrupt goes on further down.
            let ended = !call.contains("<unfinished") && syncing.remove(pid);
            if !ended || !call.ends_with("= 0") {
                continue;
            }
            "sync"
        } else if !call.contains("PUT /orders/traced") {
            continue;
        } else if name.starts_with("read") || name.starts_with("recv") {
            "read"
        } else {
            "send"
        };
        // Syncs before the first request, and after the last send, are of no interest.
        let last = words.last();
        if last != Some(&event) && (event, last) != ("sync", Some(&"send")) {
            words.push(event);
        }
    }
    words[1..].join(" ")
}

/// The lease and what the kernel may still deliver are longer than the test.
#[tokio::test]
async fn who_starts_in_the_place_of_a_dead_proxy_waits_for_settle_only() {
    let store = or_return!(Store::postgres().await);
    let more = "{ store: { lease: 10m }, upstream: { undelivered: 10m }, \
        barrier: { wait: 25s, settle: 2s } }";
    let (upstream, config, mut a) = Proxy::with_config(&store, more).await;
    let b = Proxy::start(&config).await;
    let (lost, gate) = a.begin_held(&upstream, put("/orders/7").token(41)).await;
    let at_b = b.held(&upstream, put("/orders/8").token(41)).await;
    a.kill9();
    let died = Instant::now();
    drop(lost);
    gate.open();
    let a = Proxy::start(&config).await;
    a.forward(put("/orders/7").token(42)).await;
    let waited = died.elapsed();
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    // B lives: its place is another one.
    let newer = a.start_request(put("/orders/8").token(42));
    a.waiting("order:8", 1).await;
    at_b.1.open();
    all_forwarded([at_b.0, newer]).await;
    upstream.assert_no_overtaking();
}
