//! [`CheckedPath`]: a request's path, split and percent-decoded exactly once, with every spelling
//! refused that a server behind us may read in another way than we do.
//!
//! A server may merge `//`, cut a segment at `;`, take `\` or `%2F` for `/`, resolve `..` before or
//! after it decodes, look for `?` or `#` after decoding, or decode twice. A spelling that the
//! server reads as `/orders/42` and fencepost as something else would be fenced under a second key,
//! and so not at all. So a spelling that two readers may read in two ways is refused. An operator
//! who knows the upstream can allow four *soft* oddities per route ([`Allow`]). The table says what
//! each means for the key:
//!
//! | name | what it lets through | and the key then has |
//! |---|---|---|
//! | `semicolon` | `;` and `%3B` | the `;` and what follows as text of the segment, in both spellings |
//! | `empty-segments` | `//` | nothing: `/a//b` is the same thing as `/a/b`, as where slashes are merged |
//! | `encoded-slash` | `%2F` | a slash *inside* the segment, never the separator |
//! | `raw-characters` | `"<>[]^{}`, `\|` and the backtick, unescaped | the same as for their escapes |
//!
//! (`any-destination` is about no path: it lets COPY and MOVE name in `Destination` what they like.)
//!
//! The rest cannot be allowed: a backslash, an escaped `?` or `#`, a `%` that escapes a second
//! escape, and dot segments, also behind an allowed oddity (`..;x`, `..%2Fa`). `/a/../b` and `/b`
//! would be one resource with two keys at most servers.
//!
//! Letter case and number spelling (`{id|lower}`, `{id|int}`) and Unicode normalization are *not*
//! decided here, since syntax cannot tell. `é` in one code point and `e` with a combining accent
//! are two different resources.

use std::fmt;

/// The word of `allow` that leaves `Destination` unchecked.
pub const ANY_DESTINATION: &str = "any-destination";

/// The soft oddities that a route lets through (`allow`). None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow([bool; Self::NAMES.len()]);

impl Allow {
    /// The names that [`Self::set`] knows.
    pub const NAMES: &[&str] = &[
        "semicolon",
        "empty-segments",
        "encoded-slash",
        "raw-characters",
        ANY_DESTINATION,
    ];

    fn index(name: &str) -> Option<usize> {
        Self::NAMES.iter().position(|known| *known == name)
    }

    /// Allows one oddity. `false`: the name is unknown.
    pub fn set(&mut self, name: &str) -> bool {
        let index = Self::index(name);
        index.map(|index| self.0[index] = true).is_some()
    }

    /// True if the oddity of this name is allowed.
    pub fn allows(self, name: &str) -> bool {
        Self::index(name).is_some_and(|index| self.0[index])
    }
}

/// The reason for refusing a path: the part at fault, its place, and the spelling to send instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguity {
    what: PathProblem,
    /// Byte offset in the raw path, from 0.
    pub at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum PathProblem {
    // Oddities: spellings that servers read in several ways. A route may let the first four
    // through: their discriminants are indices in [`Allow::NAMES`].
    #[error("a `;` (raw or `%3B`), where some servers cut the segment; leave it out")]
    Semicolon,
    #[error("an empty segment (`//`), which some servers drop; send a single `/`")]
    EmptySegment,
    #[error("an encoded slash (`%2F`), which some servers take for `/`; leave it out")]
    EncodedSlash,
    #[error("a character that a path has only in its escaped form (RFC 3986, 3.3); escape it")]
    RawCharacter,
    #[error("a backslash (raw or `%5C`), which some servers take for `/`; leave it out")]
    Backslash,
    #[error("an encoded `?` or `#` (`%3F`, `%23`), where some servers end the path; leave it out")]
    EncodedEnd,
    #[error(
        "an encoded `%` before two hexadecimal digits, which some servers decode again; encode the \
         text once"
    )]
    DoubleEncoding,
    // The rest is no path at all.
    #[error("a path starts with `/`")]
    NoLeadingSlash,
    #[error("a `%` without two hexadecimal digits behind it; a literal one is `%25`")]
    BrokenEscape,
    #[error(
        "the escapes of this segment don't decode to UTF-8; escape the UTF-8 bytes of the text"
    )]
    NotUtf8,
    #[error("a control character, raw or escaped; leave it out")]
    Control,
    #[error("a raw space, `?`, `#` or byte outside ASCII; escape its UTF-8 bytes with `%`")]
    NotInAPath,
    #[error("a dot segment (`.` or `..`, in any spelling); send the path with it resolved")]
    DotSegment,
}

/// The number of oddities that a route may let through.
const SOFT: usize = 4;

impl fmt::Display for Ambiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the path: {}", self.at + 1, self.what)?;
        match Allow::NAMES[..SOFT].get(self.what as usize) {
            Some(name) => write!(
                f,
                ", or put `allow: [{name}]` on the route if it is right for the upstream"
            ),
            None => Ok(()),
        }
    }
}

/// A path that has one reading; decoded exactly once. Some oddities may be in it: ask
/// [`Self::oddity_not_in`] with what the route allows, and with `Allow::default()` where no route
/// matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedPath {
    /// The decoded segments, one behind the other.
    text: String,
    /// The end of each segment in the text. None is empty. `/` has none.
    ends: Vec<usize>,
    trailing_slash: bool,
    /// The first oddity of each kind.
    oddities: Vec<Ambiguity>,
}

