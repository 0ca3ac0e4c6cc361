//! `X-Fencing-Resource`: what carries a key through a header, and back.
//!
//! An input is a key and, behind a line break, a header value that a client may send.

use fencepost::proxy::headers::{resource_of, resource_value};
use fencepost::routing::ResourceKey;

use crate::spell::lines;
use crate::{Seen, Verdict, hold, target};

target!("resource", &REAL);

/// The functions under test.
pub struct Codec {
    pub write: fn(&ResourceKey) -> String,
    pub read: fn(&str) -> Option<ResourceKey>,
}

const REAL: Codec = Codec {
    write: |key| resource_value(key).into_owned(),
    read: |value| resource_of(value).ok(),
};

pub fn check_of(codec: &Codec, data: &[u8]) -> Verdict {
    let Some(lines) = lines(data, 2) else {
        return Ok(Seen::Refused);
    };
    let mut seen = Seen::Refused;
    if let Ok(key) = ResourceKey::new(as_a_template_makes(lines[0])) {
        seen = Seen::Accepted;
        round(codec, &key)?;
    }
    // For any client's text: the resource that it names is what the proxy would write for it.
    if let Some(value) = lines.get(1)
        && let Some(key) = (codec.read)(value)
    {
        hold!(
            ResourceKey::new(key.as_str()).is_ok(),
            "{value} names {key}, which is no key"
        );
        if key.as_str() == as_a_template_makes(key.as_str()) {
            seen = Seen::Accepted;
            round(codec, &key)?;
        }
    }
    Ok(seen)
}

fn round(codec: &Codec, key: &ResourceKey) -> Result<(), String> {
    let value = (codec.write)(key);
    hold!(
        value.bytes().all(|b| b.is_ascii_graphic()),
        "{key:?} is written {value}, which a header may lose a part of"
    );
    let back = (codec.read)(&value);
    hold!(
        back.as_ref() == Some(key),
        "{key:?} is written {value}, and read {back:?}"
    );
    // In UTF-8, as a client may write it that knows nothing of escapes.
    let plain = (codec.read)(key.as_str());
    hold!(
        plain.as_ref() == Some(key),
        "{key:?} as it is, is read {plain:?}"
    );
    Ok(())
}

/// In a template's keys each `%` begins an escape of a visible ASCII sign that is written in upper
/// case.
fn as_a_template_makes(text: &str) -> String {
    let mut key = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        key.push_str(&rest[..=at]);
        rest = &rest[at + 1..];
        let value = rest
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let escape =
            value.is_some_and(|v| v.is_ascii_graphic() && rest.starts_with(&format!("{v:02X}")));
        if !escape {
            key.push_str("25");
        }
    }
    key.push_str(rest);
    key
}
