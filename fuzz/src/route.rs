//! Routes: the router against a matcher that tries every pattern, in any order of the file.
//!
//! The last line of an input is a path; the lines before it are patterns.

use fencepost::routing::{CheckedPath, Pattern, Router};

use crate::spell::decode;
use crate::{Seen, Verdict, hold, target};

target!("route", &real);

/// The function under test: the pattern's index, its single captures, and the rest.
pub type Find = dyn Fn(&[Pattern], &CheckedPath) -> Result<Option<Found>, String>;

/// The findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub index: usize,
    pub single: Vec<(String, String)>,
    pub rest: Vec<String>,
}

fn real(patterns: &[Pattern], path: &CheckedPath) -> Result<Option<Found>, String> {
    let router = Router::new(patterns.to_vec()).map_err(|conflicts| format!("{conflicts:?}"))?;
    Ok(router.find(path).map(|(index, captures)| Found {
        index,
        single: patterns[index]
            .names()
            .filter_map(|name| Some((name.to_owned(), captures.get(name)?.to_owned())))
            .collect(),
        rest: captures.rest().to_vec(),
    }))
}

pub fn check_of(find: &Find, data: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(data) else {
        return Ok(Seen::Refused);
    };
    let mut lines: Vec<&str> = text.split('\n').collect();
    let path = lines.pop().unwrap_or_default();
    lines.truncate(12);
    let mut patterns = Vec::new();
    for line in lines {
        match Pattern::parse(line) {
            Ok(pattern) => {
                hold!(pattern.as_str() == line, "{line} has become {pattern}");
                patterns.push(pattern);
            }
            Err(error) => {
                let error = error.to_string();
                hold!(
                    error.starts_with(&format!("path `{line}`: ")),
                    "a refusal that does not say of what: {error}"
                );
            }
        }
    }
    if let Err(conflicts) = Router::new(patterns.clone()) {
        for conflict in conflicts {
            let (first, second) = (&patterns[conflict.first], &patterns[conflict.second]);
            hold!(
                conflict.first < conflict.second,
                "{conflict:?} is the wrong way round"
            );
            hold!(
                rank(&Plain::of(first)) == rank(&Plain::of(second)),
                "{first} and {second} are told apart by a matcher, and refused"
            );
        }
        return Ok(Seen::Refused);
    }
    for (i, pattern) in patterns.iter().enumerate() {
        for other in &patterns[..i] {
            let same = Plain::of(pattern).shape() == Plain::of(other).shape();
            hold!(!same, "{pattern} and {other} are one, and both are taken");
        }
    }
    let Ok(path) = CheckedPath::parse(path) else {
        return Ok(Seen::Refused);
    };
    let found = find(&patterns, &path)?;
    let expected = naive(&patterns, &path);
    hold!(
        found == expected,
        "{path:?} finds {found:?}, and a plain matcher {expected:?}"
    );
    let turned: Vec<Pattern> = patterns.iter().rev().cloned().collect();
    let again = find(&turned, &path)?.map(|found| Found {
        index: patterns.len() - 1 - found.index,
        ..found
    });
    hold!(again == found, "{path:?}: the order of the file decides");
    Ok(if found.is_some() {
        Seen::Accepted
    } else {
        Seen::Refused
    })
}

/// A pattern, read once more from its text.
#[derive(Debug)]
struct Plain {
    steps: Vec<Step>,
    slash: bool,
    rest: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Literal(Vec<u8>),
    Capture(String),
}

impl Plain {
    fn of(pattern: &Pattern) -> Self {
        let mut plain = Self {
            steps: Vec::new(),
            slash: false,
            rest: false,
        };
        for segment in pattern.as_str()[1..].split('/') {
            plain.slash = segment.is_empty() && !plain.steps.is_empty();
            plain.rest = segment.starts_with("{*");
            if segment.is_empty() || plain.rest {
                continue;
            }
            plain.steps.push(match segment.strip_prefix('{') {
                Some(name) => Step::Capture(name.trim_end_matches('}').to_owned()),
                None => Step::Literal(decode(segment.as_bytes())),
            });
        }
        plain
    }

    fn matches(&self, path: &CheckedPath) -> bool {
        let segments = path.segments();
        let ends = if self.rest {
            segments.len() >= self.steps.len()
        } else {
            segments.len() == self.steps.len() && path.trailing_slash() == self.slash
        };
        let fits = |(step, segment): (&Step, &String)| match step {
            Step::Literal(text) => text == segment.as_bytes(),
            Step::Capture(_) => true,
        };
        ends && self.steps.iter().zip(segments).all(fits)
    }

    /// The common form of two patterns that match the same paths.
    fn shape(&self) -> (Vec<Option<&[u8]>>, bool, bool) {
        let steps = self.steps.iter().map(|step| match step {
            Step::Literal(text) => Some(&text[..]),
            Step::Capture(_) => None,
        });
        (steps.collect(), self.slash, self.rest)
    }
}

/// Smaller is more specific, from the left.
fn rank(plain: &Plain) -> Vec<u8> {
    let steps = plain.steps.iter().map(|step| match step {
        Step::Literal(_) => 0,
        Step::Capture(_) => 1,
    });
    steps.chain([if plain.rest { 2 } else { 0 }]).collect()
}

fn naive(patterns: &[Pattern], path: &CheckedPath) -> Option<Found> {
    let all = patterns.iter().map(Plain::of).enumerate();
    let matching = all.filter(|(_, plain)| plain.matches(path));
    let (index, plain) = matching.min_by_key(|(_, plain)| rank(plain))?;
    let segments = path.segments();
    let single = plain
        .steps
        .iter()
        .zip(segments)
        .filter_map(|(step, segment)| match step {
            Step::Literal(_) => None,
            Step::Capture(name) => Some((name.clone(), segment.clone())),
        });
    let rest = if plain.rest {
        &segments[plain.steps.len()..]
    } else {
        &[]
    };
    Some(Found {
        index,
        single: single.collect(),
        rest: rest.to_vec(),
    })
}
