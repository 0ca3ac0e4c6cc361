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

pub(super) mod part;
mod skeleton;

use std::fmt;
use std::sync::Arc;

use self::part::{Filter, KeyPart};
pub use self::skeleton::{Origin, Skeleton};
use super::escape::Escaped;
use super::key::{KeyError, ResourceKey, Source};
use super::path::{CheckedPath, has_control};
use super::route::{Captures, Pattern};

/// The template that makes a route's resource key from a request (`resource`).
///
/// `{host}` is in lower case, without its port: behind one proxy, neither distinguishes resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    text: Arc<str>,
    pub(super) pattern: Pattern,
    /// The literal text in front of the first part.
    head: String,
    parts: Vec<KeyPart>,
    /// Which ASCII characters are escaped inside parts.
    escaped: Escaped,
}

impl KeyTemplate {
    /// Reads a template of the configuration, for a route with this pattern.
    pub fn parse(template: &str, pattern: &Pattern) -> Result<Self, TemplateError> {
        let problem = |message| TemplateError {
            template: template.to_owned(),
            message,
        };
        if template.is_empty() {
            return Err(problem("it is empty; a resource needs a name".to_owned()));
        }
        let mut head = String::new();
        let mut parts: Vec<KeyPart> = Vec::new();
        let mut left = template;
        while let Some(sign) = left.chars().next() {
            if sign == '{' {
                let Some(end) = left.find('}') else {
                    return Err(problem("a `{` has no `}`; close it".to_owned()));
                };
                parts.push(KeyPart::parse(&left[1..end], pattern).map_err(problem)?);
                left = &left[end + 1..];
            } else {
                check_literal(sign).map_err(problem)?;
                parts
                    .last_mut()
                    .map_or(&mut head, |part| &mut part.tail)
                    .push(sign);
                left = &left[sign.len_utf8()..];
            }
        }
        let lists = parts.iter().any(|part| part.list);
        let literals = parts
            .iter()
            .fold(head.clone(), |text, part| text + &part.tail);
        let escaped = Escaped::new(&literals, lists);
        for pair in parts.windows(2) {
            let between = boundary(&pair[0], &pair[1]);
            if !between.contains(|c| escaped.ends(c, pair[0].list)) {
                return Err(problem(format!(
                    "nothing separates {} from {} in every key; put a sign such as `:` between \
                     them{}",
                    pair[0].source,
                    pair[1].source,
                    if pair[0].list {
                        " (not `/`, which the first one has inside)"
                    } else {
                        ""
                    },
                )));
            }
        }
        let key = Self {
            text: template.into(),
            pattern: pattern.clone(),
            head,
            parts,
            escaped,
        };
        let fixed = key.head.len()
            + key
                .parts
                .iter()
                .map(|part| part.tail.len() + 1)
                .sum::<usize>();
        if fixed > ResourceKey::MAX_BYTES {
            return Err(problem(format!(
                "its keys would be longer than {} bytes; shorten it",
                ResourceKey::MAX_BYTES
            )));
        }
        Ok(key)
    }

    /// The template as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True if the request's body is needed.
    #[must_use]
    pub fn uses_json(&self) -> bool {
        self.parts().any(|source| matches!(source, Source::Json(_)))
    }

    /// The paths of its JSON parts, from the left.
    #[must_use]
    pub fn json_paths(&self) -> Vec<Vec<String>> {
        let paths = self.parts().filter_map(|source| match source {
            Source::Json(path) => Some(path.clone()),
            _ => None,
        });
        paths.collect()
    }

    /// The parts, from the left.
    pub fn parts(&self) -> impl Iterator<Item = &Source> {
        self.parts.iter().map(|part| &part.source)
    }

