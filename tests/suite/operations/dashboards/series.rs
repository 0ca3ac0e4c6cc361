//! Which series there are: those that alerts and panels name exist, and their number does not grow
//! with the resources.

use std::collections::BTreeSet;

use super::{alerts, expanded, questions, text};
use crate::support::metrics::Metrics;
use crate::support::wire::Wire;
use crate::support::{Config, Proxy, Store, Upstream, fenced, post, put};

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
const LABELS: &[&str] = &[
    "outcome",
    "mode",
    "limit",
    "kind",
    "certificate",
    "decided_by",
    "route",
];

/// The metrics that an expression names.
fn metric_names(expr: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in expr.split(|c| !is_name(c)) {
        if word.starts_with("fencepost_")
            || word.starts_with("process_")
            || NOT_OURS.contains(&word)
        {
            names.insert(word.to_owned());
        }
    }
    names
}

/// Each label that an expression compares with constants, and those constants.
fn label_values(expr: &str) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for label in LABELS {
        for (at, _) in expr.match_indices(label) {
            let rest = &expr[at + label.len()..];
            let operator = ["=~\"", "!~\"", "!=\"", "=\""]
                .iter()
                .find(|one| rest.starts_with(**one));
            if let Some(operator) = operator {
                let values = rest[operator.len()..].split('"').next().expect("a text");
                let values = values.split('|').filter(|value| !value.starts_with('$'));
                found.extend(values.map(|value| (*label, value.to_owned())));
            }
        }
    }
    found
}

#[tokio::test]
async fn what_alerts_and_panels_name_is_there_from_the_start() {
    let upstream = Upstream::start().await;
    // A route of each mode.
    let config = Config::new(&upstream, &Store::sqlite()).with(
        "routes: [
           { path: '/orders/{id}', resource: 'order:{id}' },
           { path: '/trial/{id}', resource: 'trial:{id}', mode: observe },
           { path: /health, mode: bypass },
         ]",
    );
    let proxy = Proxy::start(&config).await;
    let at_rest = proxy.metrics().await;
    // Latencies appear with their first event. Only panels ask for them.
    proxy.forward(put("/orders/7").token(5)).await;
    let metrics = proxy.metrics().await;
    let names_of = |metrics: &Metrics| -> BTreeSet<String> {
        let series = metrics.series.keys();
        series.map(|series| series.name.clone()).collect()
    };
    let (names_at_rest, names) = (names_of(&at_rest), names_of(&metrics));
    let panels = questions();
    let mut expressions = panels.clone();
    expressions.extend(alerts().iter().map(|alert| {
        (
            text(alert, "alert").to_owned(),
            expanded(text(alert, "expr")),
        )
    }));
    assert!(expressions.len() > 60, "these are not all: {expressions:?}");
    for (index, (who, expr)) in expressions.iter().enumerate() {
        let asked = metric_names(expr);
        assert!(!asked.is_empty(), "{who} asks for nothing");
        for name in asked {
            let of_panel = index < panels.len();
            let is_late = LATENCIES.iter().any(|late| name.starts_with(late));
            let names = if of_panel && is_late {
                &names
            } else {
                &names_at_rest
            };
            assert!(
                names.contains(&name) || NOT_OURS.contains(&&*name),
                "{who}: there is no {name}"
            );
        }
        for (label, value) in label_values(expr) {
            assert!(
                exists(&at_rest, label, &value),
                "{who}: {label} is never {value}"
            );
        }
    }
    // And the other way round: nothing is measured that nobody looks at.
    let looked_at: BTreeSet<String> = expressions
        .iter()
        .flat_map(|(_, expr)| metric_names(expr))
        .collect();
    for family in metrics.types.keys() {
        let of_it = |name: &String| {
            let rest = name.strip_prefix(&**family);
            rest.is_some_and(|rest| ["", "_bucket", "_count", "_sum"].contains(&rest))
        };
        assert!(
            looked_at.iter().any(of_it),
            "{family} is on no panel and in no alert"
        );
    }
}

fn exists(metrics: &Metrics, label: &str, value: &str) -> bool {
    let prefix = value.strip_suffix(".*");
    metrics
        .series
        .keys()
        .filter_map(|series| series.labels.get(label))
        .any(|one| match prefix {
            Some(prefix) => one.starts_with(prefix),
            None => one == value,
        })
}

/// Connections that send at once; each waits for an answer before it sends again, so this many
/// share a commit.
const CONNECTIONS: u32 = 125;
const RESOURCES: u32 = 100_000;

/// Every resource gets a mark; of each twenty, one is written to, and one sees a stale write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_resources_add_no_series() {
    let (_upstream, proxy) = fenced("{}").await;
    let names = |metrics: &Metrics| metrics.series.keys().cloned().collect::<BTreeSet<_>>();
    // The latencies of the route and of claims.
    proxy.forward(put("/orders/first").token(5)).await;
    let claim = post("/.well-known/fencing/claim").token(5);
    let claim = claim.header("X-Fencing-Resource", "order:first");
    assert_eq!(proxy.send(claim).await.status(), 204);
    let before = names(&proxy.metrics().await);
    let data = proxy.data();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|client| {
            tokio::spawn(async move {
                let mut wire = Wire::connect(data).await.expect("the proxy listens");
                for n in (0..RESOURCES).filter(|n| n % CONNECTIONS == client) {
                    let claim = post("/.well-known/fencing/claim")
                        .token(5)
                        .header("X-Fencing-Resource", format!("order:{n}"));
                    assert_eq!(wire.status(&claim.bytes()).await, "204");
                    let write = put(&format!("/orders/{n}"));
                    // Each client has a remainder of its own, and every tenth of its numbers
                    // another quotient.
                    match n / CONNECTIONS % 20 {
                        0 => assert_eq!(wire.status(&write.token(6).bytes()).await, "200"),
                        1 => assert_eq!(wire.status(&write.token(4).bytes()).await, "412"),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no panic");
    }
    let metrics = proxy.metrics().await;
    assert_eq!(names(&metrics), before);
    let of = |outcome| metrics.sum("fencepost_requests_total", &[("outcome", outcome)]);
    let (claimed, stale) = (of("claimed"), of("stale-token"));
    assert!(claimed >= f64::from(RESOURCES), "{claimed}");
    assert!(stale > 2_000.0, "{stale}");
    // The bound of what is counted.
    assert_eq!(metrics.count("fencepost_stale_resources", &[]), 1_000);
}
