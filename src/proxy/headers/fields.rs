//! The values of fields. Where one value matters, a second line or a second spelling of the name is
//! malformed.

use super::names::{end_to_end, is_hop_by_hop, same_name};
use crate::http1::head::is_token;
use crate::http1::names::CONNECTION;
use crate::http1::{Fields, members};

/// Why a field whose one value matters has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A second line.
    #[error("{0} is given more than once; send one line")]
    Repeated(FieldName),
    /// A name that some servers take for the right one, alone or beside it.
    #[error("{twin} is the same as {name} for some servers; send {name} only")]
    Twin {
        /// As it should be written.
        name: FieldName,
        /// As it was.
        twin: FieldName,
    },
    /// `Connection` names the field, so that the next server would not see it.
    #[error("{0} is named in Connection, which would take it off the request; leave it out there")]
    Dropped(FieldName),
    /// Neither visible ASCII nor UTF-8.
    #[error("{0} is not UTF-8; send it in ASCII or UTF-8")]
    NotText(FieldName),
    /// It has no value of the kind that it must have.
    #[error("{name} is not {wanted}")]
    Malformed {
        name: FieldName,
        /// The kind that it must be.
        wanted: &'static str,
    },
}

/// The name of a field in a message about it, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldName(String);

impl std::fmt::Display for FieldName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for FieldName {
    fn from(name: &T) -> Self {
        Self(String::from_utf8_lossy(name.as_ref()).to_ascii_lowercase())
    }
}

/// The only value of a field; `None` if it is absent.
pub fn single<'a>(fields: &'a Fields, name: &str) -> Result<Option<&'a [u8]>, FieldError> {
    let mut found = None;
    for (known, value) in fields.iter().filter(|(known, _)| same_name(known, name)) {
        if !known.eq_ignore_ascii_case(name.as_bytes()) {
            return Err(FieldError::Twin {
                name: name.into(),
                twin: known.into(),
            });
        }
        if found.replace(value).is_some() {
            return Err(FieldError::Repeated(name.into()));
        }
    }
    Ok(found)
}

/// The text of a field that a key is made of (`{header.x-tenant}`), or that names something: one
/// line, UTF-8, no white space around it, and sure to reach the upstream.
pub fn text<'a>(fields: &'a Fields, name: &str) -> Result<Option<&'a str>, FieldError> {
    let Some(value) = single(fields, name)? else {
        return Ok(None);
    };
    let mut options = members(fields, CONNECTION);
    if options.any(|option| option.eq_ignore_ascii_case(name.as_bytes())) {
        return Err(FieldError::Dropped(name.into()));
    }
    let text = std::str::from_utf8(value);
    text.map(|text| Some(text.trim_matches([' ', '\t'])))
        .map_err(|_| FieldError::NotText(name.into()))
}

/// Refuses a second line of a field, in any spelling of its name.
pub fn at_most_one(fields: &Fields, name: &str) -> Result<(), FieldError> {
    let mut lines = fields.iter().filter(|(known, _)| same_name(known, name));
    match (lines.next(), lines.next()) {
        (Some(_), Some((name, _))) => Err(FieldError::Repeated(name.into())),
        _ => Ok(()),
    }
}

/// Sets a field, in place of all that have its name in any spelling.
pub(super) fn set(fields: &mut Fields, name: &str, value: impl AsRef<[u8]>) {
    fields.remove_where(|known| same_name(known, name));
    fields.append(name, value);
}

/// The fields that `Connection` names and may name, in lower case. Without those that are of one
/// connection anyway, as in nearly every message that has the field.
pub(super) fn connection_named(fields: &Fields) -> Vec<String> {
    let named = members(fields, CONNECTION)
        .filter(|option| !is_hop_by_hop(option))
        .filter_map(|option| std::str::from_utf8(option).ok())
        .map(str::to_ascii_lowercase);
    named.filter(|name| !end_to_end(name)).collect()
}

/// One pair `name=value`, the value a token or a quoted string (RFC 9110, 5.6.6), and what follows it. `None`: the text does not begin with one.
///
/// A value without quotes may have more signs than a token has: ports are often written so
/// (`host=app.test:8080`). It ends at white space, `;`, `,` or a quote.
pub(super) fn pair(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.split_once('=')?;
    if !is_token(name.as_bytes()) {
        return None;
    }
    if let Some(quoted) = rest.strip_prefix('"') {
        let (value, rest) = unquoted(quoted)?;
        return Some((name, value, rest));
    }
    let end = rest.find([' ', '\t', ';', ',', '"']).unwrap_or(rest.len());
    let (value, rest) = rest.split_at(end);
    (!value.is_empty()).then(|| (name, value.to_owned(), rest))
}

/// The text of a quoted string behind its first quote, and what follows the last one.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(signs.next()?.1),
            _ => value.push(sign),
        }
    }
    None
}

#[cfg(test)]
#[test]
fn pairs_are_read_to_their_end() {
    let read = |text| {
        let read = pair(text);
        read.map(|(name, value, rest)| (name.to_owned(), value, rest.to_owned()))
    };
    for (text, name, value, rest) in [
        ("a=b", "a", "b", ""),
        ("a=b;c=d", "a", "b", ";c=d"),
        ("host=x:80, for=y", "host", "x:80", ", for=y"),
        (r#"a="b;c,d" x"#, "a", "b;c,d", " x"),
        (r#"a="b\"\\c""#, "a", r#"b"\c"#, ""),
        (r#"a="""#, "a", "", ""),
        (r#"a=b"c""#, "a", "b", r#""c""#),
    ] {
        let expected = Some((name.to_owned(), value.to_owned(), rest.to_owned()));
        assert_eq!(read(text), expected, "{text}");
    }
    for text in [
        "", "a", "=b", "a=", "a =b", "a= b", r#"a="b"#, r#"a="b\"#, "a;b=c",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
}
