//! The forms that texts have in keys. Normal forms: texts of different spelling get one form. The
//! filters of a template use them, and every `{host}`. [`Escaped`]: the characters that are written
//! `%XX` inside the parts of a key, so that a separator always ends a part.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::path::unescaped;
use crate::http1::request::is_host;

/// Folds case in all scripts, by characters: texts that any reader may think equal except for case
/// become equal (`Σ`, `σ` and `ς`; `ß`, `ẞ` and `ss`; the Kelvin sign and `k`). Merging too much
/// costs a refusal, merging too little a second key.
pub(crate) fn fold_case(text: &str) -> String {
    text.chars()
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect()
}

/// A decimal integer of any size without its leading zeros and plus sign; `-0` is `0`.
pub(super) fn integer(text: &str) -> Result<String, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "`{}` is not a whole decimal number; send digits",
            text.escape_debug()
        ));
    }
    match digits.trim_start_matches('0') {
        "" => Ok("0".to_owned()),
        digits => Ok(format!("{sign}{digits}")),
    }
}

/// Accepts ASCII letters, digits, `-` and `_` only. Frameworks interpret names: they cut `.json`, a
/// dot or a space off the end, and take `+` for a space. A plain name has nothing to cut.
pub(crate) fn plain(text: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if text.is_empty() || !text.bytes().all(plain) {
        return Err(format!(
            "`{}` has more than ASCII letters, digits, `-` and `_`, and this route takes no more; send the \
             name alone",
            text.escape_debug()
        ));
    }
    Ok(())
}

/// The name in a Host header: lower case, without port and final dot (RFC 9110, 4.2.3 and 7.2).
pub(crate) fn host_name(host: &str) -> Result<String, String> {
    let end = host.find(']').map(|bracket| bracket + 1).or(host.find(':'));
    let name = &host[..end.unwrap_or(host.len())];
    let address = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let name = match address.map(str::parse::<Ipv6Addr>) {
        Some(Ok(address)) => format!("[{address}]"),
        _ => name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(),
    };
    if is_host(host.as_bytes()) && name.split('.').all(|label| !label.is_empty()) {
        return Ok(name);
    }
    let shown = host.escape_debug();
    Err(format!(
        "`{shown}` is not a host; send `name` or `name:port`"
    ))
}

/// Returns true if a Host header names an IP address or `localhost`. No other party can make these
/// names point to this machine (DNS rebinding).
pub(crate) fn is_address_or_localhost(host: &str) -> bool {
    host_name(host).is_ok_and(|name| {
        name == "localhost" || name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok()
    })
}

/// The ASCII characters that are written `%XX` inside parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Escaped(pub(super) u128);

impl Escaped {
    /// For a template with these literal texts. `lists`: some part is a list of path segments.
    pub(super) fn new(literals: &str, lists: bool) -> Self {
        let separators = literals.chars().filter(|sign| !sign.is_alphanumeric());
        let all = separators.chain(['%']).chain(lists.then_some('/'));
        let ascii = all.filter(char::is_ascii);
        Self(ascii.fold(0, |set, sign| set | 1 << u32::from(sign)))
    }

    fn has(self, sign: char) -> bool {
        sign.is_ascii() && self.0 >> u32::from(sign) & 1 == 1
    }

    /// True if this character never stands inside a part, so that it ends one.
    pub(super) fn ends(self, sign: char, list: bool) -> bool {
        self.has(sign) && sign != '%' && !(list && sign == '/')
    }

    pub(super) fn push(self, key: &mut String, text: &str) {
        for sign in text.chars() {
            if self.has(sign) {
                let _ = write!(key, "%{:02X}", u32::from(sign));
            } else {
                key.push(sign);
            }
        }
    }

    /// The text that [`Self::push`] makes this of, if there is one.
    pub(super) fn undo(self, escaped: &str) -> Option<String> {
        let text = decoded(escaped, b'+')?;
        let mut again = String::with_capacity(escaped.len());
        self.push(&mut again, &text);
        (again == escaped).then_some(text)
    }
}

/// The text as one segment of a path: every byte but RFC 3986's unreserved ones as `%XX`.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// The path of these segments, which are encoded already.
pub(super) fn raw_path<T: AsRef<str>>(segments: impl Iterator<Item = T>, slash: bool) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        path.push_str(segment.as_ref());
    }
    if slash || path.is_empty() {
        path.push('/');
    }
    path
}

/// The text behind its escapes. `plus`: the byte that a raw `+` stands for. `None`: an escape is
/// broken, or the text is not UTF-8.
pub(crate) fn decoded(raw: &str, plus: u8) -> Option<String> {
    let bytes = raw.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        text.push(match byte {
            b'+' => plus,
            _ => unescaped(bytes, at)?,
        });
        at += if *byte == b'%' { 3 } else { 1 };
    }
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests;
