//! A scrape of `/metrics`, read as Prometheus reads it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

/// One series: its name and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// All series of one scrape, and the declared type of each family.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub series: BTreeMap<Series, f64>,
    pub types: BTreeMap<String, String>,
}

impl Metrics {
    /// Reads the text format.
    ///
    /// # Panics
    /// At a line that is not of the format.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').expect("a name and a type");
                metrics.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a series and its value");
                let value = value.parse().expect("a number");
                metrics.series.insert(parse_series(series), value);
            }
        }
        metrics
    }

    /// The sum over all series of this name that have at least these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |own: &Series| {
            let mut labels = labels.iter();
            labels.all(|(label, value)| own.labels.get(*label).is_some_and(|own| own == value))
        };
        let series = self.series.iter();
        let fit = series.filter(|(series, _)| series.name == name && has(series));
        fit.map(|(_, value)| value).sum()
    }

    /// As [`Self::sum`], of whole numbers.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        // The sum of no series is −0.
        let sum = self.sum(name, labels) + 0.0;
        format!("{sum}").parse().expect("a whole number")
    }
}

fn parse_series(text: &str) -> Series {
    static LABEL: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"(\w+)="((?:[^"\\]|\\.)*)",?"#).expect("a pattern"));
    let (name, labels) = text.split_once('{').unwrap_or((text, "}"));
    let labels = labels.strip_suffix('}').expect("labels end with a brace");
    let left = LABEL.replace_all(labels, "");
    assert_eq!(left, "", "labels and their values: {text}");
    let label = |found: regex::Captures<'_>| {
        let value = found[2].replace("\\\"", "\"").replace("\\n", "\n");
        (found[1].to_owned(), value.replace("\\\\", "\\"))
    };
    Series {
        name: name.to_owned(),
        labels: LABEL.captures_iter(labels).map(label).collect(),
    }
}