    /// True if a path below another one has a key of its own: some part is a list of segments.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.parts.iter().any(|part| part.list)
    }

    /// The parts of the path that may have any text: those without `int` and `plain`.
    pub fn open_captures(&self) -> impl Iterator<Item = &Source> {
        let narrow = |source: &Source| {
            let parts = self.parts.iter().filter(|part| part.source == *source);
            let mut filters = parts.flat_map(|part| &part.filters);
            filters.any(|filter| *filter != Filter::Lower)
        };
        let of_path = |source: &&Source| matches!(source, Source::Path(_) | Source::WholePath);
        self.parts()
            .filter(of_path)
            .filter(move |source| !narrow(source))
    }

    /// The template with captures by their place in the path: `order:{1}`, counted from 0, and
    /// `{*}` for the rest. On routes of one shape, equal shapes make equal keys.
    #[must_use]
    pub fn shape(&self) -> String {
        let mut shape = self.head.clone();
        for part in &self.parts {
            let source = match &part.source {
                Source::Path(name) => match self.pattern.position(name) {
                    Some(segment) => segment.to_string(),
                    None => "*".to_owned(),
                },
                source => {
                    let shown = source.to_string();
                    let inside = shown
                        .strip_prefix("`{")
                        .and_then(|inside| inside.strip_suffix("}`"));
                    inside.unwrap_or(&shown).to_owned()
                }
            };
            let filters = part
                .filters
                .iter()
                .flat_map(|filter| ["|", filter.as_str()]);
            let filters: String = filters.collect();
            shape.extend(["{", &source, &filters, "}", &part.tail]);
        }
        shape
    }

    /// Makes the key. `lookup` is called once per part that is not in the path: host, headers,
    /// query, JSON. It returns `None` if the request lacks the part, and an error if the part is
    /// ambiguous (given twice, say).
    pub fn render(
        &self,
        captures: &Captures,
        path: &CheckedPath,
        lookup: &mut dyn FnMut(&Source) -> Result<Option<String>, String>,
    ) -> Result<ResourceKey, KeyError> {
        let mut key = self.head.clone();
        for part in &self.parts {
            let source = &part.source;
            let fail = |reason| KeyError::Part {
                source: source.clone(),
                reason,
            };
            let looked_up;
            let texts: &[String] = match source {
                Source::WholePath => path.segments(),
                Source::Path(_) if part.list => captures.rest(),
                Source::Path(name) => {
                    looked_up = [captures.get(name).unwrap_or_default().to_owned()];
                    &looked_up
                }
                _ => {
                    let value = lookup(source).map_err(fail)?;
                    let value = value.ok_or_else(|| KeyError::Absent(source.clone()))?;
                    looked_up = [value];
                    &looked_up
                }
            };
            let mut first = true;
            if *source == Source::WholePath {
                key.push('/');
            } else if texts.iter().all(String::is_empty) {
                return Err(KeyError::Empty(source.clone()));
            }
            for text in texts {
                if has_control(text) {
                    return Err(KeyError::Control);
                }
                if !first {
                    key.push('/');
                }
                first = false;
                self.escaped
                    .push(&mut key, &part.normal(text).map_err(fail)?);
            }
            key.push_str(&part.tail);
        }
        ResourceKey::new(key)
    }

    /// The parts of a key, from the left, with one text each, or a list of path segments. `None` if
    /// the key does not have this template's literals, or is not escaped as a key is.
    pub(super) fn texts_of(&self, key: &str) -> Option<Vec<(&KeyPart, Vec<String>)>> {
        let mut left = key.strip_prefix(&*self.head)?;
        let mut parts = Vec::new();
        for (i, part) in self.parts.iter().enumerate() {
            if part.source == Source::WholePath {
                left = left.strip_prefix('/')?;
            }
            let end = match self.parts.get(i + 1) {
                None => left.len().checked_sub(part.tail.len())?,
                Some(next) => {
                    let ends = |c| self.escaped.ends(c, part.list);
                    left.find(ends)?
                        .checked_sub(boundary(part, next).find(ends)?)?
                }
            };
            let text = left.get(..end)?;
            left = left[end..].strip_prefix(&*part.tail)?;
            let texts = match (text, &part.source) {
                ("", Source::WholePath) => Vec::new(),
                _ if part.list => text.split('/').collect(),
                _ => vec![text],
            };
            let texts: Option<_> = texts.iter().map(|text| self.escaped.undo(text)).collect();
            parts.push((part, texts?));
        }
        left.is_empty().then_some(parts)
    }

    /// The literal texts before, between and behind the parts. Two templates with the same ones
    /// differ only in where the parts come from.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        let tails = self.parts.iter().map(|part| &*part.tail);
        std::iter::once(&*self.head).chain(tails)
    }
}

/// The literal text between two parts; `{path}` brings a slash of its own.
fn boundary(part: &KeyPart, next: &KeyPart) -> String {
    let slash = if next.source == Source::WholePath {
        "/"
    } else {
        ""
    };
    format!("{}{slash}", part.tail)
}

/// Literal text must leave every key readable in one way, and fit in a header.
fn check_literal(sign: char) -> Result<(), String> {
    match sign {
        '}' => Err("a `}` has no `{` before it".to_owned()),
        '%' => Err("a `%` stands for escapes in keys; use another sign".to_owned()),
        _ if sign.is_alphanumeric() || sign.is_ascii_graphic() => Ok(()),
        _ => Err(format!(
            "`{}` (U+{:04X}) may not be in it: letters, digits and ASCII signs only",
            sign.escape_debug(),
            u32::from(sign)
        )),
    }
}

/// A template that cannot be used: the error, its place, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    template: String,
    message: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource `{}`: {}", self.template, self.message)
    }
}

impl std::error::Error for TemplateError {}

#[cfg(test)]
mod tests;
