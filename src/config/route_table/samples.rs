//! Sample requests for two tables: paths that reach every pair of routes, and values that
//! distinguish two templates.
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
//!
//! # Why these values are enough
//!
//! Each part that both routes take (a free segment, a header and so on) has a text of its own. Five
//! samples:
//!
//! - *plain* is readable: `1`, `2`, … Every difference it shows is real.
//! - *marked* has a distinct mark for each text. A mark is a run of one letter, in upper case, that
//!   is longer than any in either table, then a number. So marks can be found in a key, and two
//!   keys that are equal here have the same parts in the same places, with the same literals
//!   between. The upper case shows the filter `lower`. A text that either template takes as a
//!   number gets a number, made the same way of nines, since otherwise that template has no key.
//! - *padded* puts a zero in front of numbers, which shows the filter `int`.
//! - *signed* puts every ASCII sign into each text (in a segment: those that both routes let
//!   through; if either template has the filter `plain`: `-` and `_`). It shows which signs a
//!   template escapes.
//! - *spelled* is what the old route lets through and the new one may refuse: every sign that the
//!   old one lets through, which shows the filter `plain` of the new one; text where only the new
//!   one takes a number; and numbers with a plus, which `int` takes and `plain` does not.

use std::collections::{HashMap, HashSet};

use super::{RouteTable, Rule};
use crate::routing::{CheckedPath, KeyTemplate, Pattern, Sample, Source, percent_encoded};

/// The samples of values, the most readable one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleStyle {
    Plain,
    Marked,
    Padded,
    Signed,
    Spelled,
}

impl SampleStyle {
    pub(super) const ALL: [Self; 5] = [
        Self::Plain,
        Self::Marked,
        Self::Padded,
        Self::Signed,
        Self::Spelled,
    ];
}

impl Sample {
    /// The request as an operator would write it: `PUT /o/2?q=3 (Host: example.org)`.
    pub(super) fn request(&self, method: &str, more: Option<&str>) -> String {
        let mut target = self.raw_path.clone();
        let mut beside = Vec::new();
        let mut known: Vec<(&Source, &String)> = self.values.iter().collect();
        known.sort_unstable();
        let mut sign = '?';
        for (source, value) in known {
            match source {
                Source::Query(name) => {
                    let (name, value) = (percent_encoded(name), percent_encoded(value));
                    target.push(sign);
                    target.extend([name, "=".to_owned(), value]);
                    sign = '&';
                }
                Source::Host => beside.push(format!("Host: {value}")),
                Source::Header(name) => beside.push(format!("{name}: {value}")),
                Source::Json(names) => {
                    beside.push(format!("{} {value:?} in its JSON", names.join(".")));
                }
                Source::Path(_) | Source::WholePath => {}
            }
        }
        beside.extend(more.map(str::to_owned));
        if beside.is_empty() {
            format!("{method} {target}")
        } else {
            format!("{method} {target} ({})", beside.join(", "))
        }
    }
}

/// Makes the samples for one pair of tables.
pub(super) struct Sampler {
    /// All literal segments, which a fresh one must differ from.
    literals: HashSet<String>,
    /// The letter and the length of its run that marks a text.
    mark: (char, usize),
    /// The length of the run of nines that marks a number.
    nines: usize,
    /// The longest pattern.
    longest: usize,
}

/// A route of each table, or none.
pub(super) type Pair<'a> = [Option<&'a Rule>; 2];

/// A path's length and whether it ends in a slash.
pub(super) type Form = (usize, bool);

