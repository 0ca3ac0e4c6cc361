//! [`query_value`]: one parameter of a query string, if all readers agree on it.
//!
//! Query strings have no standard beyond RFC 3986, 3.4. This follows the form encoding of the
//! WHATWG URL standard, and refuses what other well-known readers take in another way: a name given
//! twice (first, last or both count), `;` as a separator (older readers split at it), `name[]` and
//! the like beside `name` (PHP folds `[`, `.` and spaces; Rack and qs read `[name]` as `name`).

use super::fold_case;
use super::path::hex_digit;

/// The value of the parameter `name`, decoded; `None` if it is not there, `Some("")` if it has no
/// value. The error says what makes it ambiguous.
pub fn query_value(raw_query: &str, name: &str) -> Result<Option<String>, String> {
    let mut found = None;
    for piece in raw_query.split('&') {
        let (raw_name, raw_value) = piece.split_once('=').unwrap_or((piece, ""));
        let this = decode(raw_name)
            .map_err(|problem| format!("a parameter's name {problem} in the query"))?;
        if this != name {
            if same_name(&this, name) {
                return Err(format!(
                    "the parameter `{}` is the same as `{name}` for some servers; send `{name}` only",
                    this.escape_debug()
                ));
            }
            if behind_semicolon(piece, name)? {
                return Err(semicolon(name));
            }
            continue;
        }
        if piece.contains(';') {
            return Err(semicolon(name));
        }
        let value = decode(raw_value)
            .map_err(|problem| format!("the parameter `{name}` {problem} in its value"))?;
        if found.replace(value).is_some() {
            return Err(format!(
                "the parameter `{name}` is given twice; send it once"
            ));
        }
    }
    Ok(found)
}

fn semicolon(name: &str) -> String {
    format!(
        "a `;` stands before or in the parameter `{name}`, and some servers split there; \
         separate parameters by `&`, and escape a literal one as `%3B`"
    )
}

/// True if a reader that splits at `;` too would find the name inside this piece.
fn behind_semicolon(piece: &str, name: &str) -> Result<bool, String> {
    for inner in piece.split(';').skip(1) {
        let raw_name = inner.split('=').next().unwrap_or(inner);
        let inner_name = decode(raw_name)
            .map_err(|problem| format!("a parameter's name behind a `;` {problem} in the query"))?;
        if same_name(&inner_name, name) {
            return Ok(true);
        }
    }
    // Split at `;`, the first name ends there: `id;x=1` has `id` with no value.
    let first = piece.split(';').next().unwrap_or(piece);
    let first_name = first.split('=').next().unwrap_or(first);
    Ok(piece.contains(';') && decode(first_name).is_ok_and(|first| same_name(&first, name)))
}

/// True if some reader takes both names for one. Case is ignored. PHP drops leading spaces, writes
/// `_` for dots, spaces and an unclosed `[`, and cuts at a NUL or a `[`. Rack (before 3) and qs
/// also drop brackets in front.
fn same_name(one: &str, other: &str) -> bool {
    let known = known_as(other);
    known_as(one).iter().any(|name| known.contains(name))
}

/// The names by which readers know this one, in lower case.
fn known_as(name: &str) -> [String; 2] {
    let is_bracket = ['[', ']'];
    let name = name.split('\0').next().unwrap_or(name);
    let name = fold_case(name.trim_start_matches(' ')).replace(['.', ' '], "_");
    let inner = name.trim_start_matches(is_bracket);
    let cut = inner.split(is_bracket).next().unwrap_or(inner);
    [cut.to_owned(), name.replace(is_bracket, "_")]
}

/// `+` is a space, `%XX` a byte of UTF-8.
fn decode(raw: &str) -> Result<String, &'static str> {
    let bytes = raw.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let digit = |i| bytes.get(i).copied().and_then(hex_digit);
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                match (digit(i + 1), digit(i + 2)) {
                    (Some(high), Some(low)) => decoded.push(high << 4 | low),
                    _ => return Err("has a `%` without two hexadecimal digits behind it"),
                }
                i += 2;
            }
            _ => decoded.push(byte),
        }
        i += 1;
    }
    String::from_utf8(decoded).map_err(|_| "has escapes that don't decode to UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found() {
        for (query, expected) in [
            ("", None),
            ("q=7", Some("7")),
            ("a=1&q=7&b=2", Some("7")),
            ("q", Some("")),
            ("q=", Some("")),
            ("&&q=7&", Some("7")),
            ("q=a=b", Some("a=b")),
            ("%71=7", Some("7")),
            ("q=%37", Some("7")),
            ("q=a+b", Some("a b")),
            ("q=a%2Bb", Some("a+b")),
            ("q=a%20b", Some("a b")),
            ("q=%C3%A9", Some("é")),
            ("q=é", Some("é")),
            ("q=a%26b", Some("a&b")),
            ("q=a%3Bb", Some("a;b")),
            ("q=%2541", Some("%41")),
            ("qq=7", None),
            ("x=%zz&q=7", Some("7")),
            ("x=a;b&q=7", Some("7")),
            ("x;y=1&q=7", Some("7")),
            ("x[]=1&x[]=2&q=7", Some("7")),
        ] {
            assert_eq!(
                query_value(query, "q"),
                Ok(expected.map(str::to_owned)),
                "{query}"
            );
        }
    }

    #[test]
    fn refused() {
        for query in [
            "q=7&q=8",
            "q=7&q=7",
            "q=7&%71=8",
            "q&q",
            "q=7&a=1&q=8",
            "q=7&q[]=8",
            "q=7&Q=8",
            "Q=7",
            "q[]=8",
            "q[a]=1",
            "[q]=8",
            "q=7&[q]=8",
            "q]=8",
            "+q=7",
            "q=7;a=1",
            "q=7;q=8",
            "a=1;q=7",
            "a;q",
            "a=1;%71=7",
            "a=1;q[]=7",
            "q;a=1",
            "q=%",
            "q=%4",
            "q=%zz",
            "q=%80",
            "q=%C0%AF",
            "%zz=1&q=7",
            "%80=1&q=7",
            "q=a;b",
            "q%00x=1",
        ] {
            let error = query_value(query, "q").expect_err(query);
            assert!(error.len() > 20, "{error}");
        }
        assert!(query_value("a.b=1&a_b=2", "a.b").is_err());
        assert!(query_value("a[=1&a_=2", "a_").is_err());
        assert!(query_value("a;b=1", "a;b").is_err());
        assert_eq!(query_value("a%3Bb=1", "a;b"), Ok(Some("1".to_owned())));
    }
}
