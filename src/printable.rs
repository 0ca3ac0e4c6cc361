//! Makes text from outside (keys, header values, names in certificates, a store's errors) safe to
//! print. A terminal obeys escape sequences, and a bidi control makes text look like other text. So
//! a character that does not show as itself is written as its number. Logs, command line and admin
//! API all use this.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True if a character shows as itself, and does not change the text around it.
///
/// Not printable are: controls (C0, DEL, C1); every white space except the space itself, such as
/// the line separators U+2028 and U+2029; the format characters of Unicode 17 (category Cf: bidi
/// controls, zero widths, tags); and invisible characters (variation selectors, fillers).
#[must_use]
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    !(c.is_control() || c.is_whitespace() || is_hidden(c))
}

/// Format characters, and those that are invisible by definition.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}'
        | '\u{34f}'
        | '\u{600}'..='\u{605}'
        | '\u{61c}'
        | '\u{6dd}'
        | '\u{70f}'
        | '\u{890}'..='\u{891}'
        | '\u{8e2}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{110bd}'
        | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Text as one line: U+202E is written `\u{202e}`.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    rewrite(text, is_printable, |out, c| {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    })
}

/// Text of several lines, each of them as [`line()`] writes it.
#[must_use]
pub fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The same JSON document, with U+202E written `\u202e`. Only a string can contain such a
/// character, so a parser reads the same value.
#[must_use]
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
