//! [`Escaped`]: the characters that are written `%XX` inside the parts of a key, so that a
//! separator always ends a part.

use super::path::hex_digit;

/// The ASCII characters that are written `%XX` inside parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Escaped(u128);

impl Escaped {
    pub(super) fn new(literals: &str, lists: bool) -> Self {
        let mut set = Self(0);
        set.add('%');
        if lists {
            set.add('/');
        }
        for sign in literals.chars().filter(|sign| !sign.is_alphanumeric()) {
            set.add(sign);
        }
        set
    }

    fn add(&mut self, sign: char) {
        if sign.is_ascii() {
            self.0 |= 1 << u32::from(sign);
        }
    }

    fn has(&self, sign: char) -> bool {
        sign.is_ascii() && self.0 >> u32::from(sign) & 1 == 1
    }

    /// True if this character never stands inside a part, so that it ends one.
    pub(super) fn ends(&self, sign: char, list: bool) -> bool {
        self.has(sign) && sign != '%' && !(list && sign == '/')
    }

    pub(super) fn push(&self, key: &mut String, text: &str) {
        for sign in text.chars() {
            if self.has(sign) {
                let byte = u32::from(sign);
                key.push('%');
                key.extend([byte >> 4, byte & 15].map(hex_upper));
            } else {
                key.push(sign);
            }
        }
    }

    /// The text that [`Self::push`] makes this of, if there is one.
    pub(super) fn undo(&self, escaped: &str) -> Option<String> {
        let mut text = String::with_capacity(escaped.len());
        let mut pieces = escaped.split('%');
        text.push_str(pieces.next()?);
        for piece in pieces {
            let digits = piece.as_bytes().get(..2)?;
            let value = hex_digit(digits[0])? << 4 | hex_digit(digits[1])?;
            if !value.is_ascii() {
                return None;
            }
            text.push(char::from(value));
            text.push_str(piece.get(2..)?);
        }
        let mut again = String::with_capacity(escaped.len());
        self.push(&mut again, &text);
        (again == escaped).then_some(text)
    }
}

/// The text as one segment of a path: every byte but RFC 3986's unreserved ones as `%XX`.
#[must_use]
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.extend([byte >> 4, byte & 15].map(|digit| hex_upper(digit.into())));
        }
    }
    encoded
}

fn hex_upper(digit: u32) -> char {
    char::from_digit(digit, 16)
        .unwrap_or('0')
        .to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escape(set: &Escaped, text: &str) -> String {
        let mut escaped = String::new();
        set.push(&mut escaped, text);
        escaped
    }

    #[test]
    fn separators_and_nothing_else() {
        let set = Escaped::new("order:9é-", false);
        for (text, expected) in [
            ("42", "42"),
            ("order", "order"),
            ("a:b", "a%3Ab"),
            ("a-b", "a%2Db"),
            ("100%", "100%25"),
            ("a%3Ab", "a%253Ab"),
            ("a/b é _", "a/b é _"),
        ] {
            assert_eq!(escape(&set, text), expected);
            assert_eq!(set.undo(expected).as_deref(), Some(text));
        }
        assert_eq!(escape(&Escaped::new("", true), "a/b"), "a%2Fb");
        for never in [
            "a:b", "%3a", "%41", "%", "%3", "%zz", "%é", "%C3%A9", "a%2Fb",
        ] {
            assert_eq!(set.undo(never), None, "{never}");
        }
    }

    proptest! {
        #[test]
        fn undo_undoes(literals in "[ -~]{0,6}", lists: bool, text in any::<String>()) {
            let set = Escaped::new(&literals, lists);
            let escaped = escape(&set, &text);
            prop_assert!(!escaped.contains(|sign| set.ends(sign, false)));
            prop_assert_eq!(set.undo(&escaped), Some(text));
        }
    }
}
