//! The series that dashboards rely on.

use crate::support::metrics::Metrics;
use crate::support::postgres::free_port;
use crate::support::{
    Config, Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, fenced, get, joined,
    over_both_stores, put,
};

const COUNTERS: &[(&str, &[&str])] = &[
    ("fencepost_requests_total", &["route", "outcome"]),
    ("fencepost_stale_rejections_total", &["route", "decided_by"]),
    ("fencepost_store_errors_total", &["kind"]),
    ("fencepost_mark_regressions_total", &[]),
    ("fencepost_overrides_total", &[]),
    ("fencepost_pruned_marks_total", &[]),
    ("fencepost_upstream_connect_errors_total", &["cause"]),
];

const GAUGES: &[(&str, &[&str])] = &[
    ("fencepost_upstream_in_flight", &["route"]),
    ("fencepost_waiting", &["route"]),
    ("fencepost_unknown_outcomes", &[]),
    ("fencepost_route_mode", &["route", "mode"]),
    ("fencepost_store_up", &[]),
    ("fencepost_config_reload_ok", &[]),
    ("fencepost_config_loaded_timestamp_seconds", &[]),
    ("fencepost_lease_remaining_seconds", &[]),
    ("fencepost_stale_resources", &[]),
    ("fencepost_build_info", &["version", "commit"]),
    ("fencepost_instance_info", &["id"]),
    ("fencepost_config_info", &["digest"]),
    ("fencepost_upstream_connections", &[]),
];

const HISTOGRAMS: &[(&str, &[&str])] = &[
    ("fencepost_stale_gap", &["route"]),
    ("fencepost_store_batch_size", &[]),
    ("fencepost_store_commit_seconds", &[]),
    ("fencepost_barrier_wait_seconds", &["route"]),
];

/// They appear with their first event.
const LATENCIES: &[(&str, &[&str])] = &[
    ("fencepost_check_seconds", &["result"]),
    ("fencepost_upstream_header_seconds", &["route", "code"]),
    ("fencepost_upstream_response_seconds", &["route", "code"]),
    ("fencepost_request_duration_seconds", &["route"]),
];

const OUTCOMES: &[&str] = &[
    "advanced",
    "current",
    "stale-token",
    "token-required",
    "malformed-token",
    "ambiguous-request",
    "store-unavailable",
    "older-in-flight",
    "overloaded",
    "unfenced",
    "observed-stale-token",
];

/// Each family is of this kind, and its first series has these labels.
fn exist(metrics: &Metrics, kind: &str, families: &[(&str, &[&str])]) {
    for (name, labels) in families {
        assert_eq!(
            metrics.types.get(*name).map(String::as_str),
            Some(kind),
            "{name}"
        );
        let series = if kind == "histogram" {
            format!("{name}_count")
        } else {
            (*name).to_owned()
        };
        let first = metrics.series.iter().find(|(one, _)| one.name == series);
        let (first, _) = first.unwrap_or_else(|| panic!("{name} has no series"));
        for label in *labels {
            assert!(
                first.labels.contains_key(*label),
                "{name} has no label {label}: {first:?}"
            );
        }
        assert_eq!(first.labels.len(), labels.len(), "{name}: {first:?}");
    }
}

