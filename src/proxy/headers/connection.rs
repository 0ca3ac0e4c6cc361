//! The members of `Connection`: its options, and the fields that it names.

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName};

use super::names::end_to_end;

/// The members of all `Connection` lines.
pub(super) fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

/// Whether `Connection` has this option.
#[must_use]
pub fn connection_has(headers: &HeaderMap, option: &str) -> bool {
    connection_options(headers).any(|known| known.eq_ignore_ascii_case(option.as_bytes()))
}

/// The fields that `Connection` names and may name.
pub(super) fn connection_named(headers: &HeaderMap) -> Vec<HeaderName> {
    connection_options(headers)
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .filter(|name| !end_to_end(name.as_str()))
        .collect()
}
