//! Death of the proxy at any moment. No mark is below a token that the upstream has seen, and only
//! those resources wait whose older work was open (guarantees G1 to G3).

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

use crate::support::skip::lacks;
use crate::support::store::program;
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, joined, or_return,
    over_both_stores, put,
};

/// Nothing could settle within a test.
const SETTLES_LATER: &str = "barrier: { wait: 200ms, settle: 300s }";

over_both_stores! {
    async fn after_kill_9_at_any_moment_no_mark_is_below_what_was_sent(store: Store) {
        let seed = rand::random();
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (upstream, config, mut proxy) = Proxy::with_config(&store, "{}").await;
        let mut seen_before = 0;
        for round in 0..100 {
            // Each round has resources of its own, so that none waits for what died before.
            let stop = Arc::new(AtomicBool::new(false));
            let clients: Vec<_> = (0..6).map(|client| {
                let (stop, to) = (Arc::clone(&stop), proxy.data());
                let path = format!("/orders/{round}-{}", client % 3);
                tokio::spawn(async move {
                    let mut token = 0;
                    while !stop.load(Ordering::Relaxed) {
                        token += 1;
                        if put(&path).token(token).attempt(to).await.is_err() {
                            return;
                        }
                    }
                })
            }).collect();
            upstream.reached(seen_before + random.random_range(1..40)).await;
            proxy.kill9();
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                joined(client).await;
            }
            let newest = newest_tokens(&upstream, seen_before);
            seen_before = upstream.count();
            // The next round kills this one.
            proxy = Proxy::start(&config).await;
            for (resource, token) in newest {
                let mark = proxy.token(&resource).await;
                assert!(mark >= Some(token), "round {round}: {resource} has {mark:?}, {token} was sent");
            }
        }
    }

    async fn who_waited_when_it_died_waits_again(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with("barrier: { wait: 300ms, settle: 4s }");
        // On a shared store a dead instance is known by its lease.
        let short = "{ upstream: { undelivered: 500ms }, store: { lease: 3s } }";
        let config = config.with(if store.is_shared() { short } else { "{}" });
        let mut proxy = Proxy::start(&config).await;
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
        let config = Config::new(&upstream, &store).with(SETTLES_LATER);
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

    async fn a_stop_in_good_order_leaves_nothing_to_wait_for(store: Store) {
        let (upstream, config, mut proxy) = Proxy::with_config(&store, SETTLES_LATER).await;
        proxy.forward(put("/orders/7").token(7)).await;
        proxy.stop().await;
        let proxy = Proxy::start(&config).await;
        proxy.stale(put("/orders/7").token(6)).await;
        proxy.forward(put("/orders/7").token(8)).await;
        assert_eq!(upstream.tokens("order:7"), [7, 8]);
    }

    async fn what_is_unknown_stays_unknown_over_a_stop(store: Store) {
        let (upstream, config, mut proxy) = Proxy::with_config(&store, SETTLES_LATER).await;
        upstream.next([Step::Reset]);
        proxy.refuse(put("/orders/7").token(7), 502, "outcome-unknown").await;
        proxy.stop().await;
        let mut proxy = Proxy::start(&config).await;
        proxy.refuse(put("/orders/7").token(8), 503, "older-in-flight").await;
        proxy.stop().await;
        let proxy = Proxy::start(&config).await;
        proxy.refuse(put("/orders/7").token(8), 503, "older-in-flight").await;
        assert_eq!(upstream.tokens("order:7"), [7]);
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

/// The newest token of each resource among the arrivals from `from` on.
fn newest_tokens(upstream: &Upstream, from: usize) -> HashMap<String, u64> {
    let mut newest = HashMap::new();
    for arrival in upstream.arrivals().iter().skip(from) {
        if let (Some(resource), Some(token)) = (arrival.resource(), arrival.token()) {
            let known = newest.entry(resource.to_owned()).or_insert(token);
            *known = token.max(*known);
        }
    }
    newest
}

#[tokio::test]
async fn the_disk_has_the_mark_before_the_upstream_has_a_byte() {
    let Some(strace) = program("strace").filter(|strace| may_trace(strace)) else {
        lacks("strace");
        return;
    };
    let dir = TempDir::new().expect("a temporary directory");
    let trace = dir.path().join("trace");
    let upstream = Upstream::start().await;
    let store = Store::sqlite();
    let mut runner = Command::new(strace);
    runner
        .args(["-D", "-f", "-y", "-s", "64", "-o"])
        .arg(&trace)
        .args([
            "-e",
            "trace=fdatasync,fsync,read,readv,recvfrom,write,writev,sendto,sendmsg",
        ]);
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
    let mut words: Vec<&str> = Vec::new();
    let mut syncing: Vec<&str> = Vec::new();
    for line in trace.lines() {
        let (pid, call) = line.split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        let synced = if call.starts_with("fdatasync(") || call.starts_with("fsync(") {
            let of_the_store = call.contains("marks.db");
            if of_the_store && call.contains("<unfinished") {
                syncing.push(pid);
            }
            of_the_store && call.ends_with("= 0")
        } else if call.starts_with("<... fdatasync") || call.starts_with("<... fsync") {
            let was = syncing.len();
            syncing.retain(|other| *other != pid);
            syncing.len() < was && call.ends_with("= 0")
        } else {
            false
        };
        let event = if synced {
            "sync"
        } else if call.contains("PUT /orders/traced") {
            let name = call.trim_start_matches("<... ");
            let reading = name.starts_with("read") || name.starts_with("recv");
            if reading { "read" } else { "send" }
        } else {
            continue;
        };
        // Syncs before the first request, and after the last send, are of no interest.
        let idle = matches!(words.last(), None | Some(&"send"));
        if words.last() != Some(&event) && !(event == "sync" && idle) {
            words.push(event);
        }
    }
    words.join(" ")
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
    assert!(
        died.elapsed() >= Duration::from_secs(2),
        "it may still work on 41"
    );
    // B lives: its place is another one.
    let newer = a.start_request(put("/orders/8").token(42));
    a.waiting("order:8", 1).await;
    at_b.1.open();
    all_forwarded([at_b.0, newer]).await;
    upstream.assert_no_overtaking();
}
