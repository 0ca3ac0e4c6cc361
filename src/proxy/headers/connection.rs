//! The members of `Connection`: its options, and the fields that it names.

use super::fields::members;
use super::names::{end_to_end, is_hop_by_hop};
use crate::http1::Fields;
use crate::http1::names::CONNECTION;

/// Says if `Connection` has this option.
#[must_use]
pub fn connection_has(fields: &Fields, option: &str) -> bool {
    members(fields, CONNECTION).any(|known| known.eq_ignore_ascii_case(option.as_bytes()))
}

/// The fields that `Connection` names and may name, in lower case. Without those that are of one
/// connection anyway, as in nearly every message that has the field.
pub(super) fn connection_named(fields: &Fields) -> Vec<String> {
    let named = members(fields, CONNECTION)
        .filter(|option| !is_hop_by_hop(option) && !option.eq_ignore_ascii_case(b"close"))
        .filter_map(|option| std::str::from_utf8(option).ok())
        .map(str::to_ascii_lowercase);
    named.filter(|name| !end_to_end(name)).collect()
}