impl Sampler {
    pub(super) fn new(tables: [&RouteTable; 2]) -> Self {
        let rules = || tables.iter().flat_map(|table| &table.routes);
        let patterns = || rules().map(|rule| &rule.pattern);
        let literals: HashSet<String> = patterns()
            .flat_map(|pattern| {
                (0..pattern.segments()).filter_map(|at| pattern.literal(at).map(str::to_owned))
            })
            .collect();
        let templates = rules().filter_map(|rule| Some(rule.key.as_ref()?.as_str()));
        let texts: Vec<String> = literals
            .iter()
            .map(String::as_str)
            .chain(templates)
            .map(str::to_lowercase)
            .collect();
        let run = |sign: char| {
            let runs = texts.iter().map(|text| longest_run(text, sign));
            runs.max().unwrap_or_default()
        };
        // The letters up to f are digits of escapes.
        let mark = ('g'..='z').map(|letter| (run(letter), letter)).min();
        let (length, letter) = mark.unwrap_or((0, 'z'));
        Self {
            mark: (letter.to_ascii_uppercase(), length + 1),
            // Escapes have a single nine.
            nines: run('9') + 2,
            longest: patterns().map(Pattern::segments).max().unwrap_or(0),
            literals,
        }
    }

    /// The forms of path that reach both routes, if they meet at all. `None`: no route.
    pub(super) fn forms(&self, pair: Pair) -> Vec<Form> {
        let patterns = || pair.iter().flatten().map(|rule| &rule.pattern);
        let least = patterns().map(Pattern::segments).max();
        let least = least.unwrap_or(0);
        let apart = |at| {
            let mut literals = patterns().filter_map(|one| one.literal(at));
            literals
                .next()
                .zip(literals.next())
                .is_some_and(|(one, other)| one != other)
        };
        if (0..least).any(apart) {
            return Vec::new();
        }
        (least..=self.longest + 1)
            .flat_map(|length| [(length, false), (length, true)])
            // The root has no trailing slash.
            .filter(|&(length, slash)| length > 0 || !slash)
            .filter(|&(length, slash)| patterns().all(|one| one.takes(length, slash)))
            .collect()
    }

    /// The sample of a pair of routes that meet in this form. `None`: no request can have the path,
    /// since the routes' literals make it ambiguous.
    pub(super) fn sample(&self, pair: Pair, form: Form, style: SampleStyle) -> Option<Sample> {
        let (length, slash) = form;
        let rules = || pair.into_iter().flatten();
        let keys = || rules().filter_map(|rule| rule.key.as_ref());
        // The routes on which the sample must have a key.
        let by = match style {
            SampleStyle::Spelled => [pair[0], None],
            _ => pair,
        };
        let (numbers, plain) = (numbers(by), PlainPlaces::of(by));
        let spell = |place: &PartOrigin, ordinal: usize, signs: &str| {
            let number = numbers.contains(place);
            let plain = plain.has(place);
            let text = self.text(ordinal, number, style);
            match style {
                SampleStyle::Spelled if number && !plain => format!("+{text}"),
                SampleStyle::Signed | SampleStyle::Spelled if !number && plain => {
                    text + PLAIN_SIGNS
                }
                SampleStyle::Signed | SampleStyle::Spelled if !number => text + signs,
                _ => text,
            }
        };
        let signs = signs_of_segments(by);
        let mut raw_path = String::new();
        for at in 0..length {
            let literal = rules().find_map(|rule| rule.pattern.literal(at));
            let text = match literal {
                Some(text) => text.to_owned(),
                None => spell(&PartOrigin::Segment(at), at, &signs),
            };
            raw_path.push('/');
            raw_path.push_str(&percent_encoded(&text));
        }
        if length == 0 || slash {
            raw_path.push('/');
        }
        let path = CheckedPath::parse(&raw_path).ok()?;
        let mut values = HashMap::new();
        for source in keys().flat_map(KeyTemplate::parts) {
            if matches!(source, Source::Path(_) | Source::WholePath) {
                continue;
            }
            // Behind all segments, so that no two texts are the same.
            let ordinal = length + values.len();
            let place = PartOrigin::Elsewhere(source.clone());
            values
                .entry(source.clone())
                .or_insert_with(|| match (source, style) {
                    (Source::Host, SampleStyle::Plain) => "example.org".to_owned(),
                    (Source::Host, _) => self.text(ordinal, false, style),
                    _ => spell(&place, ordinal, SIGNS),
                });
        }
        Some(Sample {
            raw_path,
            path,
            values,
        })
    }

