//! Members of a JSON body that a resource key is made of (`{json.order_id}`).
//!
//! JSON readers differ where RFC 8259 leaves them room: the first or the last of two members of one
//! name may count (section 4), some match names without regard to case, and numbers may be binary
//! floats (section 6). A wanted member that two readers may read in two ways is refused; the rest of
//! the document only has to be JSON. Nothing is kept of other members.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::routing::fold_case;

/// The members of the document at these paths, in the order asked: `None` where there is none.
///
/// A string is taken as it is, a whole number of at most 2^53-1 in decimal, `true` and `false` by
/// name (so `7` and `"7"` name one thing). Refused: other numbers (`1.0` and `1e0` may or may not be
/// `1`, and readers with binary floats take larger ones for their neighbours), `null`, objects and
/// arrays; wanted members given twice, or in a second spelling, which differs in case, goes on behind
/// a NUL, or has the path to an inner member in one name (`"a.b"`, as lodash and Laravel read it).
/// Depth is not a matter of the stack: only wanted paths are descended.
///
/// # Errors
///
/// The body is not JSON, or JSON that readers take in several ways: says which.
pub fn members(body: &[u8], wanted: &[&[String]]) -> Result<Vec<Option<String>>, String> {
    // RFC 8259, 8.1: JSON is UTF-8. A sender must not add a byte order mark, and a reader may refuse
    // it or not.
    let text = std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to() + 1;
        format!("the body is not UTF-8 (byte {at}); send JSON in UTF-8")
    })?;
    if text.starts_with('\u{feff}') {
        return Err("the body begins with a byte order mark; send the JSON without it".to_owned());
    }
    let document = serde_json::from_str(text).map_err(|error| error.to_string());
    let found = document.and_then(|document| {
        let found = wanted.iter().map(|path| member(document, path));
        found.collect()
    });
    found.map_err(|why| format!("the body cannot be used for it: {why}"))
}

/// The member at this path of a document.
fn member(document: &RawValue, path: &[String]) -> Result<Option<String>, String> {
    let mut value = document;
    for depth in 0..path.len() {
        if !value.get().starts_with('{') {
            return Ok(None);
        }
        let ends = depth + 1..=path.len();
        let alike: Vec<String> = ends.map(|end| path[depth..end].join(".")).collect();
        let mut reader = serde_json::Deserializer::from_str(value.get());
        let found = reader.deserialize_map(Find(&alike));
        let Some(found) = found.map_err(|error| error.to_string())?? else {
            return Ok(None);
        };
        value = found;
    }
    text_of(value, path.last().map_or("", String::as_str)).map(Some)
}

/// The text of a member in a key.
fn text_of(value: &RawValue, name: &str) -> Result<String, String> {
    let what = match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        _ => match serde_json::from_str(value.get()).map_err(|error| error.to_string())? {
            Value::String(text) => return Ok(text),
            Value::Bool(truth) => return Ok(truth.to_string()),
            Value::Number(number) => match number.as_i64() {
                Some(number) if number.unsigned_abs() <= MAX_SAFE_INTEGER => {
                    return Ok(number.to_string());
                }
                _ => "not a whole number of at most 2^53-1 in plain digits",
            },
            _ => "null",
        },
    };
    let name = name.escape_debug();
    Err(format!(
        "`{name}` is {what}; send a string, a whole number of at most 2^53-1, true or false"
    ))
}

/// The largest integer that binary floats tell from its neighbours, as JavaScript names it
/// (RFC 8259, 6).
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Finds the member of an object that has the first of these names. The others are what only some
/// readers take for a path that begins with it.
struct Find<'a>(&'a [String]);

impl<'de> Visitor<'de> for Find<'_> {
    type Value = Result<Option<&'de RawValue>, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = Ok(None);
        while let Some(MemberName(name)) = members.next_key()? {
            let value: &RawValue = members.next_value()?;
            let Some(alike) = self.0.iter().position(|wanted| is_like(&name, wanted)) else {
                continue;
            };
            let wanted = &self.0[alike];
            found = match found {
                Err(why) => Err(why),
                _ if alike > 0 || name != *wanted => Err(format!(
                    "some readers take the member `{}` for `{}`; send the latter only",
                    name.escape_debug(),
                    wanted.escape_debug()
                )),
                Ok(None) => Ok(Some(value)),
                Ok(Some(_)) => Err(format!(
                    "the member `{}` is given twice; send it once",
                    name.escape_debug()
                )),
            };
        }
        Ok(found)
    }
}

/// True if some reader takes one name for the other.
fn is_like(name: &str, wanted: &str) -> bool {
    // A reader in C ends the name there.
    let name = name.split('\0').next().unwrap_or(name);
    if name.is_ascii() && wanted.is_ascii() {
        return name.eq_ignore_ascii_case(wanted);
    }
    fold_case(name) == fold_case(wanted)
}

/// The name of any member: copied only if it has escapes.
#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests;
