//! Fields whose one value matters: a second line, or a second spelling of the name, is malformed.

use super::names::same_name;
use crate::http1::Fields;
use crate::http1::names::CONNECTION;

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

/// The members of a list field, over all its lines.
pub fn members<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let lines = fields.get_all(name);
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
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