    /// A text that no literal equals, another one for each ordinal.
    fn text(&self, ordinal: usize, number: bool, style: SampleStyle) -> String {
        let (letter, length) = self.mark;
        let mark = |sign: char, length: usize| String::from(sign).repeat(length);
        match (style, number) {
            (SampleStyle::Plain, _) if !self.literals.contains(&(ordinal + 1).to_string()) => {
                (ordinal + 1).to_string()
            }
            // The ordinal has no nine and a fixed length, so that it ends where it ends.
            (SampleStyle::Plain | SampleStyle::Marked, true) => {
                format!("{}{ordinal:06o}", mark('9', self.nines))
            }
            (_, true) => format!("0{}{ordinal:06o}", mark('9', self.nines)),
            (_, false) => format!("{}{ordinal:06o}", mark(letter, length)),
        }
    }
}

/// The origin of a part of a key, independent of its name in either route.
#[derive(PartialEq, Eq, Hash)]
enum PartOrigin {
    Segment(usize),
    Elsewhere(Source),
}

/// The parts that at least one of the two keys takes as a number.
fn numbers(pair: Pair) -> HashSet<PartOrigin> {
    let mut numbers = HashSet::new();
    for rule in pair.into_iter().flatten() {
        for source in rule.key.iter().flat_map(KeyTemplate::numbers) {
            numbers.extend(match source {
                Source::Path(name) => rule.pattern.position(name).map(PartOrigin::Segment),
                other => Some(PartOrigin::Elsewhere(other.clone())),
            });
        }
    }
    numbers
}

/// The parts that at least one of the two keys takes only as plain text.
#[derive(Default)]
struct PlainPlaces {
    places: HashSet<PartOrigin>,
    /// All segments from this one on.
    from: Option<usize>,
}

impl PlainPlaces {
    fn of(pair: Pair) -> Self {
        let mut all = Self::default();
        for rule in pair.into_iter().flatten() {
            for source in rule.key.iter().flat_map(KeyTemplate::plain_parts) {
                let from = match source {
                    Source::WholePath => 0,
                    Source::Path(name) => match rule.pattern.position(name) {
                        Some(at) => {
                            all.places.insert(PartOrigin::Segment(at));
                            continue;
                        }
                        None => rule.pattern.segments(),
                    },
                    other => {
                        all.places.insert(PartOrigin::Elsewhere(other.clone()));
                        continue;
                    }
                };
                all.from = Some(all.from.map_or(from, |known| known.min(from)));
            }
        }
        all
    }

    fn has(&self, place: &PartOrigin) -> bool {
        let in_rest = match (place, self.from) {
            (PartOrigin::Segment(at), Some(from)) => *at >= from,
            _ => false,
        };
        in_rest || self.places.contains(place)
    }
}

/// The signs of [`SIGNS`] that the filter `plain` takes.
const PLAIN_SIGNS: &str = "-_";

/// Every sign that a template can have. A `%` is not followed by a digit, nor is any piece
/// between slashes a dot segment.
const SIGNS: &str = "!\"#$%&'()*+,-.:/;<=>?@[\\]^_`{|}~";

/// The signs that a segment can have on all of these routes.
fn signs_of_segments(pair: Pair) -> String {
    let passes = |sign: &char| {
        let path = CheckedPath::parse(&format!("/x{}", percent_encoded(&sign.to_string())));
        let Ok(path) = path else { return false };
        let mut rules = pair.iter().flatten();
        rules.all(|rule| path.oddity_not_in(rule.allow).is_none())
    };
    SIGNS.chars().filter(passes).collect()
}

fn longest_run(text: &str, sign: char) -> usize {
    let runs = text.split(|other| other != sign);
    runs.map(str::len).max().unwrap_or(0)
}
