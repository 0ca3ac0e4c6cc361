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

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::escape::percent_encoded;
use super::path::CheckedPath;

/// A route's path: `/orders/{id}/{*rest}`.
///
/// - Literal segments are written as in a URL and compared decoded: `/a%20b` and `/a b` are one.
/// - `{name}` takes one whole segment.
/// - `{*name}`, only at the end, takes the rest: zero or more segments, with or without a slash
///   behind them.
/// - A `/` at the end is part of the pattern: `/orders/{id}` does not match `/orders/42/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Arc<str>,
    steps: Arc<[PatternSegment]>,
    end: PatternEnd,
}

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternSegment {
    Literal(String),
    Capture(Arc<str>),
}

/// The end of a pattern, after its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternEnd {
    Here,
    Slash,
    Rest(Arc<str>),
}

impl Pattern {
    /// Reads a pattern of the configuration.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let problem = |message: String| PatternError {
            pattern: text.to_owned(),
            message,
        };
        let Some(body) = text.strip_prefix('/') else {
            return Err(problem("it must start with `/`".to_owned()));
        };
        let mut steps = Vec::new();
        let mut end = PatternEnd::Here;
        let mut names = BTreeSet::new();
        let mut segments = body.split('/').peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            if segment.is_empty() && last {
                // `/` alone is the root, which has no trailing slash.
                if !steps.is_empty() {
                    end = PatternEnd::Slash;
                }
                continue;
            }
            if segment.contains(['{', '}']) {
                let capture = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}'));
                let Some(capture) = capture.filter(|name| !name.contains(['{', '}'])) else {
                    return Err(problem(format!(
                        "`{segment}`: a capture is a whole segment, `{{name}}`; text beside it is \
                         not possible (a literal brace is `%7B` or `%7D`)"
                    )));
                };
                let rest = capture.strip_prefix('*');
                let name = rest.unwrap_or(capture);
                if !is_name(name) {
                    return Err(problem(format!(
                        "`{segment}`: a capture's name is a lower-case letter or `_`, then \
                         lower-case letters, digits or `_`"
                    )));
                }
                if !names.insert(name) {
                    return Err(problem(format!("the name `{name}` is used twice")));
                }
                if rest.is_none() {
                    steps.push(PatternSegment::Capture(name.into()));
                } else if last {
                    end = PatternEnd::Rest(name.into());
                } else {
                    return Err(problem(format!(
                        "`{segment}` takes all that is left, so it must be the last segment"
                    )));
                }
                continue;
            }
            steps.push(PatternSegment::Literal(literal(segment).map_err(problem)?));
        }
        Ok(Self {
            text: text.into(),
            steps: steps.into(),
            end,
        })
    }

    /// The pattern as written.
    #[must_use]
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
    #[must_use]
    pub fn segments(&self) -> usize {
        self.steps.len()
    }

    /// The decoded text of a literal segment, counted from 0; `None` for every other one.
    #[must_use]
    pub fn literal(&self, segment: usize) -> Option<&str> {
        match self.steps.get(segment)? {
            PatternSegment::Literal(text) => Some(text),
            PatternSegment::Capture(_) => None,
        }
    }

    /// The segment that `{name}` takes, counted from 0; `None` for `{*name}`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        let named = |step: &PatternSegment| matches!(step, PatternSegment::Capture(known) if **known == *name);
        self.steps.iter().position(named)
    }

    /// True if the pattern can match a path with this number of segments.
    #[must_use]
    pub fn takes(&self, segments: usize, trailing_slash: bool) -> bool {
        match self.end {
            PatternEnd::Here => segments == self.steps.len() && !trailing_slash,
            PatternEnd::Slash => segments == self.steps.len() && trailing_slash,
            PatternEnd::Rest(_) => segments >= self.steps.len(),
        }
    }

    /// The pattern in one spelling and without the names of its captures: `/orders/{}/{*}`. Two
    /// patterns of one shape match the same paths.
    #[must_use]
    pub fn shape(&self) -> String {
        let mut shape = String::new();
        for step in &*self.steps {
            shape.push('/');
            match step {
                PatternSegment::Literal(text) => shape.push_str(&percent_encoded(text)),
                PatternSegment::Capture(_) => shape.push_str("{}"),
            }
        }
        match self.end {
            PatternEnd::Rest(_) => shape.push_str("/{*}"),
            PatternEnd::Slash => shape.push('/'),
            PatternEnd::Here if shape.is_empty() => shape.push('/'),
            PatternEnd::Here => {}
        }
        shape
    }

    /// The name of the final `{*rest}`.
    pub(super) fn rest_name(&self) -> Option<&str> {
        match &self.end {
            PatternEnd::Rest(name) => Some(name),
            PatternEnd::Here | PatternEnd::Slash => None,
        }
    }

    /// The captures of a path that the router has matched with this pattern.
    fn captures(&self, segments: &[String]) -> Captures {
        let single = self
            .steps
            .iter()
            .zip(segments)
            .filter_map(|(step, segment)| match step {
                PatternSegment::Capture(name) => Some((Arc::clone(name), segment.clone())),
                PatternSegment::Literal(_) => None,
            });
        let rest = match &self.end {
            PatternEnd::Rest(_) => segments[self.steps.len()..].to_vec(),
            PatternEnd::Here | PatternEnd::Slash => Vec::new(),
        };
        Captures {
            single: single.collect(),
            rest,
        }
    }

    /// A path that this pattern matches, for messages.
    #[must_use]
    pub fn example(&self) -> String {
        let mut path = String::new();
        for step in &*self.steps {
            path.push('/');
            match step {
                PatternSegment::Literal(text) => path.push_str(text),
                PatternSegment::Capture(_) => path.push('x'),
            }
        }
        if path.is_empty() || self.end == PatternEnd::Slash {
            path.push('/');
        }
        path
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
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
    let mut escaped = String::from("/");
    for byte in segment.bytes() {
        if byte == b' ' || byte >= 0x80 {
            escaped.extend(["%".to_owned(), format!("{byte:02X}")]);
        } else {
            escaped.push(char::from(byte));
        }
    }
    match CheckedPath::parse(&escaped) {
        Ok(path) => Ok(path.segments().concat()),
        Err(error) => Err(format!("`{segment}`: {error}")),
    }
}

