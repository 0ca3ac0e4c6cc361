//! The metrics. One struct with a registry of its own (no globals), so that two proxies in one test
//! process do not share numbers.
//!
//! No label has a resource key, a token or a raw path: label values are routes from the
//! configuration and the words of [`labels`]. A series in which an alert or a panel counts single
//! events exists at 0 from the start, so that a rate over the first event is right. Latencies, and
//! the outcomes of modes that a route is not in, and those of remembered operations, appear with
//! their first event.
//!
//! A request looks up its route's [`RouteMetrics`] once (or keeps it with the route), and after
//! that touches atomics only.

mod families;
mod labels;
mod route;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::process_collector::ProcessCollector;
use prometheus::{Registry, TextEncoder};
use tokio::time::MissedTickBehavior;

pub use self::families::{ByLabel, Families};
pub use self::labels::{
    AdminRefusal, CheckResult, CodeClass, ConnectFailure, DecidedBy, HandshakeError, Limit, Outcome,
};
pub use self::route::{InFlightGuard, ResponseTimer, RouteMetrics};
use crate::build_info::{COMMIT, VERSION};
use crate::config::{Mode, Settings};
use crate::locked::locked;
use crate::store::StoreError;

/// The `route` label of claims.
pub const CLAIM: &str = "claim";
/// The `route` label of requests that no route matches.
pub const UNMATCHED: &str = "unmatched";

/// How often [`Metrics::keep_counts`] keeps a copy, and how many copies there are: a minute's.
const COPIES: (Duration, usize) = (Duration::from_secs(5), 13);

/// Everything the program counts and measures.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The series that need no method here.
    pub series: Families,
    /// By label. Held for a lookup or a reload's insertions; never across an await.
    routes: RwLock<HashMap<String, Arc<RouteMetrics>>>,
    unmatched: Arc<RouteMetrics>,
    /// Copies of [`Self::requests_by_outcome`], the oldest first. Held for a push or a look.
    earlier: Mutex<VecDeque<Vec<u64>>>,
    /// The latest error of the store, while it does not answer. Short sections, never across an
    /// await.
    store_trouble: Mutex<Option<Arc<str>>>,
}

impl Metrics {
    /// The series of these routes, and of the labels [`CLAIM`] and [`UNMATCHED`].
    #[must_use]
    pub fn new(routes: &[(String, Mode)]) -> Self {
        let registry = Registry::new();
        let series = Families::register(&registry);
        // Refused only if another family had the name of one of these.
        let _ = registry.register(Box::new(ProcessCollector::for_self()));
        let build = series.build_info.with_label_values(&[VERSION, COMMIT]);
        build.set(1);
        // The program only starts on a configuration that was read.
        series.config_reload_ok.set(1);
        for kind in StoreError::KINDS {
            series.store_errors.with_label_values(&[kind]);
        }
        let [unmatched, claim] = [UNMATCHED, CLAIM].map(|label| RouteMetrics::new(&series, label));
        // Requests without a route pass while any route only observes.
        unmatched.start(Mode::Observe);
        claim.start(Mode::Enforce);
        let unmatched = Arc::new(unmatched);
        let by_label = HashMap::from([
            (UNMATCHED.to_owned(), Arc::clone(&unmatched)),
            (CLAIM.to_owned(), Arc::new(claim)),
        ]);
        let metrics = Self {
            registry,
            series,
            routes: RwLock::new(by_label),
            unmatched,
            earlier: Mutex::default(),
            store_trouble: Mutex::default(),
        };
        metrics.set_routes(routes);
        metrics
    }

    /// Takes over the routes of a new configuration: new ones start at 0, and
    /// `fencepost_route_mode` has the new modes. Removed routes keep their counters, since their
    /// requests may still be in flight, and lose their mode.
    pub fn set_routes(&self, routes: &[(String, Mode)]) {
        let mut by_label = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let modes = &self.series.route_mode;
        modes.reset();
        for (label, mode) in routes {
            by_label
                .entry(label.clone())
                .or_insert_with(|| Arc::new(RouteMetrics::new(&self.series, label)))
                .start(*mode);
            for each in Mode::ALL {
                let series = modes.with_label_values(&[label.as_str(), each.as_str()]);
                series.set(i64::from(each == *mode));
            }
        }
    }