over_both_stores! {
    async fn series_exist_from_the_start_and_latencies_from_their_first_event(store: Store) {
        let upstream = Upstream::start().await;
        // Only a route that observes can have observed outcomes.
        let routes = "routes: [
            { path: '/orders/{id}', resource: 'order:{id}' },
            { path: '/trial/{id}', resource: 'trial:{id}', mode: observe },
        ]";
        let proxy = Proxy::start(&Config::new(&upstream, &store).with(routes)).await;
        let metrics = proxy.metrics().await;
        for (kind, families) in [("counter", COUNTERS), ("gauge", GAUGES), ("histogram", HISTOGRAMS)] {
            exist(&metrics, kind, families);
        }
        for (name, _) in LATENCIES {
            assert!(!metrics.types.contains_key(*name), "{name} before its first event");
        }
        let own = metrics.series.iter().filter(|(series, _)| series.name.starts_with("fencepost_"));
        for (series, value) in own {
            let counts = series.name.ends_with("_total") || series.name.ends_with("_count");
            assert!(!counts || *value == 0.0 || series.name.contains("store_"), "{series:?} starts at {value}");
        }
        for outcome in OUTCOMES {
            assert!(metrics.has("fencepost_requests_total", &[("outcome", outcome)]), "{outcome}");
        }
        for decided_by in ["memory", "store", "barrier"] {
            assert!(metrics.has("fencepost_stale_rejections_total", &[("decided_by", decided_by)]));
        }
        assert!(metrics.sum("fencepost_store_up", &[]) > 0.0);
        assert!(metrics.sum("fencepost_config_reload_ok", &[]) > 0.0);
        proxy.forward(put("/orders/7").token(5)).await;
        exist(&proxy.metrics().await, "histogram", LATENCIES);
    }

    /// Most scrapes of a sidecar are of one at rest.
    async fn a_program_at_rest_writes_few_lines(store: Store) {
        let upstream = Upstream::start().await;
        let routes = "routes: [
            { path: '/orders/{id}', resource: 'order:{id}' },
            { path: '/accounts/{id}', resource: 'account:{id}' },
            { path: '/documents/{id}', resource: 'document:{id}' },
        ]";
        let proxy = Proxy::start(&Config::new(&upstream, &store).with(routes)).await;
        let text = proxy.ask("/metrics").await.text();
        let lines = text.lines().count();
        assert!(lines <= 500, "{lines} lines:\n{text}");
    }

    async fn each_request_is_counted_once_by_what_became_of_it(store: Store) {
        let (_upstream, proxy) = Proxy::before(&store, "{}").await;
        proxy.forward(put("/orders/7").token(5)).await;
        proxy.forward(put("/orders/7").token(5)).await;
        proxy.stale(put("/orders/7").token(4)).await;
        proxy.refuse(put("/orders/7"), 428, "token-required").await;
        proxy.refuse(put("/orders/7").token("x"), 400, "malformed-token").await;
        proxy.refuse(put("/orders/../7").token(9), 400, "ambiguous-request").await;
        proxy.forward(get("/orders/7")).await;
        proxy.until_none("fencepost_upstream_in_flight").await;
        let metrics = proxy.metrics().await;
        for outcome in ["advanced", "current", "stale-token", "token-required", "malformed-token", "ambiguous-request", "unfenced"] {
            let count = metrics.count("fencepost_requests_total", &[("outcome", outcome)]);
            assert_eq!(count, 1, "{outcome}");
        }
        assert_eq!(metrics.count("fencepost_requests_total", &[]), 7);
        assert_eq!(metrics.count("fencepost_stale_gap_sum", &[]), 1);
        assert!(metrics.sum("fencepost_stale_resources", &[]) >= 1.0);
    }

    async fn what_decided_is_told_apart(store: Store) {
        let more = "barrier: { wait: 25s }";
        let (upstream, config, mut proxy) = Proxy::with_config(&store, more).await;
        let decided = async |proxy: &Proxy, by: &str| {
            proxy.sum("fencepost_stale_rejections_total", &[("decided_by", by)]).await
        };
        let (older, gate) = proxy.held(&upstream, put("/orders/7").token(41)).await;
        let waiter = proxy.start_request(put("/orders/7").token(42));
        proxy.waiting("order:7", 1).await;
        assert_eq!(proxy.count("fencepost_waiting", &[("route", "/orders/{id}")]).await, 1);
        proxy.stale(put("/orders/7").token(40)).await;
        assert!(decided(&proxy, "memory").await >= 1.0);
        let newest = proxy.start_request(put("/orders/7").token(43));
        joined(waiter).await.assert_problem(412, "stale-token");
        assert!(decided(&proxy, "barrier").await >= 1.0);
        gate.open();
        all_forwarded([older, newest]).await;
        assert_eq!(proxy.count("fencepost_waiting", &[]).await, 0);
        proxy.stop().await;
        // A fresh instance has no memory of it: the store knows.
        let proxy = Proxy::start(&config).await;
        proxy.stale(put("/orders/7").token(42)).await;
        assert!(decided(&proxy, "store").await >= 1.0);
    }
}

#[tokio::test]
async fn no_label_names_a_resource_a_token_or_a_path() {
    let (_upstream, proxy) = fenced("unmatched: safe-only").await;
    let secret = "customer-48151623";
    let path = format!("/orders/{secret}");
    proxy.forward(put(&path).token(7_777_777)).await;
    proxy.stale(put(&path).token(7_777_776)).await;
    proxy.forward(get(&format!("/elsewhere/{secret}"))).await;
    proxy
        .refuse(
            put(&format!("/elsewhere/{secret}")).token(1),
            404,
            "no-route",
        )
        .await;
    proxy
        .refuse(
            crate::support::request("FROB-48151623", "/orders/x"),
            405,
            "method-not-allowed",
        )
        .await;
    for (series, _) in proxy.metrics().await.series {
        for value in series.labels.values() {
            for part in ["48151623", "777777", "elsewhere"] {
                assert!(!value.contains(part), "{series:?}");
            }
        }
    }
    // The log is where those are.
    let refusal = proxy
        .logged("a line per refusal", |line| {
            line.to_string().contains(secret)
        })
        .await;
    for field in ["resource", "token", "mark", "gap", "route", "client"] {
        assert!(refusal.get(field).is_some(), "{field}: {refusal}");
    }
}

