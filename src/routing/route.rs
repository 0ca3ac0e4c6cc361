//! [`Pattern`] and [`Router`]: which route a checked path belongs to.
//!
//! Own matching, for three reasons: it compares *decoded* segments, so that an escape cannot walk
//! past a route; a trailing slash is part of a pattern and never optional by accident; and which of
//! two matching patterns wins is decided segment by segment from the left (literal, then
//! `{capture}`, then `{*rest}`), so that it depends neither on the order of the file nor on the length
//! of anything. What could still tie is two patterns that differ in the names of their captures
//! only, and those are refused.
//!
//! The routes make one tree with a node per distinct head of a pattern. A lookup visits a node at
//! most once, so its cost is bounded by the number of segments in all patterns, whatever is sent.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::escape::percent_encoded;
use super::normal::fold_case;
use super::path::CheckedPath;

/// A route's path: `/orders/{id}/{*rest}`.
///
/// - Literal segments are written as in a URL and compared decoded: `/a%20b` and `/a b` are one.
/// - `{name}` takes one whole segment.
/// - `{*name}`, the last one only, takes what is left: zero or more segments, with a slash behind
///   them or without.
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

/// What may come behind the last step.
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

    /// The pattern as it was written.
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

    /// Whether the pattern can match a path of so many segments, whatever they are.
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

    /// Whether this pattern also takes paths around those of `other`: a final `{*rest}` that begins where all of
    /// `other`'s paths begin, and `other` has none.
    #[must_use]
    pub fn surrounds(&self, other: &Self) -> bool {
        let fits = |(own, of_other): (&PatternSegment, &PatternSegment)| match (own, of_other) {
            (PatternSegment::Literal(own), PatternSegment::Literal(of_other)) => own == of_other,
            (PatternSegment::Capture(_), _) => true,
            (PatternSegment::Literal(_), PatternSegment::Capture(_)) => false,
        };
        self.rest_name().is_some()
            && other.rest_name().is_none()
            && self.steps.len() <= other.steps.len()
            && self.steps.iter().zip(other.steps.iter()).all(fits)
    }

    /// The name of the final `{*rest}`.
    pub(super) fn rest_name(&self) -> Option<&str> {
        match &self.end {
            PatternEnd::Rest(name) => Some(name),
            PatternEnd::Here | PatternEnd::Slash => None,
        }
    }

    /// The single captures of a path with these segments, with or without a trailing slash, if this
    /// pattern matches it. `folded`: the segments' case has been folded.
    pub(super) fn fits(&self, segments: &[String], folded: bool) -> Option<Vec<(String, String)>> {
        let length_fits = match self.end {
            PatternEnd::Rest(_) => segments.len() >= self.steps.len(),
            PatternEnd::Here | PatternEnd::Slash => segments.len() == self.steps.len(),
        };
        let mut captures = Vec::new();
        for (step, segment) in self.steps.iter().zip(segments) {
            match step {
                PatternSegment::Capture(name) => captures.push((name.to_string(), segment.clone())),
                PatternSegment::Literal(text) if text == segment => {}
                PatternSegment::Literal(text) if folded && fold_case(text) == *segment => {}
                PatternSegment::Literal(_) => return None,
            }
        }
        length_fits.then_some(captures)
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
    fn example(&self) -> String {
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

/// Decodes a literal segment of a pattern. People may write spaces and letters of any script as they
/// are; what the paths of requests may never have, a pattern may not have either, since it would
/// match nothing.
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

/// A pattern that cannot be read: which, and what to write instead.
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
    /// Index of the one that came first.
    pub first: usize,
    /// Index of the one that may not be there.
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
    /// Makes a router, or lists every pair of patterns that are equally specific.
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

/// What a pattern took out of a path, decoded.
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

    /// The segments that `{*rest}` took; a list and not a text, since a segment may have a slash in
    /// it where a route allows that.
    #[must_use]
    pub fn rest(&self) -> &[String] {
        &self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn router(patterns: &[&str]) -> Router {
        Router::new(patterns.iter().map(|text| pattern(text)).collect()).expect("no conflict")
    }

    /// The pattern that matches, and its captures as text.
    fn found<'a>(router: &Router, patterns: &[&'a str], path: &str) -> Option<(&'a str, String)> {
        let checked = CheckedPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (index, captures) = router.find(&checked)?;
        let single = captures
            .single
            .iter()
            .map(|(name, text)| format!("{name}={text}"));
        let rest = captures.rest.iter().map(|text| format!("*{text}"));
        Some((
            patterns[index],
            single.chain(rest).collect::<Vec<_>>().join(" "),
        ))
    }

    #[test]
    fn what_a_pattern_matches() {
        for (text, path, expected) in [
            ("/", "/", Some("")),
            ("/", "/a", None),
            ("/a", "/a", Some("")),
            ("/a", "/a/", None),
            ("/a", "/A", None),
            ("/a", "/%61", Some("")),
            ("/%61", "/a", Some("")),
            ("/a/", "/a/", Some("")),
            ("/a/", "/a", None),
            ("/a b", "/a%20b", Some("")),
            ("/a%20b", "/a%20b", Some("")),
            ("/é", "/%C3%A9", Some("")),
            ("/{id}", "/", None),
            ("/{id}", "/42", Some("id=42")),
            ("/{id}", "/42/", None),
            ("/{id}/", "/42/", Some("id=42")),
            ("/orders/{id}", "/orders/42", Some("id=42")),
            ("/orders/{id}", "/orders/%34%32", Some("id=42")),
            ("/orders/{id}", "/orders//42", Some("id=42")),
            ("/orders/{id}", "/orders", None),
            ("/orders/{id}", "/orders/", None),
            ("/orders/{id}", "/orders/42/", None),
            ("/orders/{id}", "/orders/42/lines", None),
            ("/orders/{id}", "/orders/a%2Fb", Some("id=a/b")),
            ("/orders/{id}/{*rest}", "/orders/42", Some("id=42")),
            ("/orders/{id}/{*rest}", "/orders/42/", Some("id=42")),
            (
                "/orders/{id}/{*rest}",
                "/orders/42/lines/7",
                Some("id=42 *lines *7"),
            ),
            (
                "/orders/{id}/{*rest}",
                "/orders/42/lines/7/",
                Some("id=42 *lines *7"),
            ),
            ("/orders/{id}/{*rest}", "/orders", None),
            ("/{*path}", "/", Some("")),
            ("/{*path}", "/a/b", Some("*a *b")),
            ("/{a}/x/{b_2}", "/1/x/2", Some("a=1 b_2=2")),
        ] {
            let router = router(&[text]);
            let captured = found(&router, &[text], path).map(|(_, captured)| captured);
            assert_eq!(captured.as_deref(), expected, "{text} {path}");
        }
    }

    #[test]
    fn the_most_specific_wins_in_any_order() {
        let mut patterns = [
            "/{*all}",
            "/{a}",
            "/{a}/{b}",
            "/{a}/b/c",
            "/x/{*rest}",
            "/x/{b}",
            "/x/y",
            "/x/y/",
            "/x/{b}/z",
            "/x/y/{*rest}",
            "/v/{b}/{c}",
            "/v/w/d",
        ];
        for _ in 0..patterns.len() {
            patterns.rotate_left(1);
            let router = router(&patterns);
            for (path, expected, captured) in [
                ("/", "/{*all}", ""),
                ("/q", "/{a}", "a=q"),
                ("/q/", "/{*all}", "*q"),
                ("/x", "/x/{*rest}", ""),
                ("/x/y", "/x/y", ""),
                ("/x/y/", "/x/y/", ""),
                ("/x/y/q", "/x/y/{*rest}", "*q"),
                ("/x/y/z", "/x/y/{*rest}", "*z"),
                ("/x/q/z", "/x/{b}/z", "b=q"),
                ("/x/q/z/", "/x/{*rest}", "*q *z"),
                ("/x/q", "/x/{b}", "b=q"),
                ("/x/b/c", "/x/{*rest}", "*b *c"),
                ("/q/b/c", "/{a}/b/c", "a=q"),
                ("/q/b/d", "/{*all}", "*q *b *d"),
                ("/q/b", "/{a}/{b}", "a=q b=b"),
                ("/v/w/d", "/v/w/d", ""),
                ("/v/w/e", "/v/{b}/{c}", "b=w c=e"),
                ("/v/b/c", "/v/{b}/{c}", "b=b c=c"),
                ("/v/w", "/{a}/{b}", "a=v b=w"),
            ] {
                let result = found(&router, &patterns, path);
                assert_eq!(result, Some((expected, captured.to_owned())), "{path}");
            }
        }
        assert_eq!(found(&router(&["/a"]), &["/a"], "/b"), None);
    }

    #[test]
    fn ties_are_refused_with_an_example() {
        for (first, second, example) in [
            ("/a", "/a", "/a"),
            ("/a", "/%61", "/a"),
            ("/", "/", "/"),
            ("/{a}", "/{b}", "/x"),
            ("/o/{a}/l/", "/o/{b}/l/", "/o/x/l/"),
            ("/o/{a}/{*r}", "/o/{b}/{*s}", "/o/x"),
            ("/{*r}", "/{*path}", "/"),
        ] {
            let both = vec![pattern("/other"), pattern(first), pattern(second)];
            let conflicts = Router::new(both).expect_err(first);
            let expected = RouteConflict {
                first: 1,
                second: 2,
                example: example.to_owned(),
            };
            assert_eq!(conflicts, [expected]);
            assert!(
                conflicts[0].to_string().contains("routes 2 and 3"),
                "{}",
                conflicts[0]
            );
        }
        let three = ["/{a}", "/{b}", "/{c}"].map(pattern).to_vec();
        assert_eq!(Router::new(three).expect_err("two ties").len(), 2);
    }

    #[test]
    fn patterns_that_cannot_be_read() {
        for (text, what) in [
            ("", "start with `/`"),
            ("a", "start with `/`"),
            ("{id}", "start with `/`"),
            ("/a//b", "empty segment"),
            ("//", "empty segment"),
            ("/a//", "empty segment"),
            ("/a/../b", "dot segment"),
            ("/%2e", "dot segment"),
            ("/%zz", "hexadecimal"),
            ("/%00", "control"),
            ("/a\tb", "control"),
            ("/a?b=c", "`?` has no meaning"),
            ("/a#b", "`#` has no meaning"),
            ("/a/*", "`{*rest}`"),
            ("/a*", "`{*rest}`"),
            ("/a-{id}", "whole segment"),
            ("/{id}.json", "whole segment"),
            ("/{a}{b}", "whole segment"),
            ("/{a", "whole segment"),
            ("/a}", "whole segment"),
            ("/{}", "name is"),
            ("/{*}", "name is"),
            ("/{Id}", "name is"),
            ("/{1a}", "name is"),
            ("/{a-b}", "name is"),
            ("/{a b}", "name is"),
            ("/{é}", "name is"),
            ("/{**a}", "name is"),
            ("/{a}/{a}", "used twice"),
            ("/{a}/{*a}", "used twice"),
            ("/{*a}/b", "last segment"),
            ("/{*a}/", "last segment"),
            ("/{*a}/{b}", "last segment"),
        ] {
            let error = Pattern::parse(text).expect_err(text).to_string();
            assert!(error.contains(what), "{error}");
            assert!(error.starts_with(&format!("path `{text}`: ")), "{error}");
        }
    }

    #[test]
    fn names() {
        let pattern = pattern("/a/{id}/{_b2}/{*rest}");
        assert_eq!(pattern.names().collect::<Vec<_>>(), ["id", "_b2", "rest"]);
        assert_eq!(pattern.as_str(), "/a/{id}/{_b2}/{*rest}");
    }

    #[test]
    fn shapes() {
        for (text, shape) in [
            ("/", "/"),
            ("/a b/%41", "/a%20b/A"),
            ("/orders/{id}", "/orders/{}"),
            ("/orders/{id}/", "/orders/{}/"),
            ("/orders/{id}/{*rest}", "/orders/{}/{*}"),
            ("/{*path}", "/{*}"),
            ("/%7B%7D", "/%7B%7D"),
        ] {
            assert_eq!(pattern(text).shape(), shape);
            assert_eq!(router(&[text]).patterns[0].shape(), shape);
        }
        let pattern = pattern("/orders/{id}/{*rest}");
        assert_eq!(
            (pattern.literal(0), pattern.literal(1)),
            (Some("orders"), None)
        );
        assert_eq!(
            (pattern.position("id"), pattern.position("rest")),
            (Some(1), None)
        );
        assert!(pattern.takes(2, true) && pattern.takes(9, false) && !pattern.takes(1, false));
    }

    /// At each of 40 segments there is a literal to try before a capture, and the last one fails.
    #[test]
    fn backtracking_ends() {
        let mut patterns: Vec<String> = Vec::new();
        for literals in 0..40 {
            let captures: Vec<_> = (literals..40).map(|i| format!("/{{c{i}}}")).collect();
            patterns.push(format!(
                "{}{}/end",
                "/a".repeat(literals),
                captures.concat()
            ));
        }
        let parsed = patterns.iter().map(|text| pattern(text)).collect();
        let router = Router::new(parsed).expect("no conflict");
        let miss = CheckedPath::parse(&("/a".repeat(40) + "/miss")).expect("a good path");
        assert_eq!(router.find(&miss), None);
        let hit = CheckedPath::parse(&("/a".repeat(40) + "/end")).expect("a good path");
        assert_eq!(router.find(&hit).expect("a match").0, 39);
    }
}
