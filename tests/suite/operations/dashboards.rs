//! The alerts, the dashboard and the runbook, held against a real scrape and Debian's promtool. An
//! alert or a panel that names a series which is not there stays silent for ever, and looks like
//! peace.

mod files;
mod runbook;
mod series;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::run::{run, run_fed};
use crate::support::store::tool;
use crate::support::{fenced, or_return, put};

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

/// What the panels, annotations and variables ask: title and expression.
fn questions() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let list = |name: &str| dashboard[name]["list"].as_array().expect("a list").clone();
    let mut questions = Vec::new();
    for panel in panels().iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().expect("targets") {
            let pair = [text(panel, "title"), text(target, "expr")];
            questions.push(pair.map(str::to_owned).into());
        }
    }
    for annotation in list("annotations") {
        if let Some(expr) = annotation["expr"].as_str() {
            questions.push((text(&annotation, "name").to_owned(), expr.to_owned()));
        }
    }
    for variable in list("templating") {
        if text(&variable, "type") == "query" {
            let query = text(&variable["query"], "query").strip_prefix("label_values(");
            let query = query.and_then(|query| query.strip_suffix(')'));
            let asked = query.and_then(|query| query.rsplit_once(", "));
            let (selector, label) = asked.expect("a selector and a label");
            let expr = format!("group by ({label}) ({selector})");
            questions.push((text(&variable, "name").to_owned(), expr));
        }
    }
    questions
}

#[tokio::test]
async fn the_rules_do_what_their_cases_say() {
    let promtool = or_return!(tool("promtool"));
    for arguments in [
        "check rules alerts.yaml",
        "test rules alerts.test.yaml alerts.minutes.test.yaml alerts.days.test.yaml",
    ] {
        let mut command = Command::new(&promtool);
        // It would spend a third of its time on collecting garbage of some megabytes.
        command.args(arguments.split(' ')).env("GOGC", "400");
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
