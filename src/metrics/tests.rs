//! Tests of the metrics: each series exists at 0 or appears with its first event, and counts.

use std::collections::BTreeSet;

use std::time::Duration;

use super::*;
use crate::store::StoreError;

fn metrics() -> Metrics {
    let metrics = Metrics::new(&[
        ("/orders/{id}".into(), Mode::Enforce),
        ("health".into(), Mode::Bypass),
    ]);
    let Families {
        instance_info,
        config_info,
        ..
    } = &metrics.series;
    for (info, value) in [
        (instance_info, "4f0c2a91b6d3e857"),
        (config_info, "0123456789ab"),
    ] {
        info.with_label_values(&[value]).set(1);
    }
    let expiry = &metrics.series.tls_certificate_expiry;
    expiry.with_label_values(&["admin"]).set(f64::INFINITY);
    metrics
}

fn text(metrics: &Metrics) -> String {
    metrics.encode()
}

/// The value of one series, by the text before the value.
fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = text(metrics);
    let line = text
        .lines()
        .find(|line| {
            line.strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(' '))
        })
        .unwrap_or_else(|| panic!("no series {series} in\n{text}"));
    line.rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// Every value that a label has anywhere.
fn label_values(text: &str, label: &str) -> BTreeSet<String> {
    let start = format!("{label}=\"");
    text.lines()
        .filter_map(|line| line.split_once(&start))
        .filter_map(|(_, rest)| rest.split_once('"'))
        .map(|(word, _)| word.to_owned())
        .collect()
}

#[test]
fn every_series_in_which_a_route_counts_events_exists_at_zero() {
    let metrics = Metrics::new(&[
        ("/orders/{id}".into(), Mode::Enforce),
        ("trial".into(), Mode::Observe),
        ("health".into(), Mode::Bypass),
    ]);
    let text = text(&metrics);
    for (route, enforces, observes) in [
        ("/orders/{id}", true, false),
        ("trial", false, true),
        ("health", false, false),
        (CLAIM, true, false),
        (UNMATCHED, false, true),
    ] {
        let label = format!("route=\"{route}\"");
        let exists = |name: &str, more: &str| {
            let series = format!("{name}{{{more}{label}}} 0");
            text.lines().any(|line| line == series)
        };
        for outcome in Outcome::ALL {
            let labels = format!("outcome=\"{outcome}\",");
            let expected = (observes || !outcome.is_observed()) && !outcome.is_of_an_operation();
            assert_eq!(
                exists("fencepost_requests_total", &labels),
                expected,
                "{route}: {outcome}"
            );
        }
        for by in DecidedBy::ALL {
            let by = format!("decided_by=\"{by}\",");
            assert!(exists("fencepost_stale_rejections_total", &by));
        }
        for (name, expected) in [
            ("fencepost_stale_gap_count", enforces),
            ("fencepost_barrier_wait_seconds_count", enforces),
            ("fencepost_waiting", true),
            ("fencepost_upstream_in_flight", true),
            ("fencepost_idempotency_keyless_total", true),
        ] {
            assert_eq!(exists(name, ""), expected, "{route}: {name}");
        }
    }
}

#[test]
fn the_latencies_of_a_route_appear_together_with_its_first_response() {
    let metrics = metrics();
    let names = ["upstream_header", "upstream_response", "request_duration"];
    let before = text(&metrics);
    for name in names {
        assert!(
            !before.contains(&format!("fencepost_{name}_seconds")),
            "{name}"
        );
    }
    let route = metrics.route("health");
    let now = tokio::time::Instant::now();
    drop((route.upstream(now, 200), route.duration(now)));
    for class in CodeClass::ALL {
        let first = f64::from(u8::from(*class == CodeClass::Success));
        let code = format!("code=\"{class}\",route=\"health\"");
        for name in &names[..2] {
            let series = format!("fencepost_{name}_seconds_count{{{code}}}");
            assert_eq!(value(&metrics, &series), first, "{series}");
        }
    }
    let all = "fencepost_request_duration_seconds_count{route=\"health\"}";
    assert_eq!(value(&metrics, all), 1.0);
}

