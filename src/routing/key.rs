//! [`ResourceKey`]: the name of a fenced resource, and the sources of its parts.
//!
//! One source is a parameter of the query ([`query_value`]), if all readers agree on it. Query
//! strings have no standard beyond RFC 3986, 3.4. This follows the form encoding of the WHATWG URL
//! standard, and refuses what other well-known readers take in another way: a name given twice
//! (first, last or both count), `;` as a separator (older readers split at it), `name[]` and the like
//! beside `name` (PHP folds `[`, `.` and spaces; Rack and qs read `[name]` as `name`).

use std::fmt;
use std::sync::Arc;

use super::normal::{decoded, fold_case};
use super::path::has_control;
use super::route::Pattern;
use crate::http1::head::is_token;

/// The name of a protected resource: 1 to 1,024 bytes of text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey(Arc<str>);

impl ResourceKey {
    /// The most bytes a key may have.
    pub const MAX_BYTES: usize = 1024;

    /// Checks a text that names a resource.
    pub fn new(text: impl AsRef<str>) -> Result<Self, String> {
        let text = text.as_ref();
        let bytes = text.len();
        if bytes == 0 || bytes > Self::MAX_BYTES {
            Err(format!(
                "it has {bytes} bytes; 1 to {} are allowed",
                Self::MAX_BYTES
            ))
        } else if has_control(text) {
            Err("it would have a control character; leave it out".to_owned())
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The source of a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// `{name}` or `{*rest}`: a capture of the route's path.
    Path(String),
    /// `{path}`: the whole path, without its trailing slash.
    WholePath,
    /// `{host}`.
    Host,
    /// `{header.x-tenant}`; lower case.
    Header(String),
    /// `{query.q}`.
    Query(String),
    /// `{json.order.id}`: the names of the members on the way down.
    Json(Vec<String>),
}

impl Source {
    /// Reads the name of a source, as in the template of a route with this pattern.
    pub(super) fn parse(name: &str, pattern: &Pattern) -> Result<Self, String> {
        match name.split_once('.') {
            Some((_, "")) => return Err(format!("`{{{name}}}` names nothing behind the dot")),
            Some(("header", header)) => return Self::header(header),
            Some(("query", parameter)) if parameter.starts_with(['[', ']']) => {
                return Err(format!(
                    "`{{{name}}}` begins with a bracket, which some servers take off and others \
                     for `_`; no key can hang on such a parameter"
                ));
            }
            Some(("query", parameter)) => return Ok(Self::Query(parameter.to_owned())),
            Some(("json", member)) => {
                let members: Vec<String> = member.split('.').map(str::to_owned).collect();
                if members.iter().any(String::is_empty) {
                    return Err(format!(
                        "`{{{name}}}` has an empty member name; write `{{json.a.b}}`"
                    ));
                }
                return Ok(Self::Json(members));
            }
            _ => {}
        }
        let capture = match name.strip_prefix('*') {
            Some(rest) if pattern.rest_name() == Some(rest) => rest,
            _ => name,
        };
        match (name, pattern.names().any(|known| known == capture)) {
            // `/{*path}` is the one pattern where both readings of `{path}` are the same thing.
            ("path" | "host", true) if pattern.as_str() != "/{*path}" => {
                return Err(format!(
                    "`{{{name}}}` is the request's whole {name}, and the route's path captures \
                     something else under that name; rename the capture"
                ));
            }
            ("path", _) => return Ok(Self::WholePath),
            ("host", _) => return Ok(Self::Host),
            (_, true) => return Ok(Self::Path(capture.to_owned())),
            (_, false) => {}
        }
        let names = pattern.names().flat_map(|known| ["`{", known, "}`, "]);
        let names: String = names.collect();
        Err(format!(
            "`{{{name}}}` is not known; behind the path `{pattern}` there are {names}`{{path}}`, \
             `{{host}}`, `{{header.…}}`, `{{query.…}}` and `{{json.…}}`"
        ))
    }

    /// The name between the braces.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Path(name) => name.clone(),
            Self::WholePath => "path".to_owned(),
            Self::Host => "host".to_owned(),
            Self::Header(name) => format!("header.{name}"),
            Self::Query(name) => format!("query.{name}"),
            Self::Json(path) => format!("json.{}", path.join(".")),
        }
    }

    fn header(name: &str) -> Result<Self, String> {
        let name = name.to_ascii_lowercase();
        if !is_token(name.as_bytes()) {
            return Err(format!("`{{header.{name}}}`: no header can have this name"));
        }
        match name.replace('_', "-").as_str() {
            "host" => Err("`{header.host}`: write `{host}`".to_owned()),
            "x-fencing-token" | "x-fencing-operation" => Err(format!(
                "`{{header.{name}}}` would give each holder a resource of its own, and fence \
                 nothing; name what the request is about"
            )),
            _ => Ok(Self::Header(name)),
        }
    }
}

/// As written in a template.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{{{}}}`", self.name())
    }
}

