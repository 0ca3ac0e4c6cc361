//! Members of a JSON body that a resource key is made of (`{json.order_id}`).
//!
//! JSON readers differ where RFC 8259 leaves them room: the first or the last of two members of one
//! name may count (section 4), some match names without regard to case, and numbers may be binary
//! floats (section 6). A wanted member that two readers may read in two ways is refused; the rest of
//! the document only has to be JSON. Names are compared as they are read, and nothing is kept of
//! other members, so that a body costs what reading it costs.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::routing::fold_case;

/// The members of the document at these paths, in the order asked: `None` where there is none.
///
/// A string is taken as it is, a whole number of at most 2^53-1 in decimal, `true` and `false` by
/// name (so `7` and `"7"` name one thing). Refused: other numbers (`1.0` and `1e0` may or may not be
/// `1`, and readers with binary floats take larger ones for their neighbours), `null`, objects and
/// arrays; wanted members given twice, or in a second spelling, which differs in case, goes on behind
/// a NUL, or has the path to an inner member in one name (`"a.b"`, as lodash and Laravel read it). Depth is not
/// a matter of the stack: only wanted paths are descended.
///
/// # Errors
///
/// The body is not JSON, or JSON that readers take in several ways: says which, and where.
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
    let mut found = vec![None; wanted.len()];
    let mut reader = serde_json::Deserializer::from_str(text);
    let document = Value {
        wanted,
        at: &[],
        found: &mut found,
    };
    let read = document.deserialize(&mut reader);
    let read = read.and_then(|()| reader.end());
    read.map_err(|error| format!("the body cannot be used for it: {error}"))?;
    Ok(found)
}

/// The value of a member.
struct Value<'a> {
    wanted: &'a [&'a [String]],
    /// The path of this one, which is wanted itself, or with members below it. Empty: the document.
    at: &'a [String],
    found: &'a mut [Option<String>],
}

impl Value<'_> {
    /// The value is not one that names anything: wrong where it was wanted itself, and otherwise
    /// without the members wanted.
    fn refuse<E: Error>(&self, what: &str) -> Result<(), E> {
        if self.wanted.contains(&self.at) {
            let name = self.at.last().map_or("the document", String::as_str);
            let name = name.escape_debug();
            return Err(E::custom(format!(
                "`{name}` is {what}; send a string, a whole number of at most 2^53-1, true or false"
            )));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        for (path, found) in self.wanted.iter().zip(self.found) {
            if *path == self.at {
                *found = Some(text.to_owned());
            }
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        self.visit_str(if truth { "true" } else { "false" })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        // Numbers beyond an i64 are refused like its largest.
        self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        if number.unsigned_abs() > MAX_SAFE_INTEGER {
            return self.refuse(NO_NUMBER);
        }
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.refuse(NO_NUMBER)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.refuse("null")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.refuse("an array")?;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.refuse("an object")?;
        let Self { wanted, at, found } = self;
        let mut names: Vec<WantedName<'_>> = Vec::new();
        for path in wanted.iter().filter(|path| path.starts_with(at)) {
            let inner = at.len() + 1..=path.len();
            names.extend(inner.map(|end| WantedName::new(&path[..end], at.len())));
        }
        while let Some(MemberName(name)) = members.next_key()? {
            let is = |wanted: &WantedName<'_>| wanted.exact && wanted.name == name;
            let Some(place) = names.iter().position(is) else {
                if let Some(twin) = names.iter().find(|wanted| wanted.is_like(&name)) {
                    return Err(A::Error::custom(format!(
                        "some readers take the member `{}` for `{}`; send the latter only",
                        name.escape_debug(),
                        twin.name.escape_debug()
                    )));
                }
                members.next_value::<IgnoredAny>()?;
                continue;
            };
            let WantedName { path, seen, .. } = &mut names[place];
            if std::mem::replace(seen, true) {
                let name = name.escape_debug();
                let why = format!("the member `{name}` is given twice; send it once");
                return Err(A::Error::custom(why));
            }
            members.next_value_seed(Value {
                wanted,
                at: path,
                found: &mut *found,
            })?;
        }
        Ok(())
    }
}

/// The largest integer that binary floats tell from its neighbours, as JavaScript names it
/// (RFC 8259, 6).
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

const NO_NUMBER: &str = "not a whole number of at most 2^53-1 in plain digits";

/// The name of a wanted member.
struct WantedName<'a> {
    /// The path to the member, from the document.
    path: &'a [String],
    /// Its end, from the object that is read. With several parts, it is what only some readers take
    /// for that path.
    name: String,
    folded: String,
    exact: bool,
    seen: bool,
}

impl<'a> WantedName<'a> {
    fn new(path: &'a [String], begin: usize) -> Self {
        let name = path[begin..].join(".");
        Self {
            path,
            folded: fold_case(&name),
            name,
            exact: path.len() == begin + 1,
            seen: false,
        }
    }

    /// True if some reader takes `other` for this name.
    fn is_like(&self, other: &str) -> bool {
        // A reader in C ends the name there.
        let other = other.split('\0').next().unwrap_or(other);
        if other.is_ascii() && self.folded.is_ascii() {
            return other.eq_ignore_ascii_case(&self.folded);
        }
        fold_case(other) == self.folded
    }
}

/// The name of any member: copied only if it has escapes.
#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests;
