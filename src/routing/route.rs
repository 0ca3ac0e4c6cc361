//! [`Pattern`] and [`Router`]: which route a checked path belongs to.
//!
//! fencepost does its own matching, for three reasons. It compares *decoded* segments, so that an
//! escape cannot bypass a route. A trailing slash is part of a pattern and never optional by
//! accident. Of two matching patterns, the winner is decided segment by segment from the left
//! (literal, then `{capture}`, then `{*rest}`), so it depends neither on the order of the file nor
//! on any length. Only two patterns that differ just in the names of their captures could still
//! tie, and those are refused.
//!
//! The routes form one tree with a node per distinct prefix of a pattern. A lookup visits a node at
//! most once, so its cost is bounded by the number of segments in all patterns, whatever is sent.

use std::collections::HashMap;
use std::fmt;

use super::normal::{percent_encoded, raw_path};
use super::path::CheckedPath;

/// A route's path: `/orders/{id}/{*rest}`.
///
/// - Literal segments are written as in a URL and compared decoded: `/a%20b` and `/a b` are one.
/// - `{name}` takes one whole segment.
/// - `{*name}`, only at the end, takes the rest: zero or more segments, with or without a slash
///   behind them.
/// - A `/` at the end is part of the pattern: `/orders/{id}` does not match `/orders/42/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    steps: Vec<PatternSegment>,
    /// The name of the final `{*rest}`.
    rest: Option<String>,
    /// It ends with a slash.
    slash: bool,
}

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternSegment {
    Literal(String),
    Capture(String),
}

impl Pattern {
    /// Reads a pattern of the configuration. The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).map_err(|problem| format!("path `{text}`: {problem}"))
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut pattern = Self {
            text: text.to_owned(),
            ..Self::default()
        };
        let body = text.strip_prefix('/').ok_or("it must start with `/`")?;
        let mut segments = body.split('/').peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            if segment.is_empty() && last {
                // `/` alone is the root, which has no trailing slash.
                pattern.slash = !pattern.steps.is_empty();
                continue;
            }
            if !segment.contains(['{', '}']) {
                let text = literal(segment)?;
                pattern.steps.push(PatternSegment::Literal(text));
                continue;
            }
            let capture = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}'));
            let Some(capture) = capture.filter(|name| !name.contains(['{', '}'])) else {
                return Err(format!(
                    "`{segment}`: a capture is a whole segment, `{{name}}`; text beside it is not \
                     possible (a literal brace is `%7B` or `%7D`)"
                ));
            };
            let rest = capture.strip_prefix('*');
            let name = rest.unwrap_or(capture);
            if !is_name(name) {
                return Err(format!(
                    "`{segment}`: a capture's name is a lower-case letter or `_`, then lower-case \
                     letters, digits or `_`"
                ));
            }
            if pattern.names().any(|known| known == name) {
                return Err(format!("the name `{name}` is used twice"));
            }
            if rest.is_none() {
                let name = name.to_owned();
                pattern.steps.push(PatternSegment::Capture(name));
            } else if last {
                pattern.rest = Some(name.to_owned());
            } else {
                return Err(format!(
                    "`{segment}` takes all that is left, so it must be the last segment"
                ));
            }
        }
        Ok(pattern)
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of the captures, `{*rest}`'s included, from the left.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let captures = self.steps.iter().filter_map(|step| match step {
            PatternSegment::Capture(name) => Some(&**name),
            PatternSegment::Literal(_) => None,
        });
        captures.chain(self.rest_name())
    }

    /// The number of segments in front of a final `{*rest}`.
    pub fn segments(&self) -> usize {
        self.steps.len()
    }

    /// The decoded text of a literal segment, counted from 0; `None` for every other one.
    pub fn literal(&self, segment: usize) -> Option<&str> {
        match self.steps.get(segment)? {
            PatternSegment::Literal(text) => Some(text),
            PatternSegment::Capture(_) => None,
        }
    }

    /// The first segment that `{name}` or `{*name}` takes, counted from 0.
    pub fn position(&self, name: &str) -> usize {
        let named =
            |step: &PatternSegment| matches!(step, PatternSegment::Capture(known) if known == name);
        self.steps.iter().take_while(|step| !named(step)).count()
    }

    /// True if the pattern can match a path with this number of segments.
    pub fn takes(&self, segments: usize, trailing_slash: bool) -> bool {
        match self.rest {
            Some(_) => segments >= self.steps.len(),
            None => segments == self.steps.len() && trailing_slash == self.slash,
        }
    }

    /// A path that this pattern matches, for messages.
    pub fn example(&self) -> String {
        let segments = (0..self.segments()).map(|at| self.literal(at).unwrap_or("x"));
        raw_path(segments, self.slash)
    }

    /// The name of the final `{*rest}`.
    pub(super) fn rest_name(&self) -> Option<&str> {
        self.rest.as_deref()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(inside)
}

