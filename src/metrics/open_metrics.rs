//! The text of `OpenMetrics` 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>). It can
//! hold exemplars, and the text format 0.0.4 cannot.

use std::fmt::Write as _;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{Exemplar, Exemplars};

/// The `Content-Type` of [`encode`].
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All families.
pub(super) fn encode(families: &[MetricFamily], exemplars: &Exemplars) -> String {
    let mut text = String::new();
    for family in families {
        let name = family.name();
        let (kind, base) = match family.get_field_type() {
            // A counter's family has the name of its sample less the suffix.
            MetricType::COUNTER => match name.strip_suffix("_total") {
                Some(base) => ("counter", base),
                None => ("unknown", name),
            },
            MetricType::HISTOGRAM => ("histogram", name),
            MetricType::GAUGE => ("gauge", name),
            MetricType::SUMMARY | MetricType::UNTYPED => ("unknown", name),
        };
        let _ = writeln!(text, "# HELP {base} {}", escaped(family.help()));
        let _ = writeln!(text, "# TYPE {base} {kind}");
        for metric in family.get_metric() {
            let labels = metric.get_label();
            match family.get_field_type() {
                MetricType::COUNTER => {
                    sample(
                        &mut text,
                        name,
                        labels,
                        None,
                        metric.get_counter().get_value(),
                    );
                }
                MetricType::HISTOGRAM => histogram(&mut text, name, metric, exemplars),
                _ => sample(
                    &mut text,
                    name,
                    labels,
                    None,
                    metric.get_gauge().get_value(),
                ),
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

fn histogram(text: &mut String, name: &str, metric: &Metric, exemplars: &Exemplars) {
    let (labels, histogram) = (metric.get_label(), metric.get_histogram());
    let exemplars = exemplars.of(name, metric);
    let buckets = histogram.get_bucket();
    let count = histogram.get_sample_count();
    let bounds = buckets
        .iter()
        .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
        .chain([(f64::INFINITY, count)]);
    let bucket_name = format!("{name}_bucket");
    for (i, (bound, below)) in bounds.enumerate() {
        sample(text, &bucket_name, labels, Some(bound), below);
        if let Some(exemplar) = exemplars.get(&i) {
            // Behind the line that was just ended.
            text.pop();
            show(text, exemplar);
        }
    }
    let sum = histogram.get_sample_sum();
    sample(text, &format!("{name}_sum"), labels, None, number(sum));
    sample(text, &format!("{name}_count"), labels, None, count);
}

fn show(text: &mut String, exemplar: &Exemplar) {
    let Exemplar { trace, value, at } = exemplar;
    let _ = writeln!(
        text,
        " # {{trace_id=\"{trace}\"}} {} {}.{:03}",
        number(*value),
        at.as_secs(),
        at.subsec_millis()
    );
}

/// One line. `le`: the upper bound of a bucket.
fn sample(
    text: &mut String,
    name: &str,
    labels: &[LabelPair],
    le: Option<f64>,
    value: impl Into<SampleValue>,
) {
    text.push_str(name);
    let own = labels
        .iter()
        .map(|label| (label.name(), escaped(label.value())));
    let bound = le.map(|le| ("le", bound(le)));
    let mut before = '{';
    for (name, value) in own.chain(bound) {
        let _ = write!(text, "{before}{name}=\"{value}\"");
        before = ',';
    }
    if before == ',' {
        text.push('}');
    }
    let SampleValue(value) = value.into();
    let _ = writeln!(text, " {value}");
}

/// A value as it is written.
struct SampleValue(String);

impl From<f64> for SampleValue {
    fn from(value: f64) -> Self {
        Self(number(value))
    }
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> Self {
        Self(value.to_string())
    }
}

impl From<String> for SampleValue {
    fn from(value: String) -> Self {
        Self(value)
    }
}

fn number(value: f64) -> String {
    if value == f64::INFINITY {
        "+Inf".to_owned()
    } else if value == f64::NEG_INFINITY {
        "-Inf".to_owned()
    } else {
        value.to_string()
    }
}

/// A bound is a float, and looks like one: `1.0`.
fn bound(le: f64) -> String {
    let text = number(le);
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text + ".0"
    } else {
        text
    }
}

/// The text of a help or of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('"', "\\\"")
}

/// Whether a scraper with this `Accept` prefers `OpenMetrics` 1.0 to the text format 0.0.4 (RFC
/// 9110, 12.5.1). One that names neither gets the text format.
pub(super) fn preferred(accept: &str) -> bool {
    let mut best = (0.0, false);
    for entry in accept.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let mut quality = 1.0;
        let mut version = None;
        for parameter in parts {
            match parameter.split_once('=') {
                Some(("q", q)) => quality = q.trim().parse().unwrap_or(0.0),
                Some(("version", v)) => version = Some(v.trim()),
                _ => {}
            }
        }
        let open = match (kind, version) {
            ("application/openmetrics-text", None | Some("1.0.0")) => true,
            ("text/plain", _) => false,
            _ => continue,
        };
        // Of two that are as good, OpenMetrics has more to say.
        if quality > best.0 || (quality > 0.0 && quality >= best.0 && open) {
            best = (quality, open);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceId;
    use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn the_text_has_types_escapes_and_exemplars() {
        let (registry, exemplars) = (Registry::new(), Exemplars::default());
        let counters = IntCounterVec::new(Opts::new("a_total", "Say \"a\"."), &["x"]);
        let counters = counters.expect("a counter");
        let gauge = IntGauge::new("b", "B\\").expect("a gauge");
        let options = HistogramOpts::new("c_seconds", "C").buckets(vec![0.5, 1.0, 1e6]);
        let seconds = Histogram::with_opts(options).expect("a histogram");
        for collector in [
            Box::new(counters.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(gauge.clone()),
            Box::new(seconds.clone()),
        ] {
            registry.register(collector).expect("it is new");
        }
        counters.with_label_values(&["q\"\\\n"]).inc();
        gauge.set(-3);
        let trace = TraceId::from_hex(TRACE).expect("an id");
        exemplars.observe(&seconds, 0.25, None);
        exemplars.observe(&seconds, 0.75, Some(trace));
        exemplars.observe(&seconds, 2e6, Some(trace));
        let text = encode(&registry.gather(), &exemplars);
        let stamp = regex::Regex::new(r" \d{10}\.\d{3}\n").expect("a pattern");
        assert_eq!(
            stamp.replace_all(&text, " NOW\n"),
            format!(
                "# HELP a Say \\\"a\\\".\n# TYPE a counter\na_total{{x=\"q\\\"\\\\\\n\"}} 1\n\
                 # HELP b B\\\\\n# TYPE b gauge\nb -3\n\
                 # HELP c_seconds C\n# TYPE c_seconds histogram\n\
                 c_seconds_bucket{{le=\"0.5\"}} 1\n\
                 c_seconds_bucket{{le=\"1.0\"}} 2 # {{trace_id=\"{TRACE}\"}} 0.75 NOW\n\
                 c_seconds_bucket{{le=\"1000000.0\"}} 2\n\
                 c_seconds_bucket{{le=\"+Inf\"}} 3 # {{trace_id=\"{TRACE}\"}} 2000000 NOW\n\
                 c_seconds_sum 2000001\nc_seconds_count 3\n# EOF\n"
            )
        );
    }

    #[test]
    fn a_scraper_gets_what_it_prefers() {
        // The fields of Prometheus 3 and 2, of a browser, and of curl.
        for (accept, open) in [
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                true,
            ),
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                true,
            ),
            ("application/openmetrics-text", true),
            (
                "text/plain, application/openmetrics-text; version=1.0.0",
                true,
            ),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("*/*", false),
            ("", false),
            ("text/plain;version=0.0.4", false),
            ("text/plain, application/openmetrics-text;q=0.5", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-text;version=0.0.1", false),
        ] {
            assert_eq!(preferred(accept), open, "{accept}");
        }
    }
}