#[tokio::test]
async fn the_latest_refusals_can_be_read() {
    let (_upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.stale(put("/orders/7").token(4)).await;
    let all = proxy.ask("/v1/rejections").await.json();
    let latest = &all["rejections"][0];
    assert_eq!(latest["resource"], "order:7");
    assert_eq!(
        (&latest["token"], &latest["mark"]),
        (&"4".into(), &"5".into())
    );
}

/// From the head to the end of the answer, whatever the answer is.
#[tokio::test]
async fn every_request_is_measured_to_its_end() {
    let (upstream, proxy) = fenced("{}").await;
    let measured = async || {
        let name = "fencepost_request_duration_seconds_count";
        proxy.count(name, &[("route", "/orders/{id}")]).await
    };
    proxy.forward(put("/orders/7").token(2)).await;
    proxy.forward(get("/orders/7")).await;
    proxy.stale(put("/orders/7").token(1)).await;
    // A client that leaves in the middle is measured as well.
    let gate = Gate::shut();
    let head = Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    upstream.next([head, Step::Wait(gate.clone())]);
    let exchange = proxy.begin(&get("/orders/8"), b"").await;
    upstream.reached(3).await;
    // The fourth one runs on.
    eventually("the end of the others", async || {
        (measured().await == 3).then_some(())
    })
    .await;
    drop(exchange);
    gate.open();
    eventually("its end", async || (measured().await == 4).then_some(())).await;
}

const OPEN: &str = "fencepost_upstream_connections";

#[tokio::test]
async fn connections_to_the_upstream_are_counted_and_so_are_their_failures() {
    let (upstream, proxy) = fenced("{}").await;
    assert_eq!(proxy.count(OPEN, &[]).await, 0);
    proxy.forward(get("/orders/7")).await;
    assert_eq!(proxy.count(OPEN, &[]).await, 1, "it is kept");

    let plain = upstream.url().replace("http://", "https://");
    let gone = format!("http://127.0.0.1:{}", free_port());
    for (url, cause) in [
        (gone.as_str(), "refused"),
        ("unix:/nowhere/upstream.sock", "refused"),
        ("http://no-such-host.invalid:80", "dns"),
        (&plain, "timeout"),
    ] {
        let config = Config::to(url, &Store::sqlite()).with("upstream: { connect_timeout: 300ms }");
        let proxy = Proxy::start(&config).await;
        let answer = proxy.send(put("/orders/7").token(1)).await;
        answer.assert_problem(502, "upstream-unreachable");
        let metrics = proxy.metrics().await;
        let name = "fencepost_upstream_connect_errors_total";
        let its = metrics.count(name, &[("cause", cause)]);
        assert!(its >= 1, "{url}: {cause}");
        assert_eq!(metrics.count(name, &[]), its, "{url}: nothing else");
        assert_eq!(metrics.count(OPEN, &[]), 0, "{url}");
    }
}

/// Two replicas with different files are told apart.
#[tokio::test]
async fn the_configuration_has_a_digest() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start_linked(&config).await;
    // A reload may stand between two looks, and between a new series and the end of the old one.
    let digest = async || {
        eventually("one digest in both places", || async {
            let told = proxy.ask("/v1/status").await.json();
            let told = told["config_digest"].as_str().expect("a digest").to_owned();
            let metrics = proxy.metrics().await;
            let series = metrics.series.keys();
            let shown: Vec<_> = series
                .filter(|one| one.name == "fencepost_config_info")
                .map(|one| one.labels["digest"].clone())
                .collect();
            assert!(!shown.is_empty(), "each scrape finds one");
            (shown == [told.clone()]).then_some(told)
        })
        .await
    };
    let first = digest().await;
    proxy.rewrite(&config.clone().with("barrier: { wait: 7s }"));
    eventually("the other file", async || {
        (digest().await != first).then_some(())
    })
    .await;
    proxy.rewrite(&config);
    eventually("the first file", async || {
        (digest().await == first).then_some(())
    })
    .await;
}