impl CheckedPath {
    /// Splits and decodes the path of a request target, without its query.
    pub fn parse(raw_path: &str) -> Result<Self, Ambiguity> {
        let Some(rest) = raw_path.strip_prefix('/') else {
            return refuse(PathProblem::NoLeadingSlash, 0);
        };
        let mut path = Self::default();
        let mut text = Vec::with_capacity(rest.len());
        let mut at = 1;
        let mut raw_segments = rest.split('/').peekable();
        while let Some(raw) = raw_segments.next() {
            if !raw.is_empty() {
                path.decode(raw, at, &mut text)?;
                path.ends.push(text.len());
            } else if raw_segments.peek().is_some() {
                path.note(PathProblem::EmptySegment, at);
            } else {
                // `/` alone is the root, not a root with a trailing slash.
                path.trailing_slash = !path.ends.is_empty();
            }
            at += raw.len() + 1;
        }
        // Each segment was UTF-8.
        path.text = String::from_utf8(text).or(refuse(PathProblem::NotUtf8, 0))?;
        Ok(path)
    }

    /// The first oddity in the path that `allow` does not let through.
    pub fn oddity_not_in(&self, allow: Allow) -> Option<Ambiguity> {
        let allowed =
            |oddity: &&Ambiguity| allow.0[..SOFT].get(oddity.what as usize) == Some(&true);
        let refused = self.oddities.iter().filter(|oddity| !allowed(oddity));
        refused.min_by_key(|oddity| oddity.at).copied()
    }

    /// A decoded segment, counted from 0; `None` behind the last one.
    pub fn segment(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[begin..end])
    }

    /// The decoded segments from this one on.
    pub fn segments_from(&self, index: usize) -> impl Iterator<Item = &str> {
        (index..).map_while(|index| self.segment(index))
    }

    /// True if a `/` follows the last segment. Never for `/` alone.
    pub const fn trailing_slash(&self) -> bool {
        self.trailing_slash
    }

    fn note(&mut self, what: PathProblem, at: usize) {
        if self.oddities.iter().all(|known| known.what != what) {
            self.oddities.push(Ambiguity { what, at });
        }
    }

    /// Decodes one segment that starts at byte `start` of the path, and adds it to the text.
    fn decode(&mut self, raw: &str, start: usize, text: &mut Vec<u8>) -> Result<(), Ambiguity> {
        let bytes = raw.as_bytes();
        let begin = text.len();
        let mut i = 0;
        while let Some(&byte) = bytes.get(i) {
            let at = start + i;
            let escaped = byte == b'%';
            let Some(value) = unescaped(bytes, i) else {
                return refuse(PathProblem::BrokenEscape, at);
            };
            match value {
                0..=0x1f | 0x7f => return refuse(PathProblem::Control, at),
                b';' => self.note(PathProblem::Semicolon, at),
                b'\\' => self.note(PathProblem::Backslash, at),
                b'/' => self.note(PathProblem::EncodedSlash, at),
                b'?' | b'#' if escaped => self.note(PathProblem::EncodedEnd, at),
                _ if escaped => {}
                b' ' | b'?' | b'#' | 0x80.. => return refuse(PathProblem::NotInAPath, at),
                b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                    self.note(PathProblem::RawCharacter, at);
                }
                _ => {}
            }
            text.push(value);
            i += if escaped { 3 } else { 1 };
        }
        let Ok(text) = std::str::from_utf8(&text[begin..]) else {
            return refuse(PathProblem::NotUtf8, start);
        };
        if has_control(text) {
            return refuse(PathProblem::Control, start);
        }
        if hides_dot_segment(text) {
            return refuse(PathProblem::DotSegment, start);
        }
        if has_escape(text) {
            self.note(PathProblem::DoubleEncoding, start);
        }
        Ok(())
    }
}

const fn refuse<T>(what: PathProblem, at: usize) -> Result<T, Ambiguity> {
    Err(Ambiguity { what, at })
}

/// True if a decoded segment is a dot segment, or may become one for a server that cuts at `;`, or
/// splits at a decoded `/`. Behind the oddities that no route lets through, it may be one too.
fn hides_dot_segment(segment: &str) -> bool {
    segment
        .split('/')
        .any(|piece| matches!(piece.split(';').next(), Some("." | "..")))
}

/// True if a decoded text has something in it that can be decoded again.
fn has_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut percents = (0..bytes.len()).filter(|at| bytes[*at] == b'%');
    percents.any(|at| unescaped(bytes, at).is_some())
}

/// True if the text has a control character: C0, DEL, or C1 (U+0080 to U+009F).
pub(super) fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// The byte at this place, or the one that the escape there (`%XX`) stands for. `None`: the escape
/// is broken.
pub(crate) fn unescaped(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
    match bytes[at] {
        b'%' => u8::try_from(digit(at + 1)? << 4 | digit(at + 2)?).ok(),
        byte => Some(byte),
    }
}

#[cfg(test)]
mod tests;
