//! The members of `Connection`: its options, and the fields that it names.

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName};

use super::fields::members;
use super::names::end_to_end;

/// Says if `Connection` has this option.
#[must_use]
pub fn connection_has(headers: &HeaderMap, option: &str) -> bool {
    members(headers, &CONNECTION).any(|known| known.eq_ignore_ascii_case(option.as_bytes()))
}

/// The fields that `Connection` names and may name.
pub(super) fn connection_named(headers: &HeaderMap) -> Vec<HeaderName> {
    members(headers, &CONNECTION)
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .filter(|name| !end_to_end(name.as_str()))
        .collect()
}
