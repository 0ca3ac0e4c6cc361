//! Sample paths for two tables: one for every pair of routes, and every form of path that reaches
//! both.
//!
//! # Why these paths are enough
//!
//! A router's choice for a path depends on three things only: the number of its segments, its
//! trailing slash, and which segments equal which literals. Of the patterns that match, the first
//! in one fixed order wins. Take a path that reaches pattern *p* in one table and *q* in the other
//! (or none in one of them). The sample path for *p*, *q*, this length and this slash has their
//! literals where one of the two has a literal, and fresh text in all other segments. A pattern
//! that matches the sample path has literals only where the sample path does, and there the path
//! has the same ones: so it matches the path too. Hence nothing beats *p* or *q* on the sample path
//! that does not beat it on the path, and the sample path reaches *p* and *q*.
//!
//! Beyond the longest pattern only `{*rest}` matches, and each further segment extends all lists of
//! segments in the same way. So one segment more than the longest pattern stands for all lengths.

use std::collections::HashSet;

use super::normal::{percent_encoded, raw_path};
use super::path::CheckedPath;
use super::route::Pattern;

/// A path that stands for all paths of its form.
pub struct SamplePath {
    pub raw: String,
    pub path: CheckedPath,
    /// The text of each segment; `None` if it stands for any text.
    pub literals: Vec<Option<String>>,
}

/// Makes the sample paths for some routes.
pub struct SamplePaths {
    /// All literal segments, which a fresh one must differ from.
    literals: HashSet<String>,
    /// The length of the longest pattern.
    longest: usize,
}

impl SamplePaths {
    /// For routes with these patterns.
    pub fn new<'a>(patterns: impl Iterator<Item = &'a Pattern> + Clone) -> Self {
        let literals = patterns
            .clone()
            .flat_map(|pattern| (0..pattern.segments()).filter_map(|at| pattern.literal(at)));
        Self {
            literals: literals.map(str::to_owned).collect(),
            longest: patterns.map(Pattern::segments).max().unwrap_or(0),
        }
    }

    /// A path for each form that both patterns take, the shortest first.
    pub fn of(&self, pair: [Option<&Pattern>; 2]) -> Vec<SamplePath> {
        let patterns = || pair.into_iter().flatten();
        let least = patterns().map(Pattern::segments).max().unwrap_or(0);
        let both = (0..least).map(|at| {
            let mut texts = patterns().filter_map(|pattern| pattern.literal(at));
            let first = texts.next();
            let agree = texts.all(|text| Some(text) == first);
            agree.then(|| first.map(str::to_owned))
        });
        let Some(mut literals) = both.collect::<Option<Vec<_>>>() else {
            return Vec::new();
        };
        let mut paths = Vec::new();
        for length in least..self.longest + 2 {
            literals.resize(length, None);
            for slash in [false, true] {
                // The root has no trailing slash.
                let is_path = length > 0 || !slash;
                if is_path && patterns().all(|pattern| pattern.takes(length, slash)) {
                    paths.extend(self.path(&literals, slash));
                }
            }
        }
        paths
    }

    /// `None`: no request can have the path, since the literals make it ambiguous.
    fn path(&self, literals: &[Option<String>], slash: bool) -> Option<SamplePath> {
        let segments = literals.iter().enumerate().map(|(at, literal)| {
            let mut numbers = (at + 1..).map(|number| number.to_string());
            let fresh = || numbers.find(|text| !self.literals.contains(text));
            literal.clone().or_else(fresh)
        });
        let segments: Vec<String> = segments.collect::<Option<_>>()?;
        let raw = raw_path(segments.iter().map(|text| percent_encoded(text)), slash);
        Some(SamplePath {
            path: CheckedPath::parse(&raw).ok()?,
            raw,
            literals: literals.to_vec(),
        })
    }
}
