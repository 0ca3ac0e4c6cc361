//! Makes text from outside (keys, header values, names in certificates, a store's errors) safe to
//! print. A terminal obeys escape sequences, and a bidi control makes text look like other text. So
//! a character that does not show as itself is written as its number. Logs, command line and admin
//! API all use this.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True if a character shows as itself, and does not change the text around it.
///
/// Not printable are the characters that [`str::escape_debug`] writes as numbers (controls, white
/// space but the space itself, format characters, tags, what is not assigned), and invisible ones
/// that it lets pass: variation selectors and fillers.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let hidden = matches!(c, '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}');
    // Behind a letter, since a mark that combines with one is escaped at the start.
    !hidden && format!("a{c}").escape_debug().nth(1) == Some(c)
}

/// Text as one line: U+202E is written `\u{202e}`.
pub fn line(text: &str) -> Cow<'_, str> {
    rewrite(text, is_printable, |out, c| {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    })
}

/// Text of several lines, each of them as [`line()`] writes it.
pub fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The same JSON document, with U+202E written `\u202e`. Only a string can contain such a
/// character, so a parser reads the same value.
pub fn json(document: &str) -> Cow<'_, str> {
    let shows = |c| is_printable(c) || matches!(c, '\n' | '\t');
    rewrite(document, shows, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

fn rewrite(
    text: &str,
    shows: impl Fn(char) -> bool,
    instead: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    let Some(first) = text.find(|c| !shows(c)) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        if shows(c) {
            out.push(c);
        } else {
            instead(&mut out, c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that a stranger may send: an escape sequence, C1's one, a reversed name, two line ends,
    /// a zero-width space, a tag.
    const STRANGE: &str =
        "a\x1b[2Jb\u{9b}2J\u{7f}\u{202e}txt\u{2028}\u{2029}\u{85}\u{200b}\u{e0041}";

    #[test]
    fn what_does_not_show_is_written_as_its_number() {
        assert_eq!(
            line(STRANGE),
            "a\\u{1b}[2Jb\\u{9b}2J\\u{7f}\\u{202e}txt\\u{2028}\\u{2029}\\u{85}\\u{200b}\\u{e0041}"
        );
        assert_eq!(line("a\r\nb\tc"), "a\\u{d}\\u{a}b\\u{9}c");
        assert_eq!(lines("a\r\nb"), "a\\u{d}\nb");
        for plain in ["order:42", "заказ:7", "命令:७", "ordre:é e\u{301}", "a b"] {
            assert!(matches!(line(plain), Cow::Borrowed(text) if text == plain));
        }
    }

    #[test]
    fn a_json_document_says_the_same() {
        let value = serde_json::json!({ "resource": STRANGE, "x": ["\"\\/", "é", "😀"] });
        for document in [value.to_string(), format!("{value:#}")] {
            let shown = json(&document);
            assert!(
                shown.chars().all(|c| is_printable(c) || c == '\n'),
                "{shown}"
            );
            let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            assert_eq!(read, value);
        }
    }
}
