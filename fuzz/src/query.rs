//! Query parameters: what is taken out of a query, every common reader takes out of it too.
//!
//! The first line of an input is the parameter's name, the rest is the query.

use std::collections::BTreeSet;

use fencepost::routing::query_value;

use crate::spell::{decode, flip_escapes, lines};
use crate::{Seen, Verdict, hold, target};

target!("query", &query_value);

/// The function under test.
pub type Value = dyn Fn(&str, &str) -> Result<Option<String>, String>;

pub fn check_of(value: &Value, data: &[u8]) -> Verdict {
    let Some([name, query]) = lines(data, 2)
        .as_deref()
        .and_then(|lines| <[&str; 2]>::try_from(lines).ok())
    else {
        return Ok(Seen::Refused);
    };
    // A template has neither in a name, nor a bracket at its beginning.
    if name.is_empty() || name.contains(['|', '}', '\0']) || name.starts_with(['[', ']']) {
        return Ok(Seen::Refused);
    }
    let found = match value(query, name) {
        Ok(found) => found,
        Err(message) => {
            hold!(!message.is_empty(), "a refusal without a word");
            return Ok(Seen::Refused);
        }
    };
    let expected: Vec<Vec<u8>> = found
        .iter()
        .map(|value| value.clone().into_bytes())
        .collect();
    for semicolons in [false, true] {
        for habit in HABITS {
            let seen = read(query, name, semicolons, *habit);
            hold!(
                seen == expected,
                "{query}: `{name}` is {found:?} here, and {:?} to {habit:?} (semicolons separate: {semicolons})",
                seen.iter()
                    .map(|v| v.escape_ascii().to_string())
                    .collect::<Vec<_>>()
            );
        }
    }
    let flipped = flip_escapes(query);
    hold!(
        value(&flipped, name) == Ok(found.clone()),
        "{query} and {flipped} are the same, and differ"
    );
    let Some(text) = found else {
        return Ok(Seen::Refused);
    };
    let plain = |text: &str| crate::spell::escape(text, |b| b.is_ascii_alphanumeric());
    let again = format!("{}={}", plain(name), plain(&text));
    hold!(
        value(&again, name) == Ok(Some(text)),
        "{query} is not read back from {again}"
    );
    Ok(Seen::Accepted)
}

/// How readers come to the name of a parameter.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// The WHATWG URL standard, Go, Python, Java.
    Exact,
    /// ASP.NET.
    AnyCase,
    /// PHP's `$_GET`: no leading spaces, `_` for dots and spaces, cut at a closed `[`, cut at NUL.
    Php,
    /// Rack before 3, and qs (Express): brackets around the name mean nothing, and behind it an
    /// index.
    Brackets,
}

const HABITS: &[Habit] = &[Habit::Exact, Habit::AnyCase, Habit::Php, Habit::Brackets];

impl Habit {
    /// All names by which a reader may know this one.
    fn names(self, name: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        match self {
            Self::Exact => {
                names.insert(name.to_owned());
            }
            Self::AnyCase => {
                names.insert(name.to_lowercase());
                names.insert(name.to_uppercase());
            }
            Self::Php => {
                let name = name
                    .split('\0')
                    .next()
                    .unwrap_or_default()
                    .trim_start_matches(' ');
                let known = match name.split_once('[') {
                    Some((head, tail)) if tail.contains(']') && !head.is_empty() => head.to_owned(),
                    _ => name.replace('[', "_"),
                };
                names.insert(known.replace([' ', '.'], "_"));
            }
            Self::Brackets => {
                let name = name.trim_start_matches(['[', ']']);
                names.insert(name.split(['[', ']']).next().unwrap_or_default().to_owned());
            }
        }
        names
    }
}

fn read(query: &str, name: &str, semicolons: bool, habit: Habit) -> Vec<Vec<u8>> {
    let wanted = habit.names(name);
    let mut values = Vec::new();
    for piece in query.split(|c| c == '&' || semicolons && c == ';') {
        let (raw_name, raw_value) = piece.split_once('=').unwrap_or((piece, ""));
        let form = |raw: &str| decode(raw.replace('+', " ").as_bytes());
        let this = String::from_utf8_lossy(&form(raw_name)).into_owned();
        if !habit.names(&this).is_disjoint(&wanted) {
            values.push(form(raw_value));
        }
    }
    values
}
