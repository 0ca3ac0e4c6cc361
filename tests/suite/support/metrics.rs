//! A scrape of `/metrics`, read as Prometheus reads it.

use std::collections::BTreeMap;

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
        self.matching(name, labels).map(|(_, value)| value).sum()
    }

    /// Returns whether any series of this name has at least these labels.
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    fn matching(
        &self,
        name: &str,
        labels: &[(&str, &str)],
    ) -> impl Iterator<Item = (&Series, f64)> {
        self.series
            .iter()
            .filter(move |(series, _)| {
                series.name == name
                    && labels.iter().all(|(label, value)| {
                        series.labels.get(*label).map(String::as_str) == Some(value)
                    })
            })
            .map(|(series, value)| (series, *value))
    }
}

fn parse_series(text: &str) -> Series {
    let Some((name, rest)) = text.split_once('{') else {
        return Series {
            name: text.to_owned(),
            labels: BTreeMap::new(),
        };
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}').expect("labels end with a brace");
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect("a label and its value");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("values end with a quote") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("an escape has a second character").1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(label.to_owned(), value);
        rest = after[end + 1..].trim_start_matches(',');
    }
    Series {
        name: name.to_owned(),
        labels,
    }
}
