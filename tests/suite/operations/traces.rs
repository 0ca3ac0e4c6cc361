//! Traces: the spans that a collector gets, and the contexts that the upstream gets.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::collector::{Collector, SERVER};
use crate::support::postgres::free_port;
use crate::support::proxy::fencepost;
use crate::support::tls::{Ca, Files};
use crate::support::{Config, Proxy, Step, Store, Upstream, get, or_return, post, put};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const CLIENT: u64 = 3;

/// A proxy with this laid over its configuration that traces to this URL, with further variables of
/// the environment.
async fn tracing(upstream: &Upstream, otlp: &str, more: &str, env: &[(&str, &str)]) -> Proxy {
    let config = Config::new(upstream, &Store::sqlite());
    let config = config.with(&format!("tracing: {{ otlp: '{otlp}', sample: 1 }}"));
    let mut command = fencepost();
    command.envs(env.iter().copied());
    Proxy::start_by(&config.with(more), command, &[]).await
}

/// Spans are sent soon.
const SOON: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "100");

async fn plain(upstream: &Upstream, collector: &Collector, more: &str) -> Proxy {
    let attributes = "deployment.environment.name=test";
    let environment = [SOON, ("OTEL_RESOURCE_ATTRIBUTES", attributes)];
    tracing(upstream, &collector.url(), more, &environment).await
}

fn named<'a>(trace: &'a [Value], name: &str) -> &'a Value {
    let found = trace.iter().find(|span| span["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {trace:#?}"))
}

/// Asserts that the span has these attributes.
#[track_caller]
fn assert_attributes(span: &Value, wanted: &Value) {
    for (name, value) in wanted.as_object().expect("an object") {
        assert_eq!(&span["attributes"][name], value, "{name}: {span}");
    }
}

/// The parts are in the server's span, one after the other.
fn assert_parts(server: &Value, parts: [&Value; 3]) {
    let times = |span: &Value| {
        let time = |name| span[name].as_u64().expect("a time");
        (time("began"), time("ended"))
    };
    let (began, ended) = times(server);
    for part in parts {
        assert_eq!(part["parent"], server["span"]);
        let (from, to) = times(part);
        let order = [began, from, to, ended];
        assert!(order.is_sorted(), "{part} in {server}");
    }
    let [check, wait, client] = parts.map(times);
    assert!(check.1 <= wait.1 && wait.0 <= client.0);
}

/// What a request with a newer and with a stale token look like to a collector.
#[tokio::test]
async fn a_collector_gets_decisions() {
    let collector = or_return!(Collector::start(&[]).await);
    let upstream = Upstream::start().await;
    let proxy = plain(&upstream, &collector, "{}").await;
    let request = put("/orders/7?code=secret").token(5);
    let request = request
        .header("X-Request-Id", "checkout-17")
        .header("Traceparent", "no context")
        .header("Tracestate", "a=1");
    proxy.forward(request).await;

    let trace = collector.trace(4, |_| true).await;
    let server = &trace[0];
    assert_eq!(server["name"], "PUT /orders/{id}");
    let place = json!([server["kind"], server["status"], server["parent"]]);
    assert_eq!(place, json!([SERVER, 0, ""]));
    assert_attributes(
        server,
        &json!({
            "http.request.method": "PUT", "http.route": "/orders/{id}", "url.path": "/orders/7",
            "client.address": "127.0.0.1", "http.response.status_code": 200,
            "fencepost.outcome": "advanced", "fencepost.resource": "order:7",
            "fencepost.token": "5", "fencepost.request_id": "checkout-17",
        }),
    );
    assert!(!server.to_string().contains("secret"), "{server}");
    let wanted = json!({
        "service.name": "fencepost", "service.version": env!("CARGO_PKG_VERSION"),
        "deployment.environment.name": "test", "service.instance.id": proxy.logs()[0]["instance"],
    });
    for (name, value) in wanted.as_object().expect("an object") {
        assert_eq!(&server["resource"][name], value, "{name}: {server}");
    }

    let check = named(&trace, "check");
    let advanced = json!({ "fencepost.check.result": "advanced" });
    assert_attributes(check, &advanced);
    let (wait, client) = (named(&trace, "barrier wait"), named(&trace, "PUT"));
    let place = json!([client["kind"], client["status"]]);
    assert_eq!(place, json!([CLIENT, 0]));
    let port = upstream.address().port();
    assert_attributes(
        client,
        &json!({
            "http.response.status_code": 200, "server.address": "127.0.0.1", "server.port": port,
        }),
    );
    assert_parts(server, [check, wait, client]);
    // The upstream continues under the exchange. What came along without a valid context is gone.
    let id = |name| client[name].as_str().expect("an id");
    let context = format!("00-{}-{}-01", id("trace"), id("span"));
    let arrival = upstream.only();
    assert_eq!(arrival.head.get("traceparent"), Some(&*context));
    assert_eq!(arrival.head.get("tracestate"), None);

    proxy.stale(put("/orders/7").token(4)).await;
    let refused = |span: &Value| span["attributes"]["fencepost.outcome"] == "stale-token";
    let trace = collector.trace(2, refused).await;
    assert_eq!(trace[0]["status"], 0);
    assert_attributes(
        &trace[0],
        &json!({
            "fencepost.mark": "5", "fencepost.gap": "1", "http.response.status_code": 412,
        }),
    );
    let stale = json!({ "fencepost.check.result": "stale-token" });
    assert_attributes(named(&trace, "check"), &stale);
    let line = proxy.log_of("message", "refused").await;
    assert_eq!(line["trace_id"], trace[0]["trace"]);
}

