//! Routes: the router against a matcher that tries every pattern, in any order of the file.
//!
//! The last line of an input is a path; the lines before it are patterns.

use fencepost::routing::{CheckedPath, Pattern, Router};

use crate::spell::decode;
use crate::{Seen, Verdict, hold, target};

target!("route", &real);

/// The function under test: the pattern's index.
pub type Find = dyn Fn(&[Pattern], &CheckedPath) -> Option<usize>;

fn real(patterns: &[Pattern], path: &CheckedPath) -> Option<usize> {
    Router::new(patterns).0.find(path)
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
                hold!(
                    error.starts_with(&format!("path `{line}`: ")),
                    "a refusal that does not say of what: {error}"
                );
            }
        }
    }
    let (_, conflicts) = Router::new(&patterns);
    if !conflicts.is_empty() {
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
    let found = find(&patterns, &path);
    let expected = naive(&patterns, &path);
    hold!(
        found == expected,
        "{path:?} finds {found:?}, and a plain matcher {expected:?}"
    );
    let turned: Vec<Pattern> = patterns.iter().rev().cloned().collect();
    let again = find(&turned, &path).map(|index| patterns.len() - 1 - index);
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
    Capture,
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
            plain.steps.push(if segment.starts_with('{') {
                Step::Capture
            } else {
                Step::Literal(decode(segment.as_bytes()))
            });
        }
        plain
    }

    fn matches(&self, path: &CheckedPath) -> bool {
        let segments: Vec<&str> = path.segments_from(0).collect();
        let ends = if self.rest {
            segments.len() >= self.steps.len()
        } else {
            segments.len() == self.steps.len() && path.trailing_slash() == self.slash
        };
        let fits = |(step, segment): (&Step, &str)| match step {
            Step::Literal(text) => text == segment.as_bytes(),
            Step::Capture => true,
        };
        ends && self.steps.iter().zip(segments).all(fits)
    }

    /// The common form of two patterns that match the same paths.
    fn shape(&self) -> (Vec<Option<&[u8]>>, bool, bool) {
        let steps = self.steps.iter().map(|step| match step {
            Step::Literal(text) => Some(&text[..]),
            Step::Capture => None,
        });
        (steps.collect(), self.slash, self.rest)
    }
}

/// Smaller is more specific, from the left.
fn rank(plain: &Plain) -> Vec<u8> {
    let steps = plain.steps.iter().map(|step| match step {
        Step::Literal(_) => 0,
        Step::Capture => 1,
    });
    steps.chain([if plain.rest { 2 } else { 0 }]).collect()
}

fn naive(patterns: &[Pattern], path: &CheckedPath) -> Option<usize> {
    let all = patterns.iter().map(Plain::of).enumerate();
    let matching = all.filter(|(_, plain)| plain.matches(path));
    let best = matching.min_by_key(|(_, plain)| rank(plain));
    best.map(|(index, _)| index)
}
