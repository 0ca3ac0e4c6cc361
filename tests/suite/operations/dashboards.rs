//! The alerts, the dashboard and the runbook, held against the real thing: Debian's Prometheus
//! scrapes real proxies under mixed traffic, and every expression is asked of it. An alert or a
//! panel that names a series which is not there stays silent for ever, and looks like peace.

mod files;
pub mod prometheus;
mod runbook;
mod scene;
mod series;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use self::prometheus::Prometheus;
use self::scene::Scene;
use crate::support::run::{run, run_fed};
use crate::support::skip::lacks;
use crate::support::store::tool;
use crate::support::{eventually, fenced, or_return, put};

/// A file of the project.
fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every alert of the rule file.
fn alerts() -> Vec<Value> {
    let mut rules = rules();
    rules.retain(|rule| rule.get("alert").is_some());
    rules
}

/// An expression with those of the recording rules in the place of their names.
fn expanded(expr: &str) -> String {
    let mut expr = expr.to_owned();
    for rule in rules() {
        if let Some(record) = rule["record"].as_str() {
            expr = expr.replace(record, &format!("({})", text(&rule, "expr")));
        }
    }
    expr
}

/// Every rule of the rule file.
fn rules() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read("config/prometheus/alerts.yaml")).expect("YAML");
    let groups = file["groups"].as_array().expect("groups");
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"));
    rules.cloned().collect()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("no text `{name}` in {value}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("config/grafana/fencepost.json")).expect("JSON")
}

/// All panels and rows, those in collapsed rows too.
fn panels() -> Vec<Value> {
    let dashboard = dashboard();
    let open = dashboard["panels"].as_array().expect("panels");
    let mut panels = open.clone();
    for row in open.iter().filter(|panel| panel["type"] == "row") {
        panels.extend(row["panels"].as_array().expect("panels").iter().cloned());
    }
    panels
}

/// The panels that ask something: title and expression.
fn questions() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = panels();
    let mut questions = Vec::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().expect("targets") {
            questions.push((
                text(panel, "title").to_owned(),
                text(target, "expr").to_owned(),
            ));
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().expect("a list") {
        if let Some(expr) = annotation["expr"].as_str() {
            questions.push((text(annotation, "name").to_owned(), expr.to_owned()));
        }
    }
    questions
}

/// Puts in what Grafana would: `All` for every variable, and ranges that the test's few seconds of
/// scrapes lie in.
fn filled_in(expr: &str) -> String {
    let mut expr = expr
        .replace("$__rate_interval", "5m")
        .replace("$__range", "15m");
    for variable in [
        "$cluster",
        "$namespace",
        "$job",
        "$pod",
        "$instance",
        "$route",
    ] {
        expr = expr.replace(variable, ".*");
    }
    assert!(!expr.contains('$'), "a variable that is not known: {expr}");
    expr
}

/// Which job each alert fires for in the [`Scene`]. Those that are missing (lost lines of the log,
/// a hundred thousand new resources, two configurations in one job, a certificate with between a day
/// and a week to go, the fence drill, operations whose outcome nobody knows, which are counted each
/// minute) are left to promtool's cases.
const FIRE: &[(&str, &str)] = &[
    ("FencepostTokensReset", "reset"),
    ("FencepostStaleRequests", "orders"),
    ("FencepostTokensMissing", "orders"),
    ("FencepostImplausibleTokens", "orders"),
    ("FencepostMarkRegression", "orders"),
    ("FencepostMarkOverridden", "orders"),
    ("FencepostRouteStoppedEnforcing", "orders"),
    ("FencepostRouteOnlyObserved", "orders"),
    ("FencepostUnknownOutcomes", "orders"),
    ("FencepostUnknownOutcomesStand", "orders"),
    ("FencepostOlderInFlight", "orders"),
    ("FencepostBarrierWaits", "orders"),
    ("FencepostUpstreamUnreachable", "dead-end"),
    ("FencepostLimitReached", "orders"),
    ("FencepostStoreDown", "cut-off"),
    ("FencepostMarksGone", "emptied"),
    ("FencepostStoreErrors", "cut-off"),
    ("FencepostStoreUnavailable", "cut-off"),
    ("FencepostLeaseRunsOut", "cut-off"),
    ("FencepostReloadFailed", "orders"),
    ("FencepostRouteTablesDiffer", "orders"),
    ("FencepostCertificateExpiresNow", "gone"),
    ("FencepostDown", "gone"),
    ("FencepostAbsent", "gone"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::too_many_lines, reason = "one scenario, in order")]
