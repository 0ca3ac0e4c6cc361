//! Every metric the program has. A field's doc comment *is* its help text: the macro below hands
//! the one text to both, so that they cannot differ.

use std::marker::PhantomData;
use std::sync::LazyLock;

use prometheus::core::{
    Atomic, AtomicU64, Collector, GenericGauge, GenericGaugeVec, MetricVec, MetricVecBuilder,
};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::labels::{AdminRefusal, CheckResult, ConnectFailure, HandshakeError, Label, Limit};

/// Seconds, from an answer out of memory to a timeout.
const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];
/// Seconds of a wait or an upstream; finer buckets would be noise.
const COARSE_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Asks in a batch.
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Mark minus token. 0 is a spent token; lock services that count revisions leave wide gaps.
const GAP: &[f64] = &[0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0, 1e3, 1e4, 1e6, 1e9];

macro_rules! families {
    ($(
        $(#[doc = $help:literal])+
        $field:ident: $type:ty = $make:ident($name:literal $(, $arg:expr)*);
    )+) => {
        /// The metrics, each registered.
        #[derive(Debug)]
        pub struct Families {
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Families {
            /// Makes and registers each.
            pub(super) fn register(registry: &Registry) -> Self {
                Self {
                    $($field: $make(
                        registry,
                        Opts::new($name, concat!($($help),+).trim())
                        $(, $arg)*
                    ),)+
                }
            }

            /// The name and help text of each.
            #[cfg(test)]
            pub(super) const NAMES: &[(&str, &str)] = &[$(($name, concat!($($help),+)),)+];
        }
    };
}

families! {
    /// Requests, each counted once, by its last outcome.
    requests: IntCounterVec = counters("fencepost_requests_total", &["route", "outcome"]);
    /// Requests refused because their token is stale, by what decided: a mark in memory, the store,
    /// or a newer token that came while the request waited at the barrier.
    stale_rejections: IntCounterVec =
        counters("fencepost_stale_rejections_total", &["route", "decided_by"]);
    /// How far below the mark refused tokens were: mark minus token; 0 is a spent token.
    stale_gap: HistogramVec = histograms("fencepost_stale_gap", GAP, &["route"]);
    /// Distinct resources that had a stale request refused in the last 5 minutes. 1,000 means 1,000
    /// or more.
    stale_resources: GenericGauge<AtomicU64> = gauge("fencepost_stale_resources");
    /// Seconds that checking a token against the marks took, by its outcome. Includes the store,
    /// but not the wait at the barrier. An answer from memory counts as 0.
    check_seconds: FromFirst<ByLabel<CheckResult, Histogram>> =
        histograms_by("fencepost_check_seconds", SECONDS, "result");
    /// Resources in one transaction of the store.
    store_batch_size: Histogram = histogram("fencepost_store_batch_size", BATCH);
    /// Seconds from sending a batch to the store to its durable answer.
    store_commit_seconds: Histogram = histogram("fencepost_store_commit_seconds", SECONDS);
    /// Failed calls to the store, by kind.
    store_errors: IntCounterVec = counters("fencepost_store_errors_total", &["kind"]);
    /// Whether the last call to the store succeeded: 1 or 0.
    store_up: IntGauge = gauge("fencepost_store_up");
    /// Seconds that requests waited for older ones of their resource.
    barrier_wait_seconds: HistogramVec =
        histograms("fencepost_barrier_wait_seconds", COARSE_SECONDS, &["route"]);
    /// Requests that wait at the barrier for older ones of their resource.
    waiting: IntGaugeVec = gauges("fencepost_waiting", &["route"]);
    /// Requests that hold a permit and whose exchange with the upstream is running.
    in_flight: IntGaugeVec = gauges("fencepost_upstream_in_flight", &["route"]);
    /// Requests that were sent, got no whole answer, and are counted as in flight until they settle
    /// or are resolved.
    unknown_outcomes: IntGauge = gauge("fencepost_unknown_outcomes");
    /// Operations of the namespace whose outcome is unknown and has settled, as of the last minute.
    /// 1,000 means 1,000 or more.
    operations_unknown: GenericGauge<AtomicU64> = gauge("fencepost_operations_unknown");
    /// Marks of the namespace, as of the last count; a count takes about ten seconds per 100,000
    /// marks.
    marks: GenericGauge<AtomicU64> = gauge("fencepost_marks");
    /// Resources that got their first mark through this instance. A mark is kept until it is pruned.
    new_resources: IntCounter = counter("fencepost_new_resources_total");
    /// Epochs that this instance has open in the store.
    open_epochs: IntGauge = gauge("fencepost_open_epochs");
    /// Seconds from sending a request upstream to the head of its response, by the class of the
    /// status code.
    upstream_header_seconds: HistogramVec =
        histograms("fencepost_upstream_header_seconds", COARSE_SECONDS, &["route", "code"]);
    /// Seconds from sending a request upstream to the end of its response, by the class of the
    /// status code. A client that reads slowly, and an opened tunnel, take their time here.
    upstream_response_seconds: HistogramVec =
        histograms("fencepost_upstream_response_seconds", COARSE_SECONDS, &["route", "code"]);
    /// Seconds from the head of a request to the end of its answer, as the client has taken it. A
    /// tunnel counts until it is opened.
    request_duration_seconds: HistogramVec =
        histograms("fencepost_request_duration_seconds", COARSE_SECONDS, &["route"]);
    /// Connections to the upstream that could not be opened, by cause.
    upstream_connect_errors: ByLabel<ConnectFailure, IntCounter> =
        counters_by("fencepost_upstream_connect_errors_total", "cause");
    /// Open connections to the upstream, idle ones included.
    upstream_connections: IntGauge = gauge("fencepost_upstream_connections");
    /// Requests forwarded without an idempotency key because none could be made for them.
    idempotency_keyless: IntCounterVec =
        counters("fencepost_idempotency_keyless_total", &["route"]);
    /// Losses of the store that were seen: it answered with a lower mark than this instance knew to be
    /// durable, or without an open epoch or a spending. A lost mark counts again when it is written
    /// back.
    mark_regressions: IntCounter = counter("fencepost_mark_regressions_total");
    /// Marks that operators lowered through this instance.
    overrides: IntCounter = counter("fencepost_overrides_total");
    /// Marks that operators deleted through this instance, because they had not changed for long.
    pruned_marks: IntCounter = counter("fencepost_pruned_marks_total");
    /// 1 for the mode that a route is in, 0 for the others.
    route_mode: IntGaugeVec = gauges("fencepost_route_mode", &["route", "mode"]);
    /// Live instances of the namespace whose route table differs from this instance's.
    route_table_mismatch: IntGauge = gauge("fencepost_route_table_mismatch");
    /// Whether the last reading of the configuration succeeded: 1 or 0. A bad file changes nothing
    /// else.
    config_reload_ok: IntGauge = gauge("fencepost_config_reload_ok");
    /// When this instance took over the configuration that it serves, in seconds since 1970: at its
    /// start, or at its last successful reload.
    config_loaded: Gauge = gauge("fencepost_config_loaded_timestamp_seconds");
    /// 1, with the first digits of a SHA-256 of the configuration that is served in the label. Secrets
    /// do not count. Instances with the same files have the same digest.
    config_info: IntGaugeVec = gauges("fencepost_config_info", &["digest"]);
    /// Seconds that this instance may go on forwarding without renewing its lease; +Inf after a
    /// drain.
    lease_remaining_seconds: Gauge = gauge("fencepost_lease_remaining_seconds");
    /// Times that a limit was reached, by limit: a request or connection was refused, closed or
    /// made to wait.
    limit_reached: ByLabel<Limit, IntCounter> =
        counters_by("fencepost_limit_reached_total", "limit");
    /// Log lines that were dropped because standard error was too slow.
    log_lines_dropped: IntCounter = counter("fencepost_log_lines_dropped_total");
    /// Open connections of clients on the data port.
    connections: IntGauge = gauge("fencepost_connections");
    /// Requests in flight, from their head to the end of their response; `limits.in_flight` bounds
    /// them.
    requests_in_flight: IntGauge = gauge("fencepost_requests_in_flight");
    /// Requests that the admin port refused, and admin connections that it closed, by reason.
    admin_refused: ByLabel<AdminRefusal, IntCounter> =
        counters_by("fencepost_admin_refused_total", "reason");
    /// Failed TLS handshakes with clients, by reason.
    tls_handshake_errors: ByLabel<HandshakeError, IntCounter> =
        counters_by("fencepost_tls_handshake_errors_total", "reason");
    /// When a certificate expires, in seconds since 1970: that for clients (listener), for the
    /// admin port, or for the upstream. The earliest of its chain; +Inf if none is configured.
    tls_certificate_expiry: GaugeVec =
        gauges("fencepost_tls_certificate_expiry_timestamp_seconds", &["certificate"]);
    /// 1, with the version, and the commit that it was built from, in the labels.
    build_info: IntGaugeVec = gauges("fencepost_build_info", &["version", "commit"]);
    /// 1, with the name of this instance in the label, as in its log lines and in `Via`. The label
    /// `instance` would be the target's address in Prometheus.
    instance_info: IntGaugeVec = gauges("fencepost_instance_info", &["id"]);
}

/// Why the constructors below cannot fail: names, labels and buckets are constants.
const CONSTANT: &str = "names, labels and buckets are constants that a test goes through";

/// Series that appear with their first event. Latencies do: at rest they would be most of a scrape,
/// and no alert reads them.
pub type FromFirst<M> = LazyLock<M, Box<dyn FnOnce() -> M + Send + Sync>>;

/// The series of each value of a label, made at 0.
#[derive(Debug)]
pub struct ByLabel<L, M> {
    /// In the order of [`Label::WORDS`].
    series: Vec<M>,
    label: PhantomData<L>,
}

impl<L: Label, M> ByLabel<L, M> {
    /// `before`: the values of the family's labels before this one, its last.
    pub(super) fn of_family(
        family: &MetricVec<impl MetricVecBuilder<M = M>>,
        before: &[&str],
    ) -> Self {
        let series = |word| family.with_label_values(&[before, &[word]].concat());
        Self {
            series: L::WORDS.iter().copied().map(series).collect(),
            label: PhantomData,
        }
    }

    /// The series of a value.
    pub fn of(&self, value: L) -> &M {
        &self.series[value.index()]
    }
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> C {
    let collector = collector.expect(CONSTANT);
    registry
        .register(Box::new(collector.clone()))
        .expect(CONSTANT);
    collector
}

fn counter(registry: &Registry, opts: Opts) -> IntCounter {
    registered(registry, IntCounter::with_opts(opts))
}

fn counters(registry: &Registry, opts: Opts, labels: &[&str]) -> IntCounterVec {
    registered(registry, IntCounterVec::new(opts, labels))
}

fn counters_by<L: Label>(registry: &Registry, opts: Opts, label: &str) -> ByLabel<L, IntCounter> {
    ByLabel::of_family(&counters(registry, opts, &[label]), &[])
}

fn gauge<P: Atomic + 'static>(registry: &Registry, opts: Opts) -> GenericGauge<P> {
    registered(registry, GenericGauge::with_opts(opts))
}

fn gauges<P>(registry: &Registry, opts: Opts, labels: &[&str]) -> GenericGaugeVec<P>
where
    P: Atomic + 'static,
{
    registered(registry, GenericGaugeVec::new(opts, labels))
}

fn histogram(registry: &Registry, opts: Opts, buckets: &[f64]) -> Histogram {
    let opts = HistogramOpts::from(opts).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(opts))
}

fn histograms(registry: &Registry, opts: Opts, buckets: &[f64], labels: &[&str]) -> HistogramVec {
    let opts = HistogramOpts::from(opts).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(opts, labels))
}

fn histograms_by<L: Label>(
    registry: &Registry,
    opts: Opts,
    buckets: &[f64],
    label: &str,
) -> FromFirst<ByLabel<L, Histogram>> {
    let family = histograms(registry, opts, buckets, &[label]);
    LazyLock::new(Box::new(move || ByLabel::of_family(&family, &[])))
}
