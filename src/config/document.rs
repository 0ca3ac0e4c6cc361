//! [`ConfigDocument`]: the configuration as operators wrote it.

use std::fmt;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The configuration as it was written, as JSON for operators.
#[derive(Clone, Default)]
pub struct ConfigDocument(pub Value);

impl ConfigDocument {
    /// Of a URL with a user or a query, which may hold a password, only the scheme is shown.
    pub(super) fn of(mut tree: Value) -> Self {
        hide_secrets(&mut tree);
        Self(tree)
    }

    /// The first digits of its SHA-256, the same for the same fields and values.
    #[must_use]
    pub fn digest(&self) -> String {
        // Maps are in the order of their keys.
        let digest = Sha256::digest(self.0.to_string());
        let first = digest.iter().take(6);
        let number = first.fold(0, |number, byte| number << 8 | u64::from(*byte));
        format!("{number:012x}")
    }
}

fn hide_secrets(tree: &mut Value) {
    match tree {
        Value::String(text) => {
            if let Some((scheme, rest)) = text.split_once("://")
                && rest.contains(['@', '?'])
            {
                *text = format!("{scheme}://…");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_secrets),
        Value::Object(members) => members.values_mut().for_each(hide_secrets),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Without it: the settings that were made of it stand beside it.
impl fmt::Debug for ConfigDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigDocument(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_the_fields_and_not_of_their_order() {
        let digest = |text| {
            let value = serde_json::from_str(text).expect("JSON");
            ConfigDocument(value).digest()
        };
        let one = digest(r#"{"a":1,"b":{"c":[2,3]}}"#);
        assert_eq!(one.len(), 12);
        assert_eq!(one, digest(r#"{"b":{"c":[2,3]},"a":1}"#));
        assert_ne!(one, digest(r#"{"a":1,"b":{"c":[3,2]}}"#));
    }
}
