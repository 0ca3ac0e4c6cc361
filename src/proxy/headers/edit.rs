//! Changes to a header that keep the order of its other fields.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::same_name;
use crate::proxy::buffer_pool;

/// Removes fields and keeps the others in their order: `HeaderMap::remove` moves the last one into
/// the gap.
pub(super) fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    if !headers.keys().any(&unwanted) {
        return;
    }
    let mut kept = buffer_pool::map();
    kept.reserve(headers.capacity());
    let mut current = None;
    for (name, value) in headers.drain() {
        // A field's further lines come without its name.
        current = name.or(current);
        if let Some(name) = current.as_ref().filter(|name| !unwanted(name)) {
            kept.append(name, value);
        }
    }
    buffer_pool::keep_map(std::mem::replace(headers, kept));
}

/// Sets a field to one value, and removes the fields whose names other servers may treat as the
/// same.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    remove_where(headers, |known| same_name(known, name.as_str()));
    headers.insert(name, value);
}

/// Adds a member to a field that is a list, on one line with those before it.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    if !headers.contains_key(&name) {
        headers.insert(name, member);
        return;
    }
    let mut line = Vec::new();
    for value in headers.get_all(&name) {
        let value = value.as_bytes().trim_ascii();
        if !value.is_empty() {
            line.extend_from_slice(value);
            line.extend_from_slice(b", ");
        }
    }
    line.extend_from_slice(member.as_bytes());
    // It is joined from valid values, so it is valid. Otherwise only ours is set.
    headers.insert(name, HeaderValue::try_from(line).unwrap_or(member));
}
