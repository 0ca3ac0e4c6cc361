//! The files are valid for Grafana and Kubernetes, neither of which is at hand here.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::{alerts, dashboard, panels, text};
use crate::packaging::documents::anchor;

#[test]
fn the_dashboard_is_as_grafana_exports_one() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null(), "Grafana gives the id");
    let inputs = dashboard.get("__inputs");
    assert_eq!(inputs, None, "a provisioned dashboard has none");
    let panels = panels();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "an id twice");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = text(panel, "title");
        let purpose = text(panel, "description");
        assert!(purpose.len() > 20, "{title}: {purpose}");
        let unit = match text(panel, "type") {
            "heatmap" => &panel["options"]["yAxis"]["unit"],
            _ => &panel["fieldConfig"]["defaults"]["unit"],
        };
        assert_ne!(unit.as_str().unwrap_or_default(), "", "{title} has no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().expect("targets") {
            // Without one, it has the panel's.
            let own = &target["datasource"]["uid"];
            assert!(own.is_null() || own == "${datasource}", "{title}");
            assert_heeds_the_variables(title, text(target, "expr"));
        }
    }
}

/// Families with a label `route`: the ends of their names are left out.
const PER_ROUTE: &str = "requests_total stale_rejections stale_gap barrier_wait waiting \
    upstream_in_flight upstream_header_seconds upstream_response_seconds request_duration \
    route_mode keyless";

fn assert_heeds_the_variables(title: &str, expr: &str) {
    for range in expr.split('[').skip(1) {
        let range = range.split(']').next().unwrap_or_default();
        let known = ["$__rate_interval", "$__range"].contains(&range);
        assert!(known, "{title}: [{range}]");
    }
    let per_route = |name| expr.contains(&format!("fencepost_{name}"));
    let route = PER_ROUTE.split(' ').any(per_route);
    let variables = ["cluster", "namespace", "job", "pod", "instance"];
    for variable in variables.iter().chain(route.then_some(&"route")) {
        let heeds = expr.contains(&format!("{variable}=~\"${variable}\""));
        assert!(heeds, "{title} does not heed ${variable}");
    }
}

/// Links lead to the runbook and, with the labels of the series, to the log.
#[test]
fn panels_link_to_the_runbook_and_the_log() {
    assert_eq!(dashboard()["links"][0]["url"], "$runbook");
    let mut count = 0;
    for panel in panels() {
        let title = text(&panel, "title");
        let links = &panel["fieldConfig"]["defaults"]["links"];
        for link in links.as_array().into_iter().flatten() {
            count += 1;
            let url = text(link, "url");
            let Some(panes) = url.strip_prefix("/explore?schemaVersion=1&panes=") else {
                assert_eq!(url, "${runbook}#${__field.labels.outcome}", "{title}");
                continue;
            };
            let panes = panes.strip_suffix("&orgId=1").expect("the organisation");
            let panes = percent_decode_str(panes).decode_utf8().expect("UTF-8");
            let panes: Value = serde_json::from_str(&panes).expect("JSON");
            assert_eq!(panes["a"]["datasource"], "${logs}", "{title}");
            let query = text(&panes["a"]["queries"][0], "expr");
            assert!(query.contains("| json | "), "{title}: {query}");
        }
    }
    assert!(count > 5, "{count}");
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let alerts = alerts();
    let names: BTreeSet<_> = alerts.iter().map(|alert| text(alert, "alert")).collect();
    assert_eq!(names.len(), alerts.len(), "a name twice");
    for alert in &alerts {
        let name = text(alert, "alert");
        let severity = text(&alert["labels"], "severity");
        let known = ["critical", "warning", "info"].contains(&severity);
        assert!(known, "{name}");
        let annotations = &alert["annotations"];
        for part in ["summary", "description"] {
            assert_ne!(text(annotations, part), "", "{name}");
        }
        // `every_alert_and_every_admin_problem_has_its_place` finds the heading.
        let section = format!("docs/runbook.md#{}", anchor(name));
        assert_eq!(text(annotations, "runbook_url"), section);
        // Summed over instances, by what a PodMonitor and a plain scrape both have.
        let expr = text(alert, "expr");
        let summed = expr.contains("by (cluster, namespace, job");
        assert!(summed, "{name} pages once per pod");
        for label in ["pod", "instance", "container"] {
            let apart = format!("by (cluster, namespace, job, {label}");
            assert!(!expr.contains(&apart), "{name}: {label}");
        }
    }
}

/// The chart puts the file into a `PrometheusRule` and a `ConfigMap` as it is: an object's text may
/// have a megabyte.
#[test]
fn both_fit_into_an_object_of_kubernetes() {
    for file in ["grafana/fencepost.json", "prometheus/alerts.yaml"] {
        let text = super::read(&format!("config/{file}"));
        assert!(text.len() < 900_000, "{file}");
    }
}
