//! [`KeyTemplate`]: how a route names the resource that a request is about.
//!
//! A key must keep its parts apart: `(x:y, z)` and `(x, y:z)` are two resources, even if `:`
//! separates the parts in the key. So every character that the template uses as a separator is
//! percent-encoded inside the parts: all of its literal characters that are neither letters nor
//! digits, `%`, and `/` if a part is a list of path segments. A template in which two parts have no
//! separator between them is refused. Then a part, read from the left, ends at the first separator,
//! so no two lists of parts give the same key. Everything else stays as it is, so that keys are
//! readable: `order:42`, `tenant-7/a b`.
//!
//! Literal text may have letters, digits and ASCII signs, except `%`, braces and white space. So a
//! `%` in a key always begins an escape of an ASCII character, and the `X-Fencing-Resource` header
//! can carry any key in ASCII, and back.

use std::collections::BTreeSet;

use super::key::{ResourceKey, Source};
use super::normal::{Escaped, fold_case, host_name, integer, plain};
use super::path::CheckedPath;
use super::route::Pattern;

/// The template that makes a route's resource key from a request (`resource`).
///
/// `{host}` is in lower case, without its port: behind one proxy, neither distinguishes resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    text: String,
    pub(super) pattern: Pattern,
    /// The literal text in front of the first part.
    pub(super) head: String,
    pub(super) parts: Vec<KeyPart>,
    /// Which ASCII characters are escaped inside parts.
    pub(super) escaped: Escaped,
}

/// One part of a key, and the literal text up to the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPart {
    pub source: Source,
    filters: Vec<Filter>,
    /// The part is a list of path segments: `{path}`, `{*rest}`.
    pub list: bool,
    /// The first segment of the path that it takes, if it is of the path.
    at: usize,
    pub tail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Filter {
    Lower,
    Int,
    /// Changes nothing, and refuses a text that is not plain ([`plain`]). It checks the text as
    /// received, before all other filters.
    Plain,
}

/// The keys that a template makes of all paths with some literal segments. Parts are named by their
/// places in the path, so two equal shapes make the same key of every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyShape {
    /// The texts and parts of the keys, and the signs that are escaped in parts, if there are any.
    pub keys: (String, Option<u128>),
    /// The filters that refuse some texts, each with the origin of its part.
    pub narrow: BTreeSet<(String, &'static str)>,
}

impl KeyTemplate {
    /// Reads a template of the configuration, for a route with this pattern. The error says what to
    /// write instead.
    pub fn parse(template: &str, pattern: &Pattern) -> Result<Self, String> {
        Self::read(template, pattern).map_err(|problem| format!("resource `{template}`: {problem}"))
    }

    fn read(template: &str, pattern: &Pattern) -> Result<Self, String> {
        if template.is_empty() {
            return Err("it is empty; a resource needs a name".to_owned());
        }
        let mut pieces = template.split('{');
        let mut head = literal(pieces.next().unwrap_or_default())?.to_owned();
        let mut parts: Vec<KeyPart> = Vec::new();
        for piece in pieces {
            let (name, tail) = piece.split_once('}').ok_or("a `{` has no `}`; close it")?;
            let part = KeyPart::parse(name, literal(tail)?, pattern)?;
            if part.source == Source::WholePath {
                let before = parts.last_mut().map_or(&mut head, |part| &mut part.tail);
                before.push('/');
            }
            parts.push(part);
        }
        let tails = parts.iter().map(|part| &*part.tail);
        let literals: String = std::iter::once(&*head).chain(tails).collect();
        let escaped = Escaped::new(&literals, parts.iter().any(|part| part.list));
        for pair in parts.windows(2) {
            if !pair[0].tail.contains(|c| escaped.ends(c, pair[0].list)) {
                return Err(format!(
                    "nothing separates {} from {} in every key; put a sign such as `:` between \
                     them (not `/` behind a list of path segments)",
                    pair[0].source, pair[1].source,
                ));
            }
        }
        Ok(Self {
            text: template.to_owned(),
            pattern: pattern.clone(),
            head,
            parts,
            escaped,
        })
    }

    /// The template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True if the request's body is needed.
    pub fn uses_json(&self) -> bool {
        self.parts().any(|source| matches!(source, Source::Json(_)))
    }

    /// The paths of its JSON parts, from the left.
    pub fn json_paths(&self) -> Vec<&[String]> {
        let paths = self.parts().filter_map(|source| match source {
            Source::Json(path) => Some(&path[..]),
            _ => None,
        });
        paths.collect()
    }

    /// The parts, from the left.
    pub fn parts(&self) -> impl Iterator<Item = &Source> {
        self.parts.iter().map(|part| &part.source)
    }

    /// True if a path below another one has a key of its own: some part is a list of segments.
    pub fn grows(&self) -> bool {
        self.parts.iter().any(|part| part.list)
    }