/// The value of the parameter `name` of a query, decoded; `None` if it is not there, `Some("")` if it has no
/// value. The error says what makes it ambiguous.
pub fn query_value(raw_query: &str, name: &str) -> Result<Option<String>, String> {
    let name_of = |piece: &str| {
        let raw_name = piece.split('=').next().unwrap_or(piece);
        decode(raw_name).map_err(|problem| format!("a parameter's name {problem} in the query"))
    };
    let mut found = None;
    for piece in raw_query.split('&') {
        let this = name_of(piece)?;
        if this != name && same_name(&this, name) {
            return Err(format!(
                "the parameter `{}` is the same as `{name}` for some servers; send `{name}` only",
                this.escape_debug()
            ));
        }
        if piece.contains(';') {
            // A reader that splits there finds these names. `id;x=1` has `id` with no value.
            let mut hidden = this == name;
            for inner in piece.split(';') {
                hidden |= same_name(&name_of(inner)?, name);
            }
            if hidden {
                return Err(format!(
                    "a `;` stands before or in the parameter `{name}`, and some servers split \
                     there; separate parameters by `&`, and escape a literal one as `%3B`"
                ));
            }
        }
        if this == name {
            let raw_value = piece.split_once('=').map_or("", |(_, value)| value);
            let value = decode(raw_value)
                .map_err(|problem| format!("the parameter `{name}` {problem} in its value"))?;
            if found.replace(value).is_some() {
                return Err(format!(
                    "the parameter `{name}` is given twice; send it once"
                ));
            }
        }
    }
    Ok(found)
}

/// True if some reader takes both names for one. Case is ignored. PHP drops leading spaces, writes
/// `_` for dots, spaces and an unclosed `[`, and cuts at a NUL or a `[`. Rack (before 3) and qs
/// also drop brackets in front.
fn same_name(one: &str, other: &str) -> bool {
    let known = known_as(other);
    known_as(one).iter().any(|name| known.contains(name))
}

/// The names by which readers know this one, in lower case.
fn known_as(name: &str) -> [String; 2] {
    let is_bracket = ['[', ']'];
    let name = name.split('\0').next().unwrap_or(name);
    let name = fold_case(name.trim_start_matches(' ')).replace(['.', ' '], "_");
    let inner = name.trim_start_matches(is_bracket);
    let cut = inner.split(is_bracket).next().unwrap_or(inner);
    [cut.to_owned(), name.replace(is_bracket, "_")]
}

/// `+` is a space, `%XX` a byte of UTF-8.
fn decode(raw: &str) -> Result<String, &'static str> {
    decoded(raw, b' ').ok_or(
        "has a `%` without two hexadecimal digits behind it, or escapes that don't decode to UTF-8,",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for good in [
            "a",
            "order:42",
            "é",
            "a b",
            "/",
            &"x".repeat(1024),
            &"é".repeat(512),
        ] {
            assert_eq!(ResourceKey::new(good).unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", "0 bytes"),
            (&"x".repeat(1025), "1025 bytes"),
            (&("é".repeat(512) + "x"), "1025 bytes"),
            ("\0", "control"),
            ("a\0b", "control"),
            ("a\n", "control"),
            ("\ta", "control"),
            ("a\u{7f}", "control"),
            ("a\u{85}", "control"),
        ] {
            let error = ResourceKey::new(bad).expect_err(bad);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn sources_are_shown_as_they_are_written() {
        for (source, expected) in [
            (Source::Path("id".into()), "`{id}`"),
            (Source::WholePath, "`{path}`"),
            (Source::Host, "`{host}`"),
            (Source::Header("x-tenant".into()), "`{header.x-tenant}`"),
            (Source::Query("q".into()), "`{query.q}`"),
            (
                Source::Json(vec!["order".into(), "id".into()]),
                "`{json.order.id}`",
            ),
        ] {
            assert_eq!(source.to_string(), expected);
        }
    }

    #[test]
    fn parameters_that_all_readers_agree_on() {
        for (query, expected) in [
            ("", None),
            ("q=7", Some("7")),
            ("a=1&q=7&b=2", Some("7")),
            ("q", Some("")),
            ("q=", Some("")),
            ("&&q=7&", Some("7")),
            ("q=a=b", Some("a=b")),
            ("%71=7", Some("7")),
            ("q=%37", Some("7")),
            ("q=a+b", Some("a b")),
            ("q=a%2Bb", Some("a+b")),
            ("q=a%20b", Some("a b")),
            ("q=%C3%A9", Some("é")),
            ("q=é", Some("é")),
            ("q=a%26b", Some("a&b")),
            ("q=a%3Bb", Some("a;b")),
            ("q=%2541", Some("%41")),
            ("qq=7", None),
            ("x=%zz&q=7", Some("7")),
            ("x=a;b&q=7", Some("7")),
            ("x;y=1&q=7", Some("7")),
            ("x[]=1&x[]=2&q=7", Some("7")),
        ] {
            assert_eq!(
                query_value(query, "q"),
                Ok(expected.map(str::to_owned)),
                "{query}"
            );
        }
    }

    #[test]
    fn parameters_that_readers_read_in_two_ways_are_refused() {
        for query in [
            "q=7&q=8",
            "q=7&q=7",
            "q=7&%71=8",
            "q&q",
            "q=7&a=1&q=8",
            "q=7&q[]=8",
            "q=7&Q=8",
            "Q=7",
            "q[]=8",
            "q[a]=1",
            "[q]=8",
            "q=7&[q]=8",
            "q]=8",
            "+q=7",
            "q=7;a=1",
            "q=7;q=8",
            "a=1;q=7",
            "a;q",
            "a=1;%71=7",
            "a=1;q[]=7",
            "q;a=1",
            "q=%",
            "q=%4",
            "q=%zz",
            "q=%80",
            "q=%C0%AF",
            "%zz=1&q=7",
            "%80=1&q=7",
            "q=a;b",
            "q%00x=1",
        ] {
            let error = query_value(query, "q").expect_err(query);
            assert!(error.len() > 20, "{error}");
        }
        assert!(query_value("a.b=1&a_b=2", "a.b").is_err());
        assert!(query_value("a[=1&a_=2", "a_").is_err());
        assert!(query_value("a;b=1", "a;b").is_err());
        assert_eq!(query_value("a%3Bb=1", "a;b"), Ok(Some("1".to_owned())));
    }
}
