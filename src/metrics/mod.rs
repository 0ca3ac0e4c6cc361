//! The metrics. One struct with a registry of its own (no globals), so that two proxies in one test
//! process do not share numbers.
//!
//! Never a resource key, a token or a raw path in a label: label values are routes from the
//! configuration and the words of [`labels`]. Every series exists at 0 from the start, so that a
//! rate over the first event is right and an alert on it can be written before it happens.
//!
//! The request path asks once per request for its route's [`RouteMetrics`] (or keeps it with the
//! route), and after that touches atomics only.

mod distinct;
mod families;
mod labels;
mod process;
mod route;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder};

use self::distinct::RecentDistinct;
use self::families::Families;
pub use self::labels::{
    AdminRefusal, Certificate, CheckResult, CodeClass, DecidedBy, HandshakeError, Limit, Outcome,
};
pub use self::route::{InFlightGuard, ResponseTimer, RouteMetrics};
use crate::config::settings::Mode;
use crate::routing::ResourceKey;

/// The `route` label of claims.
pub const CLAIM: &str = "claim";
/// The `route` label of requests that no route matches.
pub const UNMATCHED: &str = "unmatched";

/// The values of the `kind` label of `fencepost_store_errors_total`: those of `StoreError::KINDS`
/// (a test compares them), written here because this module comes before `marks`.
const STORE_ERROR_KINDS: [&str; 6] = [
    "timeout",
    "lock-timeout",
    "connection",
    "statement",
    "warned",
    "unfit",
];

/// Everything the program counts and measures.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// By label. Held for a look or a reload's insertions; never across an await.
    routes: RwLock<HashMap<String, Arc<RouteMetrics>>>,
    unmatched: Arc<RouteMetrics>,
    /// In the order of [`CheckResult::ALL`].
    checks: Vec<Histogram>,
    /// In the order of [`Limit::ALL`].
    limits: Vec<IntCounter>,
    stale_resources: RecentDistinct,
}

/// The series that the store's side keeps, whatever it is made of.
#[derive(Clone, Debug)]
pub struct StoreHandles {
    pub new_resources: IntCounter,
    pub batch_size: Histogram,
    pub commit_seconds: Histogram,
    /// By kind of error.
    pub errors: IntCounterVec,
    /// 1 while the store answers.
    pub up: IntGauge,
    pub regressions: IntCounter,
    pub open_epochs: IntGauge,
    pub unknown_outcomes: IntGauge,
    pub lease_remaining: Gauge,
    pub route_table_mismatch: IntGauge,
}

impl Metrics {
    /// Every series of these routes, and of the labels [`CLAIM`] and [`UNMATCHED`], at 0.
    #[must_use]
    pub fn new(routes: &[(String, Mode)]) -> Self {
        let registry = Registry::new();
        let families = Families::register(&registry);
        process::register(&registry);
        for kind in STORE_ERROR_KINDS {
            families.store_errors.with_label_values(&[kind]);
        }
        families
            .build_info
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        for reason in HandshakeError::ALL {
            families
                .tls_handshake_errors
                .with_label_values(&[reason.as_str()]);
        }
        for reason in AdminRefusal::ALL {
            families.admin_refused.with_label_values(&[reason.as_str()]);
        }
        for certificate in Certificate::ALL {
            families
                .tls_certificate_expiry
                .with_label_values(&[certificate.as_str()])
                .set(f64::INFINITY);
        }
        // Nothing runs on a configuration that was not read.
        families.config_reload_ok.set(1);
        let checks = CheckResult::ALL
            .iter()
            .map(|result| families.check_seconds.with_label_values(&[result.as_str()]))
            .collect();
        let limits = Limit::ALL
            .iter()
            .map(|limit| families.limit_reached.with_label_values(&[limit.as_str()]))
            .collect();
        let unmatched = Arc::new(RouteMetrics::new(&families, UNMATCHED));
        let claim = Arc::new(RouteMetrics::new(&families, CLAIM));
        let by_label = HashMap::from([
            (UNMATCHED.to_owned(), Arc::clone(&unmatched)),
            (CLAIM.to_owned(), claim),
        ]);
        let metrics = Self {
            registry,
            families,
            routes: RwLock::new(by_label),
            unmatched,
            checks,
            limits,
            stale_resources: RecentDistinct::default(),
        };
        metrics.set_routes(routes);
        metrics
    }