    /// The literal texts before, between and behind the parts. Two templates with the same ones
    /// differ only in where the parts come from.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        let tails = self.parts.iter().map(|part| &*part.tail);
        std::iter::once(&*self.head).chain(tails)
    }

    /// The parts of the path that may have any text: those without `int` and `plain`.
    pub fn open_captures(&self) -> impl Iterator<Item = &Source> {
        let narrow = |source: &Source| {
            let parts = self.parts.iter().filter(|part| part.source == *source);
            let mut filters = parts.flat_map(|part| &part.filters);
            filters.any(|filter| *filter != Filter::Lower)
        };
        let of_path = self.parts.iter().filter(|part| part.is_of_path());
        let sources = of_path.map(|part| &part.source);
        sources.filter(move |source| !narrow(source))
    }

    /// The keys of paths that the template's pattern matches. `literal`: the text of a segment, if
    /// all these paths have the same one there. `None`: no request has a key.
    pub fn shape<'a>(&self, literal: impl Fn(usize) -> Option<&'a str>) -> Option<KeyShape> {
        let (mut keys, mut escaped) = (self.head.clone(), None);
        let mut narrow = BTreeSet::new();
        for part in &self.parts {
            let origin = match &part.source {
                Source::Path(_) if part.list => format!("*{}", part.at),
                Source::Path(_) => part.at.to_string(),
                source => source.name(),
            };
            let one_segment = part.is_of_path() && !part.list;
            if let Some(text) = literal(part.at).filter(|_| one_segment) {
                self.escaped.push(&mut keys, &part.normal(text).ok()?);
            } else {
                // No key has a control character, so no literal text looks like this.
                keys.extend(["\u{1}{", &origin]);
                for filter in &part.filters {
                    if *filter != Filter::Plain {
                        keys.extend(["|", filter.as_str()]);
                    }
                    if *filter != Filter::Lower {
                        narrow.insert((origin.clone(), filter.as_str()));
                    }
                }
                keys.push('}');
                escaped = Some(self.escaped.0);
            }
            keys += &part.tail;
        }
        Some(KeyShape {
            keys: (keys, escaped),
            narrow,
        })
    }

    /// Returns false if a path of so few segments leaves `{*rest}` empty, and so has no key.
    pub fn fits(&self, segments: usize) -> bool {
        let mut lists = self.parts.iter().filter(|part| part.list);
        lists.all(|part| part.source == Source::WholePath || part.at < segments)
    }

    /// Makes the key of a request with this path, which the template's pattern has matched.
    /// `lookup` is called once per part that is not in the path: host, headers, query, JSON. It
    /// returns `None` if the request lacks the part, and an error if the part is ambiguous (given
    /// twice, say).
    pub fn render(
        &self,
        path: &CheckedPath,
        lookup: &mut dyn FnMut(&Source) -> Result<Option<String>, String>,
    ) -> Result<ResourceKey, String> {
        let mut key = self.head.clone();
        for part in &self.parts {
            let source = &part.source;
            let fail = |why| format!("it needs {source}: {why}");
            let begin = key.len();
            if part.is_of_path() {
                let count = if part.list { usize::MAX } else { 1 };
                for text in path.segments_from(part.at).take(count) {
                    if key.len() > begin {
                        key.push('/');
                    }
                    let text = part.normal(text).map_err(fail)?;
                    self.escaped.push(&mut key, &text);
                }
            } else if let Some(text) = lookup(source).map_err(fail)?
                && !text.is_empty()
            {
                let text = part.normal(&text).map_err(fail)?;
                self.escaped.push(&mut key, &text);
            }
            if key.len() == begin && *source != Source::WholePath {
                return Err(format!(
                    "it needs {source}, and the request has none, or an empty one; send it"
                ));
            }
            key.push_str(&part.tail);
        }
        ResourceKey::new(key)
    }
}

/// Checks the literal text of a template: it must leave every key readable in one way, and fit in a
/// header.
fn literal(text: &str) -> Result<&str, String> {
    let wrong = |sign: &char| {
        matches!(sign, '%' | '}') || !(sign.is_alphanumeric() || sign.is_ascii_graphic())
    };
    text.chars().find(wrong).map_or(Ok(text), |sign| {
        Err(format!(
            "`{}` (U+{:04X}) may not be in it: letters, digits and ASCII signs only, without `%`, \
             which stands for escapes, and braces, which name a part",
            sign.escape_debug(),
            u32::from(sign)
        ))
    })
}

impl Filter {
    /// As written behind a `|`.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Int => "int",
            Self::Plain => "plain",
        }
    }
}

impl KeyPart {
    /// Parses the text between the braces. `tail`: the literal text behind them.
    fn parse(text: &str, tail: &str, pattern: &Pattern) -> Result<Self, String> {
        let mut words = text.split('|').map(str::trim);
        let source = Source::parse(words.next().unwrap_or_default(), pattern)?;
        let (list, at) = match &source {
            Source::WholePath => (true, 0),
            Source::Path(name) => (pattern.rest_name() == Some(name), pattern.position(name)),
            _ => (false, 0),
        };
        let mut filters = Vec::new();
        for word in words {
            filters.push(match word {
                "lower" => Filter::Lower,
                "plain" => Filter::Plain,
                "int" if !list => Filter::Int,
                _ => {
                    return Err(format!(
                        "`{{{text}}}`: there is no filter `{word}` here; the filters are `lower`, \
                         `plain`, and of a text that is one segment or none, `int`"
                    ));
                }
            });
        }
        Ok(Self {
            source,
            filters,
            list,
            at,
            tail: tail.to_owned(),
        })
    }

    fn is_of_path(&self) -> bool {
        matches!(self.source, Source::Path(_) | Source::WholePath)
    }

    /// What the filters remove of a text: nothing, its case, or every sign that a number can do
    /// without.
    pub fn loss(&self) -> Option<Filter> {
        let filters = self.filters.iter().copied();
        filters.filter(|filter| *filter != Filter::Plain).max()
    }

    /// The text in the one form it has in keys.
    fn normal(&self, text: &str) -> Result<String, String> {
        if self.filters.contains(&Filter::Plain) {
            plain(text)?;
        }
        let mut normal = match self.source {
            Source::Host => host_name(text)?,
            _ => text.to_owned(),
        };
        for filter in &self.filters {
            normal = match filter {
                Filter::Lower => fold_case(&normal),
                Filter::Int => integer(&normal)?,
                Filter::Plain => normal,
            };
        }
        Ok(normal)
    }
}

#[cfg(test)]
mod tests;
