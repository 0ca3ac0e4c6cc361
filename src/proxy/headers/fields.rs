//! Fields whose one value matters: a second line, or a second spelling of the name, is malformed.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::same_name;
use http::header::CONNECTION;

/// Why a field whose one value matters has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A second line.
    #[error("{0} is given more than once; send one line")]
    Repeated(HeaderName),
    /// A name that some servers take for the right one, alone or beside it.
    #[error("{twin} is the same as {name} for some servers; send {name} only")]
    Twin {
        /// As it should be written.
        name: HeaderName,
        /// As it was.
        twin: HeaderName,
    },
    /// `Connection` names the field, so that the next server would not see it.
    #[error("{0} is named in Connection, which would take it off the request; leave it out there")]
    Dropped(HeaderName),
    /// Neither visible ASCII nor UTF-8.
    #[error("{0} is not UTF-8; send it in ASCII or UTF-8")]
    NotText(HeaderName),
    /// It has no value of the kind that it must have.
    #[error("{name} is not {wanted}")]
    Malformed {
        name: HeaderName,
        /// The kind that it must be.
        wanted: &'static str,
    },
}

/// The members of a list field, over all its lines.
pub fn members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = headers.get_all(name).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// The only value of a field; `None` if it is absent.
pub fn single<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, FieldError> {
    if let Some(twin) = headers
        .keys()
        .find(|known| *known != name && same_name(known, name.as_str()))
    {
        return Err(FieldError::Twin {
            name: name.clone(),
            twin: twin.clone(),
        });
    }
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if lines.next().is_some() {
        return Err(FieldError::Repeated(name.clone()));
    }
    Ok(first)
}

/// The text of a field that a key is made of (`{header.x-tenant}`), or that names something: one
/// line, UTF-8, no white space around it, and sure to reach the upstream.
pub fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, FieldError> {
    let Some(value) = single(headers, name)? else {
        return Ok(None);
    };
    let mut options = members(headers, &CONNECTION);
    if options.any(|option| option.eq_ignore_ascii_case(name.as_str().as_bytes())) {
        return Err(FieldError::Dropped(name.clone()));
    }
    let text = std::str::from_utf8(value.as_bytes());
    text.map(|text| Some(text.trim_matches([' ', '\t'])))
        .map_err(|_| FieldError::NotText(name.clone()))
}

/// Refuses a second line of a field, in any spelling of its name.
pub fn at_most_one(headers: &HeaderMap, name: &str) -> Result<(), FieldError> {
    let mut lines = headers.iter().filter(|(known, _)| same_name(known, name));
    match (lines.next(), lines.next()) {
        (Some(_), Some((name, _))) => Err(FieldError::Repeated(name.clone())),
        _ => Ok(()),
    }
}