/// The caller's decision holds; without a caller's context, `sample` decides.
#[tokio::test]
async fn a_callers_context_decides() {
    let collector = or_return!(Collector::start(&[]).await);
    let upstream = Upstream::start().await;
    let proxy = plain(&upstream, &collector, "tracing: { sample: 0 }").await;
    let context = |flags: &str| format!("00-{TRACE}-{PARENT}-{flags}");
    let with = |flags| {
        let request = put("/orders/7").token(5).header("Tracestate", "a=1");
        request.header("Traceparent", context(flags))
    };
    // Neither is traced: what came goes on as it came, and nothing is invented.
    proxy.send(with("00")).await.assert_forwarded();
    proxy.forward(put("/orders/7").token(5)).await;
    let arrivals = upstream.arrivals();
    let parent = |at: usize| arrivals[at].head.get("traceparent");
    assert_eq!((parent(0), parent(1)), (Some(&*context("00")), None));

    proxy.forward(with("01")).await;
    let trace = collector.trace(4, |_| true).await;
    let server = &trace[0];
    for (name, value) in [("trace", TRACE), ("parent", PARENT), ("state", "a=1")] {
        assert_eq!(server[name], value, "{server}");
    }
    let client = named(&trace, "PUT")["span"].as_str().expect("an id");
    let last = upstream.last();
    let expected = format!("00-{TRACE}-{client}-01");
    assert_eq!(last.head.get("traceparent"), Some(&*expected));
    assert_eq!(last.head.get("tracestate"), Some("a=1"));
    assert_eq!(collector.spans().len(), 4, "and no other one was traced");
}