#[test]
fn every_other_series_exists_at_zero() {
    let metrics = metrics();
    for kind in StoreError::KINDS {
        let series = format!("fencepost_store_errors_total{{kind=\"{kind}\"}}");
        assert_eq!(value(&metrics, &series), 0.0);
    }
    for reason in HandshakeError::ALL {
        let series = format!("fencepost_tls_handshake_errors_total{{reason=\"{reason}\"}}");
        assert_eq!(value(&metrics, &series), 0.0);
    }
    for limit in Limit::ALL {
        let series = format!("fencepost_limit_reached_total{{limit=\"{limit}\"}}");
        assert_eq!(value(&metrics, &series), 0.0);
    }
    assert!(!text(&metrics).contains("fencepost_check_seconds"));
    let checks = &metrics.series.check_seconds;
    checks.of(CheckResult::Current).observe(0.0);
    for result in CheckResult::ALL {
        let first = f64::from(u8::from(*result == CheckResult::Current));
        let series = format!("fencepost_check_seconds_count{{result=\"{result}\"}}");
        assert_eq!(value(&metrics, &series), first);
    }
    let (version, commit) = (VERSION, COMMIT);
    assert_eq!(
        value(
            &metrics,
            &format!("fencepost_build_info{{commit=\"{commit}\",version=\"{version}\"}}")
        ),
        1.0
    );
    assert_eq!(value(&metrics, "fencepost_config_reload_ok"), 1.0);
}

#[test]
fn every_family_is_there_with_its_doc_comment_as_help() {
    let metrics = metrics();
    let route = metrics.route("health");
    let now = tokio::time::Instant::now();
    drop((route.upstream(now, 200), route.duration(now)));
    let checks = &metrics.series.check_seconds;
    checks.of(CheckResult::Current).observe(0.0);
    let text = text(&metrics);
    for (name, help) in Families::NAMES {
        assert!(
            text.contains(&format!("# HELP {name} {}\n", help.trim())),
            "{name}"
        );
        assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
        let prefixes = ["fencepost_", "process_"];
        let ours = prefixes.iter().any(|prefix| name.starts_with(prefix));
        assert!(ours, "{name}");
    }
}

#[test]
fn label_values_are_the_known_ones() {
    let metrics = metrics();
    metrics.set_routes(&[
        ("/orders/{id}".into(), Mode::Observe),
        ("health".into(), Mode::Bypass),
    ]);
    metrics.route("/orders/42").request(Outcome::StaleToken);
    // These appear with their first event.
    let of_operations = Outcome::ALL.iter().filter(|one| one.is_of_an_operation());
    for outcome in of_operations {
        metrics.route("health").request(*outcome);
    }
    let text = text(&metrics);
    let words = |all: &[&str]| {
        all.iter()
            .map(|&word| word.to_owned())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        label_values(&text, "route"),
        words(&["/orders/{id}", "health", CLAIM, UNMATCHED])
    );
    assert_eq!(label_values(&text, "kind"), words(&StoreError::KINDS));
    let outcomes: Vec<_> = Outcome::ALL
        .iter()
        .map(|outcome| outcome.as_str())
        .collect();
    assert_eq!(label_values(&text, "outcome"), words(&outcomes));
    assert_eq!(
        value(
            &metrics,
            "fencepost_requests_total{outcome=\"stale-token\",route=\"unmatched\"}"
        ),
        1.0
    );
}

