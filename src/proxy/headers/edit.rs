//! Edits of a message's fields.

use super::names::same_name;
use crate::http1::Fields;

/// Sets a field, in place of all that have its name in any spelling.
pub(super) fn set(fields: &mut Fields, name: &str, value: impl AsRef<[u8]>) {
    fields.remove_where(|known| same_name(known, name));
    fields.append(name, value);
}
