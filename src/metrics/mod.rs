//! The metrics. One struct with a registry of its own (no globals), so that two proxies in one test
//! process do not share numbers.
//!
//! No label has a resource key, a token or a raw path: label values are routes from the
//! configuration and the words of [`labels`]. Every series exists at 0 from the start, so that a rate
//! over the first event is right and an alert on it can be written before it happens.
//!
//! A request looks up its route's [`RouteMetrics`] once (or keeps it with the route), and after
//! that touches atomics only.

mod distinct;
mod families;
mod labels;
mod process;
mod route;
mod store;
mod traces;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, IntCounter, IntGauge, Registry, TextEncoder};

use self::distinct::RecentDistinct;
use self::families::Families;
pub use self::labels::{
    AdminRefusal, Certificate, CheckResult, CodeClass, ConnectFailure, DecidedBy, HandshakeError,
    Limit, Outcome, SpansSent,
};
pub use self::route::{InFlightGuard, ResponseTimer, RouteMetrics};
pub use self::store::StoreMetrics;
pub use self::traces::TraceMetrics;
use crate::build_info::{COMMIT, VERSION};
use crate::config::settings::Mode;
use crate::routing::ResourceKey;

/// The `route` label of claims.
pub const CLAIM: &str = "claim";
/// The `route` label of requests that no route matches.
pub const UNMATCHED: &str = "unmatched";

/// Everything the program counts and measures.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// By label. Held for a lookup or a reload's insertions; never across an await.
    routes: RwLock<HashMap<String, Arc<RouteMetrics>>>,
    unmatched: Arc<RouteMetrics>,
    /// In the order of [`CheckResult::ALL`].
    checks: Vec<Histogram>,
    /// In the order of [`Limit::ALL`].
    limits: Vec<IntCounter>,
    stale_resources: RecentDistinct,
    /// The digest that is shown. Held for a change.
    config_digest: Mutex<String>,
    store: Arc<StoreMetrics>,
}

impl Metrics {
    /// The series of these routes, and of the labels [`CLAIM`] and [`UNMATCHED`], at 0.
    #[must_use]
    pub fn new(routes: &[(String, Mode)]) -> Self {
        let registry = Registry::new();
        let families = Families::register(&registry);
        process::register(&registry);
        families
            .build_info
            .with_label_values(&[VERSION, COMMIT])
            .set(1);
        for reason in HandshakeError::ALL {
            families
                .tls_handshake_errors
                .with_label_values(&[reason.as_str()]);
        }
        for cause in ConnectFailure::ALL {
            families
                .upstream_connect_errors
                .with_label_values(&[cause.as_str()]);
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
        // The program only starts on a configuration that was read.
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
            store: Arc::new(StoreMetrics::new(&families)),
            families,
            routes: RwLock::new(by_label),
            unmatched,
            checks,
            limits,
            stale_resources: RecentDistinct::default(),
            config_digest: Mutex::default(),
        };
        metrics.set_routes(routes);
        metrics
    }

    /// Shows the name of this instance.
    pub fn set_instance(&self, name: &str) {
        let info = &self.families.instance_info;
        info.reset();
        info.with_label_values(&[name]).set(1);
    }

    /// Takes over the routes of a new configuration: new ones start at 0, and
    /// `fencepost_route_mode` has the new modes. Removed routes keep their counters, since their
    /// requests may still be in flight, and lose their mode.
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

    /// The handles of a route, to be kept with it. A label that is not in the configuration gets
    /// those of [`UNMATCHED`], so that no text from outside can make a series.
    #[must_use]
    pub fn route(&self, label: &str) -> Arc<RouteMetrics> {
        let by_label = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_label.get(label).unwrap_or(&self.unmatched))
    }

    /// How many requests have ended with each outcome, in the order of [`Outcome::ALL`].
    #[must_use]
    pub fn requests_by_outcome(&self) -> Vec<u64> {
        let mut counts = vec![0; Outcome::ALL.len()];
        let families = Collector::collect(&self.families.requests);
        for metric in families.iter().flat_map(MetricFamily::get_metric) {
            let mut labels = metric.get_label().iter();
            let word = labels.find(|label| label.name() == "outcome");
            let at = word.and_then(|word| {
                let mut all = Outcome::ALL.iter();
                all.position(|outcome| outcome.as_str() == word.value())
            });
            if let Some(at) = at {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a count"
                )]
                let count = metric.get_counter().get_value() as u64;
                counts[at] += count;
            }
        }
        counts
    }

    /// A token was checked against the marks, in this time.
    pub fn check(&self, result: CheckResult, took: Duration) {
        self.checks[result as usize].observe(took.as_secs_f64());
    }

    /// The counters of spans, at 0.
    #[must_use]
    pub fn traces(&self) -> TraceMetrics {
        TraceMetrics::new(&self.families.trace_spans)
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

    /// The requests in flight, which `limits.in_flight` bounds.
    #[must_use]
    pub fn requests_in_flight(&self) -> IntGauge {
        self.families.requests_in_flight.clone()
    }

    /// The open HTTP/2 connections to the upstream.
    #[must_use]
    pub fn upstream_http2_connections(&self) -> IntGauge {
        self.families.upstream_http2_connections.clone()
    }

    /// A connection to the upstream is open for as long as the guard lives.
    pub fn upstream_connection(&self) -> InFlightGuard {
        InFlightGuard::over(&self.families.upstream_connections)
    }

    /// A connection to the upstream could not be opened.
    pub fn upstream_connect_error(&self, cause: ConnectFailure) {
        self.families
            .upstream_connect_errors
            .with_label_values(&[cause.as_str()])
            .inc();
    }

    /// A stale request for this resource was refused.
    pub fn stale_resource(&self, resource: &ResourceKey, now: Instant) {
        self.stale_resources.record(resource.as_str(), now);
    }

    /// The series that the fencing updates.
    #[must_use]
    pub fn store(&self) -> &Arc<StoreMetrics> {
        &self.store
    }

    /// An operator lowered a mark.
    pub fn overridden(&self) {
        self.families.overrides.inc();
    }

    /// An operator deleted so many marks.
    pub fn pruned(&self, marks: u64) {
        self.families.pruned_marks.inc_by(marks);
    }

    /// The configuration was read again, with success or not.
    pub fn set_config_reload_ok(&self, ok: bool) {
        self.families.config_reload_ok.set(i64::from(ok));
    }

    /// When the configuration that is served was taken over.
    pub fn set_config_loaded(&self, now: SystemTime) {
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.families.config_loaded.set(since_1970.as_secs_f64());
    }

    /// The digest of the configuration that is served.
    pub fn set_config_digest(&self, digest: &str) {
        let family = &self.families.config_info;
        // In this order, so that no scrape finds none.
        family.with_label_values(&[digest]).set(1);
        let mut shown = self
            .config_digest
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *shown != digest {
            // Fails only at the start, when there is no earlier one.
            let _ = family.remove_label_values(&[shown.as_str()]);
            digest.clone_into(&mut shown);
        }
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
mod tests;
