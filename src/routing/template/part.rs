//! [`KeyPart`]: one part of a template, between braces, and the texts that it can have.

use crate::routing::key::Source;
use crate::routing::normal::{fold_case, host_name, integer, plain};
use crate::routing::route::Pattern;

/// One part of a key, and the literal text up to the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::routing) struct KeyPart {
    pub(in crate::routing) source: Source,
    pub(super) filters: Vec<Filter>,
    /// The part is a list of path segments: `{path}`, `{*rest}`.
    pub(super) list: bool,
    pub(super) tail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Filter {
    Lower,
    Int,
    /// Changes nothing, and refuses a text that is not plain ([`plain`]). It checks the text as
    /// received, before all other filters.
    Plain,
}

impl Filter {
    /// As written behind a `|`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Int => "int",
            Self::Plain => "plain",
        }
    }
}

impl KeyPart {
    /// Parses the text between the braces.
    pub(super) fn parse(text: &str, pattern: &Pattern) -> Result<Self, String> {
        let mut words = text.split('|').map(str::trim);
        let name = words.next().unwrap_or_default();
        let source = source(name, pattern)?;
        let list = match &source {
            Source::WholePath => true,
            Source::Path(name) => pattern.rest_name() == Some(name),
            _ => false,
        };
        let mut filters = Vec::new();
        for word in words {
            filters.push(match word {
                "lower" => Filter::Lower,
                "int" if list => {
                    return Err(format!(
                        "`{{{text}}}`: several path segments are not a number; \
                        drop `int`, or capture the segment by a name"
                    ));
                }
                "int" => Filter::Int,
                "plain" => {
                    can_be_plain(text, &source, pattern)?;
                    Filter::Plain
                }
                _ => {
                    return Err(format!(
                        "`{{{text}}}`: there is no filter `{word}`; the filters are `lower`, `int` \
                         and `plain`"
                    ));
                }
            });
        }
        Ok(Self {
            source,
            filters,
            list,
            tail: String::new(),
        })
    }

    /// The part of the text as received that its filters remove: nothing, its case, or every sign
    /// that a number can do without.
    pub(in crate::routing) fn losses(&self) -> usize {
        let has = |filter| self.filters.contains(&filter);
        usize::from(has(Filter::Lower)) + 2 * usize::from(has(Filter::Int))
    }

    /// Another text that has this one as its normal form, where the filters leave several.
    pub(in crate::routing) fn respelled(&self, text: &str) -> String {
        if self.filters.contains(&Filter::Int) {
            match text.strip_prefix('-') {
                Some(digits) => format!("-000{digits}"),
                None => format!("000{text}"),
            }
        } else if self.filters.contains(&Filter::Lower) {
            text.to_ascii_uppercase()
        } else {
            text.to_owned()
        }
    }

    /// The text in the one form it has in keys.
    pub(super) fn normal(&self, text: &str) -> Result<String, String> {
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

/// Refuses `{…|plain}` where no request would have a key.
fn can_be_plain(text: &str, source: &Source, pattern: &Pattern) -> Result<(), String> {
    match source {
        Source::Host => Err(format!(
            "`{{{text}}}`: names of hosts have dots, which `plain` refuses; drop it"
        )),
        Source::WholePath => {
            let mut literals = (0..pattern.segments()).filter_map(|at| pattern.literal(at));
            match literals.find(|literal| plain(literal).is_err()) {
                Some(literal) => Err(format!(
                    "`{{{text}}}`: `{literal}` of the path `{pattern}` is not plain, so no request \
                     would have a key; name the captures instead, such as `{{id|plain}}`"
                )),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Reads the name of a source.
fn source(name: &str, pattern: &Pattern) -> Result<Source, String> {
    let captured = |name: &str| pattern.names().any(|known| known == name);
    let not_empty = |rest: &str| {
        if rest.is_empty() {
            Err(format!("`{{{name}}}` names nothing behind the dot"))
        } else {
            Ok(())
        }
    };
    if name == "path" || name == "host" {
        // `/{*path}` is the one pattern where both readings of `{path}` are the same thing.
        if captured(name) && pattern.as_str() != "/{*path}" {
            return Err(format!(
                "`{{{name}}}` is the request's whole {name}, and the route's path captures something \
                 else under that name; rename the capture"
            ));
        }
        return Ok(if name == "path" {
            Source::WholePath
        } else {
            Source::Host
        });
    }
    if let Some(header) = name.strip_prefix("header.") {
        not_empty(header)?;
        return header_source(header);
    }
    if let Some(parameter) = name.strip_prefix("query.") {
        not_empty(parameter)?;
        if parameter.starts_with(['[', ']']) {
            return Err(format!(
                "`{{{name}}}` begins with a bracket, which some servers take off and others for `_`; no key can \
                 hang on such a parameter"
            ));
        }
        return Ok(Source::Query(parameter.to_owned()));
    }
    if let Some(member) = name.strip_prefix("json.") {
        not_empty(member)?;
        let members: Vec<String> = member.split('.').map(str::to_owned).collect();
        if members.iter().any(String::is_empty) {
            return Err(format!(
                "`{{{name}}}` has an empty member name; write `{{json.a.b}}`"
            ));
        }
        return Ok(Source::Json(members));
    }
    let capture = match name.strip_prefix('*') {
        Some(rest) if pattern.rest_name() != Some(rest) && captured(rest) => {
            return Err(format!(
                "`{{{name}}}`: `{rest}` is one segment; write `{{{rest}}}`"
            ));
        }
        Some(rest) => rest,
        None => name,
    };
    if captured(capture) {
        return Ok(Source::Path(capture.to_owned()));
    }
    let names: Vec<String> = pattern
        .names()
        .map(|known| format!("`{{{known}}}`"))
        .collect();
    Err(format!(
        "`{{{name}}}` is not known; the path `{pattern}` captures {}; besides there are `{{path}}`, \
         `{{host}}`, `{{header.…}}`, `{{query.…}}` and `{{json.…}}`",
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        }
    ))
}

fn header_source(name: &str) -> Result<Source, String> {
    let name = name.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`~".contains(&byte);
    if !name.bytes().all(is_token) {
        return Err(format!("`{{header.{name}}}`: no header can have this name"));
    }
    match name.replace('_', "-").as_str() {
        "host" => Err("`{header.host}`: write `{host}`".to_owned()),
        "x-fencing-token" | "x-fencing-operation" => Err(format!(
            "`{{header.{name}}}` would give each holder a resource of its own, and fence nothing; \
             name what the request is about"
        )),
        _ => Ok(Source::Header(name)),
    }
}
