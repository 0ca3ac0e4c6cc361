//! `name=value` with the value a token or a quoted string (RFC 9110, 5.6.6): the parameters of a
//! media type, and what `Forwarded` is made of.

use crate::wire::head::is_token;

/// One pair, and what follows it. `None`: the text does not begin with one.
///
/// A value without quotes may have more signs than a token has: ports are often written so
/// (`host=app.test:8080`). It ends at white space, `;`, `,` or a quote.
pub(super) fn pair(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.split_once('=')?;
    if !is_token(name.as_bytes()) {
        return None;
    }
    if let Some(quoted) = rest.strip_prefix('"') {
        let (value, rest) = unquoted(quoted)?;
        return Some((name, value, rest));
    }
    let end = rest.find([' ', '\t', ';', ',', '"']).unwrap_or(rest.len());
    let (value, rest) = rest.split_at(end);
    (!value.is_empty()).then(|| (name, value.to_owned(), rest))
}

/// The text of a quoted string behind its first quote, and what follows the last one.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(signs.next()?.1),
            _ => value.push(sign),
        }
    }
    None
}

#[test]
fn pairs_are_read_to_their_end() {
    let read = |text| {
        let read = pair(text);
        read.map(|(name, value, rest)| (name.to_owned(), value, rest.to_owned()))
    };
    for (text, name, value, rest) in [
        ("a=b", "a", "b", ""),
        ("a=b;c=d", "a", "b", ";c=d"),
        ("host=x:80, for=y", "host", "x:80", ", for=y"),
        (r#"a="b;c,d" x"#, "a", "b;c,d", " x"),
        (r#"a="b\"\\c""#, "a", r#"b"\c"#, ""),
        (r#"a="""#, "a", "", ""),
        (r#"a=b"c""#, "a", "b", r#""c""#),
    ] {
        let expected = Some((name.to_owned(), value.to_owned(), rest.to_owned()));
        assert_eq!(read(text), expected, "{text}");
    }
    for text in [
        "", "a", "=b", "a=", "a =b", "a= b", r#"a="b"#, r#"a="b\"#, "a;b=c",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
}
