//! Ways to spell one text in a URL, and to read one back: what the targets for paths, routes and
//! keys share. Nothing here is the proxy's own code, on purpose.

/// Returns whether RFC 3986, 2.3 has an escape of this byte mean the same as the byte.
#[must_use]
pub fn unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The text with every byte escaped for which `plain` does not hold.
#[must_use]
pub fn escape(text: &str, plain: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if plain(byte) && byte.is_ascii() {
            escaped.push(char::from(byte));
        } else {
            escaped.extend(["%".to_owned(), format!("{byte:02X}")]);
        }
    }
    escaped
}

/// A path of these segments.
#[must_use]
pub fn path_of(segments: &[String], slash: bool, plain: impl Fn(u8) -> bool) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        path.push_str(&escape(segment, &plain));
    }
    if slash || path.is_empty() {
        path.push('/');
    }
    path
}

/// Decodes what are escapes, and leaves all else, a broken `%` too, as it is.
#[must_use]
pub fn decode(raw: &[u8]) -> Vec<u8> {
    let digit = |i: usize| raw.get(i).and_then(|b| char::from(*b).to_digit(16));
    let mut decoded = Vec::new();
    let mut i = 0;
    while i < raw.len() {
        match (raw[i], digit(i + 1), digit(i + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or(0));
                i += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                i += 1;
            }
        }
    }
    decoded
}

/// The same text with the digits of its escapes in the other case.
#[must_use]
pub fn flip_escapes(raw: &str) -> String {
    respell(
        raw,
        |sign| sign.to_string(),
        |digit| {
            if digit.is_ascii_lowercase() {
                digit.to_ascii_uppercase()
            } else {
                digit.to_ascii_lowercase()
            }
        },
    )
}

/// The same text with each unreserved byte outside of escapes escaped.
#[must_use]
pub fn escape_unreserved(raw: &str) -> String {
    let plain = |sign: char| match u8::try_from(sign) {
        Ok(byte) if unreserved(byte) => format!("%{byte:02x}"),
        _ => sign.to_string(),
    };
    respell(raw, plain, |digit| digit)
}

/// The text with each sign outside of escapes, and each digit inside, in another spelling.
fn respell(raw: &str, plain: impl Fn(char) -> String, digit: impl Fn(char) -> char) -> String {
    let mut spelled = String::new();
    let mut rest = raw;
    while let Some(sign) = rest.chars().next() {
        let escape = rest
            .get(1..3)
            .filter(|digits| sign == '%' && digits.bytes().all(|b| b.is_ascii_hexdigit()));
        if let Some(digits) = escape {
            spelled.push('%');
            spelled.extend(digits.chars().map(&digit));
            rest = &rest[3..];
        } else {
            spelled.push_str(&plain(sign));
            rest = &rest[sign.len_utf8()..];
        }
    }
    spelled
}

/// Cuts the input into lines, as text; the last one takes what is left.
#[must_use]
pub fn lines(data: &[u8], most: usize) -> Option<Vec<&str>> {
    let text = std::str::from_utf8(data).ok()?;
    Some(text.splitn(most, '\n').collect())
}
