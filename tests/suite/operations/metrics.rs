//! The series that dashboards rely on.

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::support::metrics::Series;
use crate::support::postgres::free_port;
use crate::support::steps::REQUESTS;
use crate::support::{
    Config, Gate, Proxy, Step, Store, all_forwarded, eventually, fenced, get, joined,
    over_both_stores, put, request,
};

/// Most scrapes of a sidecar are of one at rest.
#[tokio::test]
async fn a_program_at_rest_writes_few_lines() {
    let routes = "routes: [
        { path: '/orders/{id}', resource: 'order:{id}' },
        { path: '/accounts/{id}', resource: 'account:{id}' },
        { path: '/documents/{id}', resource: 'document:{id}' },
    ]";
    let (_upstream, proxy) = fenced(routes).await;
    let text = proxy.ask("/metrics").await.text();
    let lines = text.lines().count();
    assert!(lines <= 500, "{lines} lines:\n{text}");
}

over_both_stores! {
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
            assert_eq!(metrics.count(REQUESTS, &[("outcome", outcome)]), 1, "{outcome}");
        }
        assert_eq!(metrics.count(REQUESTS, &[]), 7);
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
        let seconds = proxy.sum("fencepost_barrier_wait_seconds_sum", &[]).await;
        assert!(seconds > 0.0, "{seconds}");
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
    let elsewhere = format!("/elsewhere/{secret}");
    proxy.forward(put(&path).token(7_777_777)).await;
    proxy.stale(put(&path).token(7_777_776)).await;
    proxy.forward(get(&elsewhere)).await;
    let unlisted = put(&elsewhere).token(1);
    proxy.refuse(unlisted, 404, "no-route").await;
    let unknown = request("FROB-48151623", "/orders/x");
    proxy.refuse(unknown, 405, "method-not-allowed").await;
    for (series, _) in proxy.metrics().await.series {
        for value in series.labels.values() {
            for part in ["48151623", "777777", "elsewhere"] {
                assert!(!value.contains(part), "{series:?}");
            }
        }
    }
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

    let stalls = upstream.url().replace("http://", "https://");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let plain = format!("https://{}", listener.local_addr().expect("bound"));
    // As an HTTP server answers to what is no HTTP.
    let _plain = tokio::spawn(async move {
        let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(answer).await;
        }
    });
    let gone = format!("http://127.0.0.1:{}", free_port());
    for (url, cause) in [
        (gone.as_str(), "refused"),
        ("unix:/nowhere/upstream.sock", "refused"),
        ("http://no-such-host.invalid:80", "dns"),
        (&stalls, "timeout"),
        (&plain, "tls"),
    ] {
        let within = if cause == "timeout" { "300ms" } else { "20s" };
        let more = format!("upstream: {{ connect_timeout: {within} }}");
        let config = Config::to(url, &Store::sqlite()).with(&more);
        let proxy = Proxy::start(&config).await;
        let answer = proxy.send(put("/orders/7").token(1)).await;
        answer.assert_problem(502, "upstream-unreachable");
        let metrics = proxy.metrics().await;
        let name = "fencepost_upstream_connect_errors_total";
        let its = metrics.count(name, &[("cause", cause)]);
        assert!(its >= 1, "{url}: {cause}");
        assert_eq!(metrics.count(name, &[]), its, "{url}: nothing else");
        assert_eq!(metrics.count(OPEN, &[]), 0, "{url}");
        if cause == "tls" {
            // The answer has no word of the inside; the log has the address and the cause.
            let said = answer.text();
            for inner in [&plain["https://".len()..], "TLS", "corrupt"] {
                assert!(!said.contains(inner), "{inner}: {said}");
            }
            let line = proxy.log_of("outcome", "upstream-unreachable").await;
            let reason = line["reason"].as_str().expect("a reason");
            assert!(reason.contains("it does not speak TLS"), "{line}");
            assert!(reason.contains(&plain["https://".len()..]), "{line}");
        }
    }
}

/// Two replicas with different files are told apart.
#[tokio::test]
async fn the_configuration_has_a_digest() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), "{}").await;
    // A reload may stand between two looks, and between a new series and the end of the old one.
    let digest = async || {
        eventually("one digest in both places", || async {
            let told = proxy.ask("/v1/status").await.json()["config_digest"].take();
            let metrics = proxy.metrics().await;
            let mut series = metrics.series.keys();
            let info = |one: &&Series| one.name == "fencepost_config_info";
            let shown = series.find(info).expect("each scrape finds one");
            let only = !series.any(|one| info(&one));
            (only && told == shown.labels["digest"]).then_some(told)
        })
        .await
    };
    let until = async |is: &dyn Fn(&Value) -> bool| {
        eventually("the other file", async || is(&digest().await).then_some(())).await;
    };
    let first = digest().await;
    proxy.rewrite(&config.clone().with("barrier: { wait: 7s }"));
    until(&|now| *now != first).await;
    proxy.rewrite(&config);
    until(&|now| *now == first).await;
}
