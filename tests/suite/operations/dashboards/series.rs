//! Which series there are: those that alerts and panels name exist, and their number does not grow
//! with the resources.

use std::collections::BTreeSet;
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};

use super::{alerts, expanded, questions, text};
use crate::support::metrics::Metrics;
use crate::support::run::run;
use crate::support::store::tool;
use crate::support::wire::Wire;
use crate::support::{fenced, or_return, post, put};

/// Series that come from none of ours.
const NOT_OURS: &[&str] = &[
    "up",
    "kube_cronjob_created",
    "kube_cronjob_status_last_schedule_time",
    "kube_cronjob_status_last_successful_time",
];
/// Histograms whose series appear with their first event.
const LATENCIES: &[&str] = &[
    "fencepost_check_seconds",
    "fencepost_request_duration_seconds",
    "fencepost_upstream_header_seconds",
    "fencepost_upstream_response_seconds",
];

/// The metrics that an expression names.
fn metric_names(expr: &str) -> BTreeSet<String> {
    let names = Regex::new(r"\b(?:up|(?:fencepost|process|kube)_\w+)\b").expect("a pattern");
    let found = names.find_iter(expr);
    found.map(|name| name.as_str().to_owned()).collect()
}

/// Each label that an expression compares with constants, and those constants.
fn label_values(expr: &str) -> Vec<(String, String)> {
    let labels = "outcome|mode|limit|kind|certificate|decided_by|route";
    let compared = Regex::new(&format!(r#"\b({labels})[=!]~?=?"([^"]*)""#)).expect("a pattern");
    let mut found = Vec::new();
    for compared in compared.captures_iter(expr) {
        let values = compared[2]
            .split('|')
            .filter(|value| !value.starts_with('$'));
        found.extend(values.map(|value| (compared[1].to_owned(), value.to_owned())));
    }
    found
}

/// A scrape at rest, and one with the latencies, which appear with their first event.
async fn scrapes() -> [Metrics; 2] {
    // A route of each mode.
    let routes = "routes: [
       { path: '/orders/{id}', resource: 'order:{id}' },
       { path: '/trial/{id}', resource: 'trial:{id}', mode: observe },
       { path: /health, mode: bypass },
     ]";
    let (_upstream, proxy) = fenced(routes).await;
    let at_rest = proxy.metrics().await;
    proxy.forward(put("/orders/7").token(5)).await;
    [at_rest, proxy.metrics().await]
}

#[tokio::test]
async fn what_alerts_and_panels_name_is_there_from_the_start() {
    let [at_rest, metrics] = scrapes().await;
    let names_of = |metrics: &Metrics| -> BTreeSet<String> {
        let series = metrics.series.keys();
        series.map(|series| series.name.clone()).collect()
    };
    let (names_at_rest, names) = (names_of(&at_rest), names_of(&metrics));
    let panels = questions();
    let alerts = alerts();
    let of_alert = |alert| {
        (
            text(alert, "alert").to_owned(),
            expanded(text(alert, "expr")),
        )
    };
    let mut expressions = panels.clone();
    expressions.extend(alerts.iter().map(of_alert));
    assert!(expressions.len() > 60, "these are not all: {expressions:?}");
    for (index, (who, expr)) in expressions.iter().enumerate() {
        let asked = metric_names(expr);
        assert!(!asked.is_empty(), "{who} asks for nothing");
        for name in asked {
            let of_panel = index < panels.len();
            let is_late = LATENCIES.iter().any(|late| name.starts_with(late));
            let late = of_panel && is_late && names.contains(&name);
            let there = late || names_at_rest.contains(&name) || NOT_OURS.contains(&&*name);
            assert!(there, "{who}: there is no {name}");
        }
        for (label, value) in label_values(expr) {
            let there = exists(&at_rest, &label, &value);
            assert!(there, "{who}: {label} is never {value}");
        }
    }
    // And the other way round: nothing is measured that nobody looks at.
    let all = expressions.iter().map(|(_, expr)| metric_names(expr));
    let looked_at: BTreeSet<String> = all.flatten().collect();
    for family in metrics.types.keys() {
        let mut ends = ["", "_bucket", "_count", "_sum"].iter();
        let shown = ends.any(|end| looked_at.contains(&format!("{family}{end}")));
        assert!(shown, "{family} is on no panel and in no alert");
    }
}

fn exists(metrics: &Metrics, label: &str, value: &str) -> bool {
    let series = metrics.series.keys();
    let mut all = series.filter_map(|series| series.labels.get(label));
    match value.strip_suffix(".*") {
        Some(prefix) => all.any(|one| one.starts_with(prefix)),
        None => all.any(|one| one == value),
    }
}

/// An expression as Grafana asks it: `All` for every variable, and its own ranges.
fn filled_in(expr: &str) -> String {
    let expr = expr.replace("$__rate_interval", "5m");
    let mut expr = expr.replace("$__range", "15m");
    for name in ["cluster", "namespace", "job", "pod", "instance", "route"] {
        expr = expr.replace(&format!("${name}"), ".*");
    }
    assert!(!expr.contains('$'), "a variable that is not known: {expr}");
    expr
}

/// Each question finds a number in the series of a real scrape, with the labels that a
/// `PodMonitor` gives, once each has counted. promtool asks them as recording rules.
#[tokio::test]
async fn every_panel_has_data() {
    let promtool = or_return!(tool("promtool"));
    let [_, metrics] = scrapes().await;
    let target = "cluster=\"one\",namespace=\"pay\",job=\"orders\",pod=\"a\",\
        instance=\"10.0.0.1:7081\",container=\"fencepost\"";
    let counts = ["_total", "_bucket", "_count", "_sum"];
    let series = metrics.series.iter().map(|(series, value)| {
        let labels = series.labels.iter();
        let labels = labels.map(|(name, value)| format!("{name}=\"{value}\","));
        let labels = labels.collect::<Vec<_>>().concat();
        let value = if value.is_finite() { *value } else { 1.0 }.max(1.0);
        let step = u8::from(counts.iter().any(|end| series.name.ends_with(end)));
        let name = format!("{}{{{labels}{target}}}", series.name);
        json!({ "series": name, "values": format!("{value}+{step}x20") })
    });
    let series: Vec<Value> = series.collect();
    let questions = questions();
    let rules = questions.iter().enumerate().map(|(n, (_, expr))| {
        // NaN is not at or above it.
        let expr = format!("count(({}) >= -Inf)", filled_in(expr));
        json!({ "record": format!("panel:{n}"), "expr": expr })
    });
    let rules: Vec<Value> = rules.collect();
    let finds = (0..questions.len()).map(|n| {
        let samples = json!([{ "labels": "{}", "value": 1 }]);
        let expr = format!("panel:{n} > bool 0");
        json!({ "expr": expr, "eval_time": "20m", "exp_samples": samples })
    });
    let finds: Vec<Value> = finds.collect();
    let dir = tempfile::tempdir().expect("a directory");
    let rules = json!({ "groups": [{ "name": "panels", "rules": rules }] });
    let test = json!({
        "rule_files": ["rules.yaml"], "evaluation_interval": "20m",
        "tests": [{ "interval": "1m", "input_series": series, "promql_expr_test": finds }],
    });
    for (name, content) in [("rules.yaml", rules), ("test.yaml", test)] {
        std::fs::write(dir.path().join(name), content.to_string()).expect("it is writable");
    }
    let mut command = Command::new(promtool);
    command.args(["test", "rules", "test.yaml"]);
    command.current_dir(dir.path());
    let ended = run(command).await;
    assert_eq!(ended.code, Some(0), "{}\n{questions:#?}", ended.text());
}

/// Connections that send at once; each waits for an answer before it sends again, so this many
/// share a commit.
const CONNECTIONS: u32 = 125;
const RESOURCES: u32 = 10_000;

/// Every resource gets a mark; of each four, one is written to, and one sees a stale write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_resources_add_no_series() {
    let (_upstream, proxy) = fenced("{}").await;
    let names = |metrics: &Metrics| metrics.series.keys().cloned().collect::<BTreeSet<_>>();
    // The latencies of the route and of claims.
    proxy.forward(put("/orders/first").token(5)).await;
    let claim = |id: &str| {
        let claim = post("/.well-known/fencing/claim").token(5);
        claim.header("X-Fencing-Resource", format!("order:{id}"))
    };
    assert_eq!(proxy.send(claim("first")).await.status(), 204);
    let before = names(&proxy.metrics().await);
    let data = proxy.data();
    let clients = (0..CONNECTIONS).map(|client| async move {
        let mut wire = Wire::connect(data).await.expect("the proxy listens");
        for n in (0..RESOURCES).filter(|n| n % CONNECTIONS == client) {
            assert_eq!(wire.status(&claim(&n.to_string()).bytes()).await, "204");
            let write = put(&format!("/orders/{n}"));
            // Each client has a remainder of its own, and every fourth of its numbers another
            // quotient.
            match n / CONNECTIONS % 4 {
                0 => assert_eq!(wire.status(&write.token(6).bytes()).await, "200"),
                1 => assert_eq!(wire.status(&write.token(4).bytes()).await, "412"),
                _ => {}
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let metrics = proxy.metrics().await;
    assert_eq!(names(&metrics), before);
    let of = |outcome| metrics.count("fencepost_requests_total", &[("outcome", outcome)]);
    let (claimed, stale) = (of("claimed"), of("stale-token"));
    assert!(claimed > u64::from(RESOURCES), "{claimed}");
    assert!(stale > 2_000, "{stale}");
    // The bound of what is counted.
    assert_eq!(metrics.count("fencepost_stale_resources", &[]), 1_000);
}
