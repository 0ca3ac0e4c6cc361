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

/// A spelling that servers read in several ways. A route may let some of them through: those whose
/// discriminant is an index in [`Allow::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Oddity {
    Semicolon,
    EmptySegment,
    EncodedSlash,
    RawCharacter,
    // No route lets these through.
    Backslash,
    EncodedQuestionMark,
    EncodedHash,
    DoubleEncoding,
}

const ODDITIES: [Oddity; 8] = [
    Oddity::Semicolon,
    Oddity::EmptySegment,
    Oddity::EncodedSlash,
    Oddity::RawCharacter,
    Oddity::Backslash,
    Oddity::EncodedQuestionMark,
    Oddity::EncodedHash,
    Oddity::DoubleEncoding,
];

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

    fn lets(self, oddity: Oddity) -> bool {
        oddity < Oddity::Backslash && self.0[oddity as usize]
    }

    /// Allows one oddity. `false`: the name is unknown.
    pub fn set(&mut self, name: &str) -> bool {
        match Self::NAMES.iter().position(|known| *known == name) {
            Some(i) => {
                self.0[i] = true;
                true
            }
            None => false,
        }
    }

    /// True if the oddity of this name is allowed.
    #[must_use]
    pub fn allows(self, name: &str) -> bool {
        Self::NAMES
            .iter()
            .position(|known| *known == name)
            .is_some_and(|i| self.0[i])
    }
}

/// The reason for refusing a path: the part at fault, its place, and the spelling to send instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguity {
    what: PathProblem,
    /// Byte offset in the raw path.
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathProblem {
    NoLeadingSlash,
    BrokenEscape,
    NotUtf8,
    Control,
    NotAscii,
    NotInAPath(u8),
    Fragment,
    DotSegment,
    Odd(Oddity),
}

impl Ambiguity {
    /// Its byte offset in the raw path, from 0.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }
}

impl fmt::Display for Ambiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the path: ", self.at + 1)?;
        match self.what {
            PathProblem::NoLeadingSlash => f.write_str("a path starts with `/`"),
            PathProblem::BrokenEscape => {
                f.write_str("a `%` without two hexadecimal digits behind it; a literal one is `%25`")
            }
            PathProblem::NotUtf8 => f.write_str(
                "the escapes of this segment don't decode to UTF-8; escape the UTF-8 bytes of the text",
            ),
            PathProblem::Control => f.write_str("a control character, raw or escaped; leave it out"),
            PathProblem::NotAscii => f.write_str("a raw byte outside ASCII; escape its UTF-8 bytes with `%`"),
            PathProblem::NotInAPath(byte) => {
                write!(f, "a raw `{}`; a path has it only as `%{byte:02X}`", char::from(byte))
            }
            PathProblem::Fragment => f.write_str("a fragment (`#…`) is never sent; leave it out"),
            PathProblem::DotSegment => f.write_str(
                "a dot segment (`.` or `..`, in any spelling); send the path with it resolved",
            ),
            PathProblem::Odd(oddity) => {
                f.write_str(match oddity {
                    Oddity::Semicolon => {
                        "a `;` (raw or `%3B`), where some servers cut the segment; leave it out"
                    }
                    Oddity::EmptySegment => {
                        "an empty segment (`//`), which some servers drop; send a single `/`"
                    }
                    Oddity::EncodedSlash => {
                        "an encoded slash (`%2F`), which some servers take for `/`; leave it out"
                    }
                    Oddity::RawCharacter => {
                        "a character that a path has only in its escaped form (RFC 3986, 3.3); escape it"
                    }
                    Oddity::Backslash => {
                        "a backslash (raw or `%5C`), which some servers take for `/`; leave it out"
                    }
                    Oddity::EncodedQuestionMark => {
                        "an encoded question mark (`%3F`), where some servers end the path; leave it out"
                    }
                    Oddity::EncodedHash => {
                        "an encoded hash (`%23`), where some servers end the path; leave it out"
                    }
                    Oddity::DoubleEncoding => {
                        "an encoded `%` before two hexadecimal digits, which some servers decode \
                         again; encode the text once"
                    }
                })?;
                if oddity >= Oddity::Backslash {
                    return Ok(());
                }
                write!(
                    f,
                    ", or put `allow: [{}]` on the route if it is right for the upstream",
                    Allow::NAMES[oddity as usize]
                )
            }
        }
    }
}

impl std::error::Error for Ambiguity {}

/// A path that has one reading; decoded exactly once. Some soft oddities may be in it: ask
/// [`Self::oddity_not_in`] with what the route allows, and with `Allow::default()` where no route
/// matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPath {
    segments: Vec<String>,
    trailing_slash: bool,
    /// The first position of each oddity, by the order of [`ODDITIES`].
    oddities: [Option<usize>; ODDITIES.len()],
}