/// A pattern that cannot be parsed: which, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    pattern: String,
    message: String,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path `{}`: {}", self.pattern, self.message)
    }
}

impl std::error::Error for PatternError {}

/// Two routes that match the same paths equally well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConflict {
    /// Index of the first one.
    pub first: usize,
    /// Index of the one that is refused.
    pub second: usize,
    /// A path that both match.
    pub example: String,
}

impl fmt::Display for RouteConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "routes {} and {} match the same paths equally well, for example `{}`; remove one, or \
             make one more specific",
            self.first + 1,
            self.second + 1,
            self.example
        )
    }
}

impl std::error::Error for RouteConflict {}

/// Finds the route of a path.
#[derive(Clone, Debug)]
pub struct Router {
    patterns: Vec<Pattern>,
    root: RouterNode,
}

/// All patterns that share their first segments.
#[derive(Clone, Debug, Default)]
struct RouterNode {
    literals: HashMap<String, RouterNode>,
    capture: Option<Box<RouterNode>>,
    /// The pattern that ends here, ends in a slash here, or takes the rest from here.
    here: Option<usize>,
    slash: Option<usize>,
    rest: Option<usize>,
}

impl Router {
    /// Builds a router, or lists every pair of patterns that are equally specific.
    pub fn new(patterns: Vec<Pattern>) -> Result<Self, Vec<RouteConflict>> {
        let mut root = RouterNode::default();
        let mut conflicts = Vec::new();
        for (second, pattern) in patterns.iter().enumerate() {
            let mut node = &mut root;
            for step in &*pattern.steps {
                node = match step {
                    PatternSegment::Literal(text) => node.literals.entry(text.clone()).or_default(),
                    PatternSegment::Capture(_) => node.capture.get_or_insert_default(),
                };
            }
            let place = match pattern.end {
                PatternEnd::Here => &mut node.here,
                PatternEnd::Slash => &mut node.slash,
                PatternEnd::Rest(_) => &mut node.rest,
            };
            match *place {
                Some(first) => {
                    conflicts.push(RouteConflict {
                        first,
                        second,
                        example: pattern.example(),
                    });
                }
                None => *place = Some(second),
            }
        }
        if conflicts.is_empty() {
            Ok(Self { patterns, root })
        } else {
            Err(conflicts)
        }
    }

    /// The index of the most specific pattern that matches, and what it captured.
    #[must_use]
    pub fn find(&self, path: &CheckedPath) -> Option<(usize, Captures)> {
        let index = self.root.find(path.segments(), path.trailing_slash())?;
        Some((index, self.patterns[index].captures(path.segments())))
    }
}

impl RouterNode {
    fn find(&self, segments: &[String], slash: bool) -> Option<usize> {
        let Some((first, others)) = segments.split_first() else {
            return if slash { self.slash } else { self.here }.or(self.rest);
        };
        let literal = self
            .literals
            .get(first)
            .and_then(|node| node.find(others, slash));
        literal
            .or_else(|| {
                self.capture
                    .as_ref()
                    .and_then(|node| node.find(others, slash))
            })
            .or(self.rest)
    }
}

/// The captures of a path, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures {
    single: Vec<(Arc<str>, String)>,
    rest: Vec<String>,
}

impl Captures {
    /// The segment that `{name}` took. `None` for `{*rest}`: see [`Self::rest`].
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.single
            .iter()
            .find(|(known, _)| **known == *name)
            .map(|(_, text)| text.as_str())
    }

    /// The segments that `{*rest}` took. A list and not a text, since a segment may have a slash in
    /// it if the route allows that.
    #[must_use]
    pub fn rest(&self) -> &[String] {
        &self.rest
    }
}

#[cfg(test)]
mod tests;