    /// Takes over the routes of a new configuration: new ones start at 0, `fencepost_route_mode` says
    /// the new modes. Routes that are gone keep their counters (requests of theirs may still be in
    /// flight) and lose their mode.
    pub fn set_routes(&self, routes: &[(String, Mode)]) {
        let mut by_label = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        self.families.route_mode.reset();
        for (label, mode) in routes {
            by_label
                .entry(label.clone())
                .or_insert_with(|| Arc::new(RouteMetrics::new(&self.families, label)));
            for other in Mode::ALL {
                self.families
                    .route_mode
                    .with_label_values(&[label.as_str(), other.as_str()]);
            }
            self.families
                .route_mode
                .with_label_values(&[label.as_str(), mode.as_str()])
                .set(1);
        }
    }

    /// The handles of a route, to be kept with it. A label that no configuration named gets those of
    /// [`UNMATCHED`], so that no text from outside can make a series.
    #[must_use]
    pub fn route(&self, label: &str) -> Arc<RouteMetrics> {
        let by_label = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_label.get(label).unwrap_or(&self.unmatched))
    }

    /// A token was checked against the marks, in this time.
    pub fn check(&self, result: CheckResult, took: Duration) {
        self.checks[result as usize].observe(took.as_secs_f64());
    }

    /// A limit was reached.
    pub fn limit(&self, limit: Limit) {
        self.limits[limit as usize].inc();
    }

    /// The admin port refused a request, or closed a connection.
    pub fn admin_refused(&self, reason: AdminRefusal) {
        self.families
            .admin_refused
            .with_label_values(&[reason.as_str()])
            .inc();
    }

    /// A TLS handshake with a client failed.
    pub fn handshake_error(&self, reason: HandshakeError) {
        self.families
            .tls_handshake_errors
            .with_label_values(&[reason.as_str()])
            .inc();
    }

    /// When a certificate ends, in seconds since 1970; `None`: there is none.
    pub fn set_certificate_expiry(&self, certificate: Certificate, expires: Option<i64>) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact for 285 million years, as every gauge is a float"
        )]
        let seconds = expires.map_or(f64::INFINITY, |seconds| seconds as f64);
        self.families
            .tls_certificate_expiry
            .with_label_values(&[certificate.as_str()])
            .set(seconds);
    }

    /// The open connections of the data port.
    #[must_use]
    pub fn connections(&self) -> IntGauge {
        self.families.connections.clone()
    }

    /// The requests that have a place (`limits.in_flight`).
    #[must_use]
    pub fn places(&self) -> IntGauge {
        self.families.requests_in_flight.clone()
    }

    /// The open HTTP/2 connections to the upstream.
    #[must_use]
    pub fn upstream_http2_connections(&self) -> IntGauge {
        self.families.upstream_http2_connections.clone()
    }

    /// A stale request for this resource was refused.
    pub fn stale_resource(&self, resource: &ResourceKey, now: Instant) {
        self.stale_resources.record(resource.as_str(), now);
    }

    /// The series that the store's side keeps.
    #[must_use]
    pub fn store_handles(&self) -> StoreHandles {
        StoreHandles {
            new_resources: self.families.new_resources.clone(),
            batch_size: self.families.store_batch_size.clone(),
            commit_seconds: self.families.store_commit_seconds.clone(),
            errors: self.families.store_errors.clone(),
            up: self.families.store_up.clone(),
            regressions: self.families.mark_regressions.clone(),
            open_epochs: self.families.open_epochs.clone(),
            unknown_outcomes: self.families.unknown_outcomes.clone(),
            lease_remaining: self.families.lease_remaining_seconds.clone(),
            route_table_mismatch: self.families.route_table_mismatch.clone(),
        }
    }

    /// An operator lowered a mark.
    pub fn overridden(&self) {
        self.families.overrides.inc();
    }

    /// The configuration was read again, well or not.
    pub fn set_config_reload_ok(&self, ok: bool) {
        self.families.config_reload_ok.set(i64::from(ok));
    }

    /// How many lines of the log were dropped since the start.
    pub fn set_log_lines_dropped(&self, total: u64) {
        let counter = &self.families.log_lines_dropped;
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// How many marks the namespace has.
    pub fn set_marks(&self, marks: u64) {
        self.families
            .marks
            .set(i64::try_from(marks).unwrap_or(i64::MAX));
    }

    /// What is left of the lease; `None`: there is nothing to renew any more.
    pub fn set_lease_remaining(&self, left: Option<Duration>) {
        let seconds = left.map_or(f64::INFINITY, |left| left.as_secs_f64());
        self.families.lease_remaining_seconds.set(seconds);
    }

    /// Everything, in Prometheus's text format 0.0.4, as of a time.
    #[must_use]
    pub fn encode(&self, now: Instant) -> String {
        let distinct = self.stale_resources.count(now);
        self.families
            .stale_resources
            .set(i64::try_from(distinct).unwrap_or(i64::MAX));
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_else(|error| format!("# cannot be encoded: {error}\n"))
    }

    /// The `Content-Type` of [`Self::encode`].
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
}

