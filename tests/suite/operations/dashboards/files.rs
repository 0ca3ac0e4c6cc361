//! The files are valid for Grafana and Kubernetes, neither of which is at hand here.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{alerts, dashboard, text};

#[test]
fn the_dashboard_is_as_grafana_exports_one() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null(), "Grafana gives the id");
    assert_eq!(text(&dashboard, "uid"), "fencepost");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39));
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
        ["datasource", "namespace", "job", "instance", "route"]
    );
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().expect("an id"))
        .collect();
    assert_eq!(ids.len(), panels.len(), "an id twice");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = text(panel, "title");
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{title} lies upon another, or beyond the edge"
                );
            }
        }
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
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let expr = text(target, "expr");
            for range in expr.split('[').skip(1) {
                let range = range.split(']').next().unwrap_or_default();
                assert!(
                    ["$__rate_interval", "$__range"].contains(&range),
                    "{title}: [{range}]"
                );
            }
            for variable in ["namespace", "job", "instance"] {
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