/// Other requests than fenced ones, and exchanges that fail.
#[tokio::test]
async fn every_kind_of_request_is_traced() {
    let collector = or_return!(Collector::start(&[]).await);
    let upstream = Upstream::start().await;
    let routes = "routes:\n\
        - { path: '/orders/{id}', resource: 'order:{id}' }\n\
        - { path: '/seen/{id}', resource: 's:{id}', mode: observe }\n";
    let proxy = plain(&upstream, &collector, routes).await;
    let outcome = |word: &'static str| {
        let is = move |span: &Value| span["attributes"]["fencepost.outcome"] == word;
        move |span: &Value| span["kind"] == SERVER && is(span)
    };

    assert_eq!(proxy.send(get("/elsewhere")).await.status(), 200);
    let trace = collector.trace(2, outcome("unfenced")).await;
    assert_eq!(trace[0]["name"], "GET", "no route, no path in the name");
    assert_eq!(named(&trace[1..], "GET")["kind"], CLIENT);

    let claim = post("/.well-known/fencing/claim").token(3);
    let claim = claim.header("X-Fencing-Target", "PUT /orders/1");
    assert_eq!(proxy.send(claim).await.status(), 204);
    let trace = collector.trace(3, outcome("claimed")).await;
    let of_client = trace.iter().any(|span| span["kind"] == CLIENT);
    assert!(!of_client, "{trace:#?}");

    // Observed requests are answered before they are judged.
    proxy.send(put("/seen/1").token(5)).await.assert_forwarded();
    let seen = |span: &Value| span["name"] == "PUT /seen/{id}";
    let trace = collector.trace(3, seen).await;
    let advanced = json!({ "fencepost.outcome": "advanced" });
    assert_attributes(named(&trace, "check"), &advanced);

    // An answer that never comes.
    upstream.next([Step::Close]);
    let broken = proxy.send(put("/orders/2").token(5)).await;
    broken.assert_problem(502, "outcome-unknown");
    let trace = collector.trace(4, outcome("outcome-unknown")).await;
    for (span, name) in [(&trace[0], "server"), (named(&trace, "PUT"), "client")] {
        assert_eq!(span["status"], 2, "{name}: {span}");
        assert_attributes(span, &json!({ "error.type": "outcome-unknown" }));
    }
}

/// An API key, and a CA that the system does not know.
#[tokio::test]
async fn a_collector_is_reached_over_tls_with_its_key() {
    let (ca, files) = (Ca::new("collectors"), Files::new());
    files.put_pair("collector", &ca.server(&["localhost"]));
    files.put("ca.pem", ca.pem());
    let path = |name: &str| files.path(name).display().to_string();
    let (cert, key) = (path("collector.crt"), path("collector.key"));
    let collector = or_return!(Collector::start(&[&cert, &key]).await);
    let upstream = Upstream::start().await;
    let otlp = format!("https://localhost:{}", collector.http);
    let environment = [
        SOON,
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=sesame"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &path("ca.pem")),
    ];
    let proxy = tracing(&upstream, &otlp, "{}", &environment).await;
    proxy.forward(put("/orders/7").token(5)).await;
    let with_key = |span: &Value| span["fields"]["x-api-key"] == "sesame";
    collector.trace(4, with_key).await;
    let logged: String = proxy.logs().iter().map(Value::to_string).collect();
    assert!(!logged.contains("sesame"), "{logged}");
    let shown = proxy.ask("/v1/config").await.text();
    assert!(!shown.contains("sesame"), "{shown}");
}

/// No request waits for a collector, and the log says that spans are lost.
#[tokio::test]
async fn a_collector_that_fails_costs_no_request() {
    let collector = or_return!(Collector::start(&[]).await);
    let upstream = Upstream::start().await;
    let gone = format!("http://127.0.0.1:{}", free_port());
    for (otlp, says) in [(&gone, ""), (&collector.url(), "400")] {
        collector.process.signal(Signal::USR1);
        let mut proxy = tracing(&upstream, otlp, "{}", &[SOON]).await;
        for token in 5..15 {
            proxy.forward(put("/orders/7").token(token)).await;
        }
        let lost = "spans could not be sent, and are lost";
        let line = proxy.log_of("message", lost).await;
        let error = line["error"].as_str().expect("an error");
        assert!(error.contains(says), "{line}");
        assert_eq!(line["collector"], format!("{otlp}/v1/traces"));
        proxy.stop().await;
    }
    assert!(collector.spans().is_empty());
}

/// What has not been sent when the process stops goes then.
#[tokio::test]
async fn the_last_spans_go_at_the_stop() {
    let collector = or_return!(Collector::start(&[]).await);
    let upstream = Upstream::start().await;
    let late = [("OTEL_BSP_SCHEDULE_DELAY", "3600000")];
    let mut proxy = tracing(&upstream, &collector.url(), "{}", &late).await;
    proxy.forward(put("/orders/7").token(5)).await;
    assert!(collector.spans().is_empty());
    proxy.stop().await;
    collector.trace(4, |_| true).await;
}