async fn every_panel_has_data_and_the_alerts_fire_for_what_they_are_for() {
    let mut scene = or_return!(Scene::set().await);
    let Some(prometheus) = Prometheus::start(&scene.targets()).await else {
        lacks("prometheus");
        return;
    };
    scene.play().await;
    for seen in [
        r#"fencepost_config_reload_ok{job="orders"} == 0"#,
        r#"fencepost_stale_resources{job="reset"} > 25"#,
        r#"fencepost_lease_remaining_seconds{job="cut-off"} == 0"#,
        r#"fencepost_marks{job="emptied"} == 4"#,
    ] {
        prometheus.has_seen(seen).await;
    }
    scene.empty().await;

    // A scrape that comes too late takes a target's series away until the next one.
    for (title, expr) in questions() {
        let expr = filled_in(&expr);
        eventually(&format!("data for {title}: {expr}"), || async {
            let numbers = prometheus.numbers(&expr).await;
            numbers.iter().any(|number| !number.is_nan()).then_some(())
        })
        .await;
    }
    for variable in dashboard()["templating"]["list"]
        .as_array()
        .expect("a list")
    {
        if text(variable, "type") == "query" {
            let query = text(&variable["query"], "query");
            let inner = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')'));
            let (selector, label) = inner
                .and_then(|inner| inner.rsplit_once(", "))
                .expect("a selector and a label");
            let grouped = format!("group by ({label}) ({})", filled_in(selector));
            eventually(query, || async {
                let values = prometheus.labels(&grouped, label).await;
                values.iter().any(|value| !value.is_empty()).then_some(())
            })
            .await;
        }
    }

    // An alert without `for` is asked as the others: what its expression finds is what would fire.
    let alerts = alerts();
    let named: BTreeSet<_> = FIRE.iter().map(|(alert, _)| *alert).collect();
    let left: Vec<_> = alerts
        .iter()
        .map(|alert| text(alert, "alert"))
        .filter(|alert| !named.contains(alert))
        .collect();
    assert_eq!(
        left,
        [
            "FencepostOperationsUnknown",
            "FencepostLogLinesDropped",
            "FencepostMarksGrow",
            "FencepostConfigurationsDiffer",
            "FencepostCertificateExpires",
            "FencepostDrillFailed",
        ],
        "without a place in the scene"
    );
    prometheus
        .has_seen(r#"fencepost_tls_certificate_expiry_timestamp_seconds{job="gone"}"#)
        .await;
    for (name, job) in FIRE {
        if *name == "FencepostDown" {
            scene.remove();
        }
        let alert = alerts
            .iter()
            .find(|alert| text(alert, "alert") == *name)
            .expect("an alert of this name");
        // Adds the values of some minutes ago: the scene lasts for seconds.
        let expr = &text(alert, "expr")
            .replace(" offset 1m", "")
            .replace(" offset 5m", "");
        // A scrape of the quiet one that came too late is a target that is down, for as long as it
        // takes.
        let of_scrapes = ["FencepostDown", "FencepostAbsent"].contains(name);
        let jobs = eventually(&format!("{name} to fire for {job}"), || async {
            let jobs = prometheus.labels(expr, "job").await;
            (jobs.contains(*job) && !(of_scrapes && jobs.contains("quiet"))).then_some(jobs)
        })
        .await;
        assert!(!jobs.contains("quiet"), "{name} fires for ordinary traffic");
        assert!(
            *name != "FencepostStaleRequests" || !jobs.contains("reset"),
            "one cause pages twice"
        );
    }
    prometheus.evaluates_all(rules().len()).await;
}

#[tokio::test]
async fn the_rules_do_what_their_cases_say() {
    let promtool = or_return!(tool("promtool"));
    for arguments in [
        &["check", "rules", "alerts.yaml"][..],
        &["test", "rules", "alerts.test.yaml", "alerts.days.test.yaml"],
    ] {
        let mut command = Command::new(&promtool);
        command.args(arguments);
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus"));
        let ended = run(command).await;
        assert_eq!(ended.code, Some(0), "{}", ended.text());
    }
}

#[tokio::test]
async fn promtool_has_nothing_to_say_about_the_metrics() {
    let promtool = or_return!(tool("promtool"));
    let (_upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    let scrape = proxy.ask("/metrics").await.text();
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]);
    let ended = run_fed(command, &scrape).await;
    assert_eq!((ended.code, &*ended.text()), (Some(0), ""));
}