/// Decodes a literal segment of a pattern. Spaces and letters of any script need no escapes. Text
/// that no request's path may have is refused in a pattern too, since it would match nothing.
fn literal(segment: &str) -> Result<String, String> {
    if segment.is_empty() {
        return Err(
            "it has an empty segment (`//`), which no path matches; write a single `/`".into(),
        );
    }
    if let Some(sign) = segment.chars().find(|c| matches!(c, '?' | '#' | '*')) {
        return Err(format!(
            "`{segment}`: `{sign}` has no meaning here; patterns match paths only, and the rest of a \
             path is taken by `{{*rest}}` (a literal `{sign}` is `%{:02X}`)",
            u32::from(sign)
        ));
    }
    let escape = |sign: char| match sign {
        ' ' | '\u{80}'.. => percent_encoded(sign.encode_utf8(&mut [0; 4])),
        _ => sign.to_string(),
    };
    let escaped: String = segment.chars().map(escape).collect();
    match CheckedPath::parse(&format!("/{escaped}")) {
        Ok(path) => Ok(path.segments_from(0).collect()),
        Err(error) => Err(format!("`{segment}`: {error}")),
    }
}

/// Two routes that match the same paths equally well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "routes {} and {} match the same paths equally well, for example `{example}`; remove one, or \
     make one more specific", .first + 1, .second + 1
)]
pub struct RouteConflict {
    /// Index of the first one.
    pub first: usize,
    /// Index of the one that is refused.
    pub second: usize,
    /// A path that both match.
    pub example: String,
}

/// Finds the route of a path: all patterns that share their first segments.
#[derive(Clone, Debug, Default)]
pub struct Router {
    literals: HashMap<String, Router>,
    capture: Option<Box<Router>>,
    /// The patterns that end here, end in a slash here, and take the rest from here ([`REST`]).
    ends: [Option<usize>; 3],
}

/// The index of a final `{*rest}` in [`Router::ends`]. The others are those of a trailing slash.
const REST: usize = 2;

impl Router {
    /// Builds a router, and lists the patterns that match the same paths as an earlier one. These
    /// are never found.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a Pattern>) -> (Self, Vec<RouteConflict>) {
        let mut root = Self::default();
        let mut conflicts = Vec::new();
        for (second, pattern) in patterns.into_iter().enumerate() {
            let mut node = &mut root;
            for step in &pattern.steps {
                node = match step {
                    PatternSegment::Literal(text) => node.literals.entry(text.clone()).or_default(),
                    PatternSegment::Capture(_) => node.capture.get_or_insert_default(),
                };
            }
            let slash = usize::from(pattern.slash);
            let end = pattern.rest.as_ref().map_or(slash, |_| REST);
            let first = *node.ends[end].get_or_insert(second);
            if first != second {
                conflicts.push(RouteConflict {
                    first,
                    second,
                    example: pattern.example(),
                });
            }
        }
        (root, conflicts)
    }

    /// The index of the most specific pattern that matches.
    pub fn find(&self, path: &CheckedPath) -> Option<usize> {
        self.find_from(path, 0)
    }

    fn find_from(&self, path: &CheckedPath, at: usize) -> Option<usize> {
        let Some(segment) = path.segment(at) else {
            return self.ends[usize::from(path.trailing_slash())].or(self.ends[REST]);
        };
        let literal = self.literals.get(segment);
        let below = literal.and_then(|node| node.find_from(path, at + 1));
        let capture = || self.capture.as_ref()?.find_from(path, at + 1);
        below.or_else(capture).or(self.ends[REST])
    }
}

#[cfg(test)]
mod tests;