#[cfg(test)]
#[expect(
    clippy::float_cmp,
    reason = "counts are whole numbers, exact as floats"
)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn metrics() -> Metrics {
        Metrics::new(&[
            ("/orders/{id}".into(), Mode::Enforce),
            ("health".into(), Mode::Bypass),
        ])
    }

    fn text(metrics: &Metrics) -> String {
        metrics.encode(Instant::now())
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
    fn every_series_exists_at_zero() {
        let metrics = metrics();
        for route in ["/orders/{id}", "health", CLAIM, UNMATCHED] {
            for outcome in Outcome::ALL {
                let series =
                    format!("fencepost_requests_total{{outcome=\"{outcome}\",route=\"{route}\"}}");
                assert_eq!(value(&metrics, &series), 0.0);
            }
            for decided_by in DecidedBy::ALL {
                let series = format!(
                    "fencepost_stale_rejections_total{{decided_by=\"{decided_by}\",route=\"{route}\"}}"
                );
                assert_eq!(value(&metrics, &series), 0.0);
            }
            for class in CodeClass::ALL {
                for name in ["header", "response"] {
                    let series = format!(
                        "fencepost_upstream_{name}_seconds_count{{code=\"{}\",route=\"{route}\"}}",
                        class.as_str()
                    );
                    assert_eq!(value(&metrics, &series), 0.0);
                }
            }
            for name in [
                "fencepost_stale_gap_count",
                "fencepost_barrier_wait_seconds_count",
                "fencepost_upstream_in_flight",
                "fencepost_idempotency_keyless_total",
            ] {
                assert_eq!(
                    value(&metrics, &format!("{name}{{route=\"{route}\"}}")),
                    0.0
                );
            }
        }
        for kind in STORE_ERROR_KINDS {
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
        for result in CheckResult::ALL {
            let series = format!("fencepost_check_seconds_count{{result=\"{result}\"}}");
            assert_eq!(value(&metrics, &series), 0.0);
        }
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            value(
                &metrics,
                &format!("fencepost_build_info{{version=\"{version}\"}}")
            ),
            1.0
        );
        assert_eq!(value(&metrics, "fencepost_config_reload_ok"), 1.0);
    }

    #[test]
    fn every_family_is_there_with_its_doc_comment_as_help() {
        let text = text(&metrics());
        for (name, help) in Families::NAMES {
            assert!(
                text.contains(&format!("# HELP {name} {}\n", help.trim())),
                "{name}"
            );
            assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
            assert!(name.starts_with("fencepost_"), "{name}");
        }
    }

    #[test]
    fn label_values_are_the_known_ones() {
        let metrics = metrics();
        metrics.route("/orders/42").request(Outcome::StaleToken);
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
        assert_eq!(label_values(&text, "kind"), words(&STORE_ERROR_KINDS));
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
    fn error_kinds_are_those_of_the_store() {
        assert_eq!(STORE_ERROR_KINDS, crate::store::StoreError::KINDS);
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
        route.keyless();
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
        let mode =
            |route, mode| format!("fencepost_route_mode{{mode=\"{mode}\",route=\"{route}\"}}");
        assert_eq!(value(&metrics, &mode("health", "bypass")), 0.0);
        assert_eq!(value(&metrics, &mode("health", "observe")), 1.0);
        assert_eq!(value(&metrics, &mode("new", "enforce")), 1.0);
        let text = text(&metrics);
        assert!(!text.contains("fencepost_route_mode{mode=\"enforce\",route=\"/orders/{id}\"}"));
        assert!(text.contains("fencepost_requests_total{outcome=\"unfenced\",route=\"health\"} 1"));
        assert!(text.contains("fencepost_requests_total{outcome=\"stale-token\",route=\"new\"} 0"));
    }

    #[test]
    fn refused_resources_are_counted_once_each() {
        let metrics = metrics();
        let now = Instant::now();
        for _ in 0..5 {
            metrics.stale_resource(&ResourceKey::new("order:1").unwrap(), now);
            metrics.stale_resource(&ResourceKey::new("order:2").unwrap(), now);
        }
        assert!(
            metrics
                .encode(now)
                .contains("\nfencepost_stale_resources 2\n")
        );
        let later = now + Duration::from_secs(400);
        assert!(
            metrics
                .encode(later)
                .contains("\nfencepost_stale_resources 0\n")
        );
    }

    #[test]
    fn the_process_is_measured() {
        let metrics = metrics();
        assert!(value(&metrics, "process_resident_memory_bytes") > 0.0);
        assert!(value(&metrics, "process_open_fds") > 0.0);
    }
}