#[test]
fn a_route_counts_what_it_is_told() {
    let metrics = metrics();
    let route = metrics.route("/orders/{id}");
    route.request(Outcome::Advanced);
    route.request(Outcome::Advanced);
    route.stale(DecidedBy::Barrier, 3);
    route.barrier_wait(Duration::from_millis(3));
    let timer = route.upstream(tokio::time::Instant::now(), 204);
    route.keyless.inc();
    let label = "route=\"/orders/{id}\"";
    for (series, expected) in [
        (
            format!("fencepost_requests_total{{outcome=\"advanced\",{label}}}"),
            2.0,
        ),
        (
            format!("fencepost_stale_rejections_total{{decided_by=\"barrier\",{label}}}"),
            1.0,
        ),
        (format!("fencepost_stale_gap_sum{{{label}}}"), 3.0),
        (
            format!("fencepost_barrier_wait_seconds_sum{{{label}}}"),
            0.003,
        ),
        (
            format!("fencepost_upstream_header_seconds_count{{code=\"2xx\",{label}}}"),
            1.0,
        ),
        (
            format!("fencepost_upstream_response_seconds_count{{code=\"2xx\",{label}}}"),
            0.0,
        ),
        (
            format!("fencepost_idempotency_keyless_total{{{label}}}"),
            1.0,
        ),
    ] {
        assert!(
            (value(&metrics, &series) - expected).abs() < 1e-9,
            "{series}"
        );
    }
    drop(timer);
    let ended = format!("fencepost_upstream_response_seconds_count{{code=\"2xx\",{label}}}");
    assert_eq!(value(&metrics, &ended), 1.0);
}

#[test]
fn in_flight_lasts_as_long_as_its_guard() {
    let metrics = metrics();
    let series = "fencepost_upstream_in_flight{route=\"health\"}";
    let first = metrics.route("health").in_flight();
    let second = metrics.route("health").in_flight();
    assert_eq!(value(&metrics, series), 2.0);
    drop(first);
    assert_eq!(value(&metrics, series), 1.0);
    drop(second);
    assert_eq!(value(&metrics, series), 0.0);
}

#[test]
fn a_reload_changes_modes_and_keeps_counts() {
    let metrics = metrics();
    metrics.route("health").request(Outcome::Unfenced);
    metrics.set_routes(&[
        ("health".into(), Mode::Observe),
        ("new".into(), Mode::Enforce),
    ]);
    let mode = |route, mode| format!("fencepost_route_mode{{mode=\"{mode}\",route=\"{route}\"}}");
    assert_eq!(value(&metrics, &mode("health", "bypass")), 0.0);
    assert_eq!(value(&metrics, &mode("health", "observe")), 1.0);
    assert_eq!(value(&metrics, &mode("new", "enforce")), 1.0);
    let text = text(&metrics);
    assert!(!text.contains("fencepost_route_mode{mode=\"enforce\",route=\"/orders/{id}\"}"));
    assert!(text.contains("fencepost_requests_total{outcome=\"unfenced\",route=\"health\"} 1"));
    assert!(text.contains("fencepost_requests_total{outcome=\"stale-token\",route=\"new\"} 0"));
    let observed = "fencepost_requests_total{outcome=\"observed-stale-token\",route=\"health\"}";
    assert_eq!(value(&metrics, observed), 0.0);
}

#[test]
fn the_process_is_measured() {
    let metrics = metrics();
    assert!(value(&metrics, "process_resident_memory_bytes") > 0.0);
    assert!(value(&metrics, "process_open_fds") > 0.0);
}

#[tokio::test(start_paused = true)]
async fn requests_of_the_last_minute_are_those_of_a_minute() {
    let metrics = Arc::new(metrics());
    let keeping = tokio::spawn(Arc::clone(&metrics).keep_counts());
    let stale = || metrics.requests_of_last_minute()[Outcome::StaleToken as usize];
    let pass = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    pass(1).await;
    metrics.route("/orders/{id}").request(Outcome::StaleToken);
    assert_eq!(stale(), 1, "since the start, where that is less");
    pass(40).await;
    metrics.route("/orders/{id}").request(Outcome::StaleToken);
    assert_eq!(stale(), 2);
    pass(30).await;
    assert_eq!(stale(), 1);
    pass(60).await;
    assert_eq!(stale(), 0);
    assert_eq!(
        metrics.requests_by_outcome()[Outcome::StaleToken as usize],
        2
    );
    keeping.abort();
}
