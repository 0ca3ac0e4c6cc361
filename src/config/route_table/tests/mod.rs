//! Tests of the comparison of two route tables: by cases, and against a search of all short paths.

mod changes;
mod record;
mod search;

use serde_json::{Value, json};

use super::{RouteTable, TableChange};

fn table(unmatched: &str, routes: &[Value]) -> RouteTable {
    let routes: Vec<Value> = routes
        .iter()
        .map(|given| {
            let mut route = json!({
                "path": null, "mode": "enforce", "methods": ["DELETE", "PATCH", "POST", "PUT"], "resource": null,
                "safe_methods": "optional", "token_format": "decimal", "reuse": "allow", "allow": [],
            });
            for (name, value) in given.as_object().expect("fields") {
                route[name] = value.clone();
            }
            route
        })
        .collect();
    let document = json!({ "version": 1, "unmatched": unmatched, "routes": routes });
    RouteTable::from_document(&document.to_string()).expect("a good table")
}

fn routes(list: &[(&str, &str)]) -> RouteTable {
    let rules = list.iter().map(|(path, resource)| {
        let mode = if resource.is_empty() {
            "bypass"
        } else {
            "enforce"
        };
        let resource = (!resource.is_empty()).then_some(resource);
        json!({ "path": path, "resource": resource, "mode": mode })
    });
    table("safe-only", &rules.collect::<Vec<_>>())
}

/// A table of one route: `resource`, and after it fields such as `methods=PUT,POST`. By default its
/// path is `/o/{id}` and its resource `o:{id}`.
fn route(fields: &str) -> RouteTable {
    let mut route = json!({ "path": "/o/{id}", "resource": "o:{id}" });
    for field in fields.split_whitespace() {
        let (name, value) = field.split_once('=').unwrap_or(("resource", field));
        route[name] = match name {
            "methods" | "allow" => value.split(',').collect(),
            _ => value.into(),
        };
    }
    table("safe-only", &[route])
}

/// The table on record after this change; `None` if it is a loss.
fn harmless(from: &RouteTable, to: &RouteTable) -> Option<RouteTable> {
    let (next, findings) = from.replaced_by(to);
    let is_loss = findings.iter().any(|found| found.change.is_loss());
    (!is_loss).then_some(next)
}

fn kinds(old: &RouteTable, new: &RouteTable) -> Vec<TableChange> {
    let (_, findings) = old.replaced_by(new);
    findings.iter().map(|finding| finding.change).collect()
}