    /// The handles of a route, to be kept with it. A label that is not in the configuration gets
    /// those of [`UNMATCHED`], so that no text from outside can make a series.
    pub fn route(&self, label: &str) -> Arc<RouteMetrics> {
        let by_label = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_label.get(label).unwrap_or(&self.unmatched))
    }

    /// The number of requests that have ended with each outcome, in the order of [`Outcome::ALL`].
    pub fn requests_by_outcome(&self) -> Vec<u64> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let total = |outcome| routes.values().map(|route| route.requests(outcome)).sum();
        Outcome::ALL.iter().map(|outcome| total(*outcome)).collect()
    }

    /// The same for the last minute, by up to 5 seconds more.
    pub fn requests_of_last_minute(&self) -> Vec<u64> {
        let mut counts = self.requests_by_outcome();
        let earlier = locked(&self.earlier);
        for (count, earlier) in counts.iter_mut().zip(earlier.front().into_iter().flatten()) {
            *count = count.saturating_sub(*earlier);
        }
        counts
    }

    /// Keeps the copies that [`Self::requests_of_last_minute`] compares with, so that no request is
    /// counted twice for it. Runs until it is dropped.
    pub async fn keep_counts(self: Arc<Self>) {
        let (every, most) = COPIES;
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let counts = self.requests_by_outcome();
            let mut earlier = locked(&self.earlier);
            earlier.push_back(counts);
            if earlier.len() > most {
                earlier.pop_front();
            }
        }
    }

    /// A limit was reached.
    pub fn limit(&self, limit: Limit) {
        self.series.limit_reached.of(limit).inc();
    }

    /// The admin port refused a request, or closed a connection.
    pub fn admin_refused(&self, reason: AdminRefusal) {
        self.series.admin_refused.of(reason).inc();
    }

    /// Shows that these settings are served from now on, and when their certificates expire.
    pub fn set_config(&self, settings: &Settings, now: SystemTime) {
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.series.config_loaded.set(since_1970.as_secs_f64());
        let info = &self.series.config_info;
        info.reset();
        let digest = settings.digest();
        info.with_label_values(&[&digest]).set(1);
        let listener = settings.tls.as_ref().map(|tls| tls.expires);
        let admin = settings.admin.tls.as_ref().map(|tls| tls.expires);
        let identity = settings.upstream.tls.identity.as_ref();
        let seconds = |at: i64| Duration::from_secs(at.max(0).unsigned_abs()).as_secs_f64();
        for (certificate, expires) in [
            ("listener", listener),
            ("admin", admin),
            ("upstream", identity.map(|shown| shown.expires)),
        ] {
            let expiry = &self.series.tls_certificate_expiry;
            let expiry = expiry.with_label_values(&[certificate]);
            expiry.set(expires.map_or(f64::INFINITY, seconds));
        }
    }

    /// A call to the store has failed. A lock timeout says nothing about the store itself.
    pub fn store_failed(&self, error: &StoreError) {
        let errors = &self.series.store_errors;
        errors.with_label_values(&[error.kind()]).inc();
        if !matches!(error, StoreError::LockTimeout(_)) {
            self.series.store_up.set(0);
            *locked(&self.store_trouble) = Some(error.to_string().into());
        }
    }

    /// A call to the store has been answered.
    pub fn store_answered(&self) {
        if self.series.store_up.get() != 1 {
            *locked(&self.store_trouble) = None;
            self.series.store_up.set(1);
        }
    }

    /// Returns true if the store answered last, and otherwise why not.
    pub fn store_status(&self) -> (bool, Option<Arc<str>>) {
        let trouble = locked(&self.store_trouble);
        (self.series.store_up.get() == 1, trouble.clone())
    }

    /// Everything, in Prometheus's text format 0.0.4.
    pub fn encode(&self) -> String {
        let mut families = self.registry.gather();
        // Nobody looks at this one, and it says little.
        families.retain(|family| family.name() != "process_virtual_memory_bytes");
        TextEncoder::new()
            .encode_to_string(&families)
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
