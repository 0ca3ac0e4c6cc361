//! The files are valid for Grafana and Kubernetes, neither of which is at hand here.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::{alerts, dashboard, panels, text};

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario, in order")]
fn the_dashboard_is_as_grafana_exports_one() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null(), "Grafana gives the id");
    assert_eq!(text(&dashboard, "uid"), "fencepost");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(42));
    assert!(
        dashboard.get("__inputs").is_none(),
        "a provisioned dashboard has no inputs"
    );
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|variable| text(variable, "name"))
        .collect();
    assert_eq!(
        variables,
        [
            "datasource",
            "logs",
            "cluster",
            "namespace",
            "job",
            "pod",
            "instance",
            "route",
            "runbook"
        ]
    );
    let panels = panels();
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().expect("an id"))
        .collect();
    assert_eq!(ids.len(), panels.len(), "an id twice");
    for panel in &panels {
        let title = text(panel, "title");
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            text(panel, "description").len() > 20,
            "{title} says not what it is for"
        );
        let kind = text(panel, "type");
        let unit = match kind {
            "heatmap" => &panel["options"]["yAxis"]["unit"],
            _ => &panel["fieldConfig"]["defaults"]["unit"],
        };
        assert!(
            unit.as_str().is_some_and(|unit| !unit.is_empty()),
            "{title} has no unit"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().expect("targets") {
            // Without one, it has the panel's.
            let own = &target["datasource"]["uid"];
            assert!(own.is_null() || own == "${datasource}", "{title}");
            let expr = text(target, "expr");
            for range in expr.split('[').skip(1) {
                let range = range.split(']').next().unwrap_or_default();
                assert!(
                    ["$__rate_interval", "$__range"].contains(&range),
                    "{title}: [{range}]"
                );
            }
            for variable in ["cluster", "namespace", "job", "pod", "instance"] {
                let selector = format!("{variable}=~\"${variable}\"");
                assert!(
                    expr.contains(&selector),
                    "{title} does not heed ${variable}"
                );
            }
            let per_route = [
                "requests_total",
                "stale_rejections",
                "stale_gap",
                "barrier_wait",
                "waiting",
                "upstream_in_flight",
                "upstream_header_seconds",
                "upstream_response_seconds",
                "request_duration",
                "route_mode",
                "keyless",
            ];
            if per_route
                .iter()
                .any(|name| expr.contains(&format!("fencepost_{name}")))
            {
                assert!(
                    expr.contains("route=~\"$route\""),
                    "{title} does not heed $route"
                );
            }
        }
    }
}

/// Only the overview is open, and what is under a row lies below it.
#[test]
fn the_rows_are_collapsed_behind_an_overview() {
    let dashboard = dashboard();
    let open = dashboard["panels"].as_array().expect("panels");
    no_panel_lies_upon_another(open);
    let rows: Vec<_> = open.iter().filter(|panel| panel["type"] == "row").collect();
    assert!(rows.len() > 5, "{}", rows.len());
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["collapsed"], index > 0, "{}", text(row, "title"));
        let below = row["panels"].as_array().expect("panels");
        assert_eq!(below.is_empty(), index == 0, "{}", text(row, "title"));
        no_panel_lies_upon_another(below);
        let of = |panel: &Value, what: &str| panel["gridPos"][what].as_u64().expect("a place");
        let end = of(row, "y") + of(row, "h");
        assert!(
            below.iter().all(|panel| of(panel, "y") >= end),
            "{}",
            text(row, "title")
        );
    }
}

fn no_panel_lies_upon_another(panels: &[Value]) {
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{} lies upon another, or beyond the edge",
                    text(panel, "title")
                );
            }
        }
    }
}

/// Links lead to the runbook and, with the labels of the series, to the log.
#[test]
fn panels_link_to_the_runbook_and_the_log() {
    assert_eq!(dashboard()["links"][0]["url"], "$runbook");
    let linked = panels().into_iter().filter_map(|panel| {
        let links = panel["fieldConfig"]["defaults"]["links"]
            .as_array()?
            .clone();
        Some((text(&panel, "title").to_owned(), links))
    });
    let linked: Vec<_> = linked.filter(|(_, links)| !links.is_empty()).collect();
    assert!(linked.len() > 5, "{linked:?}");
    for (title, link) in linked
        .iter()
        .flat_map(|(title, links)| links.iter().map(move |link| (title, link)))
    {
        let url = text(link, "url");
        if let Some(panes) = url.strip_prefix("/explore?schemaVersion=1&panes=") {
            let panes = panes.strip_suffix("&orgId=1").expect("the organisation");
            let panes = percent_decode_str(panes).decode_utf8().expect("UTF-8");
            let panes: Value = serde_json::from_str(&panes).expect("JSON");
            assert_eq!(panes["a"]["datasource"], "${logs}", "{title}");
            let query = text(&panes["a"]["queries"][0], "expr");
            assert!(query.contains("| json | "), "{title}: {query}");
        } else {
            assert_eq!(url, "${runbook}#${__field.labels.outcome}", "{title}");
        }
    }
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let alerts = alerts();
    let names: BTreeSet<_> = alerts.iter().map(|alert| text(alert, "alert")).collect();
    assert_eq!(names.len(), alerts.len(), "a name twice");
    for alert in &alerts {
        let name = text(alert, "alert");
        assert!(name.starts_with("Fencepost"), "{name}");
        assert!(
            ["critical", "warning", "info"].contains(&text(&alert["labels"], "severity")),
            "{name}"
        );
        let annotations = &alert["annotations"];
        assert!(text(annotations, "summary").len() < 140, "{name}");
        assert!(text(annotations, "description").len() > 80, "{name}");
        // Summed over instances, by what a PodMonitor and a plain scrape both have.
        let expr = text(alert, "expr");
        assert!(
            expr.contains("by (cluster, namespace, job"),
            "{name} pages once per pod"
        );
        for label in ["pod", "instance", "container"] {
            assert!(
                !expr.contains(&format!("by (cluster, namespace, job, {label}")),
                "{name}: {label}"
            );
        }
    }
}

/// The chart puts the file into a `PrometheusRule` and a `ConfigMap` as it is: an object's text may
/// have a megabyte.
#[test]
fn both_fit_into_an_object_of_kubernetes() {
    for file in [
        "config/grafana/fencepost.json",
        "config/prometheus/alerts.yaml",
    ] {
        assert!(super::read(file).len() < 900_000, "{file}");
    }
    let rules: Value =
        serde_saphyr::from_str(&super::read("config/prometheus/alerts.yaml")).expect("YAML");
    let keys: Vec<_> = rules.as_object().expect("a mapping").keys().collect();
    assert_eq!(keys, ["groups"], "a PrometheusRule's spec has groups only");
}