impl CheckedPath {
    /// Splits and decodes the path of a request target, without its query.
    pub fn parse(raw_path: &str) -> Result<Self, Ambiguity> {
        let Some(rest) = raw_path.strip_prefix('/') else {
            return Err(Ambiguity {
                what: PathProblem::NoLeadingSlash,
                at: 0,
            });
        };
        let mut path = Self {
            segments: Vec::new(),
            trailing_slash: false,
            oddities: [None; ODDITIES.len()],
        };
        let mut at = 1;
        let mut raw_segments = rest.split('/').peekable();
        while let Some(raw) = raw_segments.next() {
            if !raw.is_empty() {
                let segment = path.decode(raw, at)?;
                path.segments.push(segment);
            } else if raw_segments.peek().is_some() {
                path.note(Oddity::EmptySegment, at);
            } else {
                // `/` alone is the root, not a root with a trailing slash.
                path.trailing_slash = !path.segments.is_empty();
            }
            at += raw.len() + 1;
        }
        Ok(path)
    }

    /// The first oddity in the path that `allow` does not let through.
    #[must_use]
    pub fn oddity_not_in(&self, allow: Allow) -> Option<Ambiguity> {
        let refused = ODDITIES
            .iter()
            .zip(self.oddities)
            .filter(|(oddity, _)| !allow.lets(**oddity));
        refused
            .filter_map(|(oddity, at)| {
                Some(Ambiguity {
                    what: PathProblem::Odd(*oddity),
                    at: at?,
                })
            })
            .min_by_key(Ambiguity::offset)
    }

    /// The decoded segments; none is empty. `/` has none.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// True if a `/` follows the last segment. Never for `/` alone.
    #[must_use]
    pub const fn trailing_slash(&self) -> bool {
        self.trailing_slash
    }

    fn note(&mut self, oddity: Oddity, at: usize) {
        self.oddities[oddity as usize].get_or_insert(at);
    }

    /// Decodes one segment that starts at byte `start` of the path.
    fn decode(&mut self, raw: &str, start: usize) -> Result<String, Ambiguity> {
        let refuse = |what, at| Err(Ambiguity { what, at });
        let bytes = raw.as_bytes();
        let mut decoded = Vec::with_capacity(bytes.len());
        let digit = |i| bytes.get(i).copied().and_then(hex_digit);
        // The start of a decoded `%`, and how many digits follow it so far.
        let mut percent = None;
        let mut i = 0;
        while let Some(&byte) = bytes.get(i) {
            let at = start + i;
            let (value, length) = if byte == b'%' {
                match (digit(i + 1), digit(i + 2)) {
                    (Some(high), Some(low)) => (high << 4 | low, 3),
                    _ => return refuse(PathProblem::BrokenEscape, at),
                }
            } else {
                (byte, 1)
            };
            let escaped = length == 3;
            percent = match percent {
                _ if value == b'%' => Some((at, 0)),
                Some((begun, 0)) if value.is_ascii_hexdigit() => Some((begun, 1)),
                Some((begun, _)) if value.is_ascii_hexdigit() => {
                    self.note(Oddity::DoubleEncoding, begun);
                    None
                }
                _ => None,
            };
            match value {
                0..=0x1f | 0x7f => return refuse(PathProblem::Control, at),
                b';' => self.note(Oddity::Semicolon, at),
                b'\\' => self.note(Oddity::Backslash, at),
                b'/' => self.note(Oddity::EncodedSlash, at),
                b'?' if escaped => self.note(Oddity::EncodedQuestionMark, at),
                b'#' if escaped => self.note(Oddity::EncodedHash, at),
                _ if escaped => {}
                b'#' => return refuse(PathProblem::Fragment, at),
                b' ' | b'?' => return refuse(PathProblem::NotInAPath(value), at),
                b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                    self.note(Oddity::RawCharacter, at);
                }
                0x80.. => return refuse(PathProblem::NotAscii, at),
                _ => {}
            }
            decoded.push(value);
            i += length;
        }
        let Ok(text) = String::from_utf8(decoded) else {
            return refuse(PathProblem::NotUtf8, start);
        };
        if has_control(&text) {
            return refuse(PathProblem::Control, start);
        }
        if hides_dot_segment(&text) {
            return refuse(PathProblem::DotSegment, start);
        }
        Ok(text)
    }
}

/// True if a decoded segment is a dot segment, or may become one for a server that cuts at `;`, or
/// splits at a decoded `/`. Behind the oddities that no route lets through, it may be one too.
fn hides_dot_segment(segment: &str) -> bool {
    segment
        .split('/')
        .any(|piece| matches!(piece.split(';').next(), Some("." | "..")))
}

/// True if the text has a control character: C0, DEL, or C1 (U+0080 to U+009F).
pub(super) fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// The value of an ASCII hexadecimal digit.
pub(super) fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
