//! Paths: what is accepted has one reading, whatever server reads it, and keeps it in every
//! spelling.
//!
//! The first byte of an input says what the route allows, a bit for each of [`Allow::NAMES`]; the
//! rest is the path.

use fencepost::routing::{Allow, CheckedPath};

use crate::spell::{decode, escape_unreserved, flip_escapes, path_of, unreserved};
use crate::{Seen, Verdict, hold, target};

target!("path", &real);

/// The reading of a path by the function under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub segments: Vec<String>,
    pub slash: bool,
}

/// The function under test.
pub type Parse = dyn Fn(&str, Allow) -> Result<Read, String>;

/// The proxy's reading of a path on a route that allows this.
pub fn real(raw: &str, allow: Allow) -> Result<Read, String> {
    let path = CheckedPath::parse(raw).map_err(|ambiguity| {
        assert!(ambiguity.at <= raw.len(), "{raw}: {ambiguity}");
        ambiguity.to_string()
    })?;
    match path.oddity_not_in(allow) {
        Some(oddity) => {
            assert!(oddity.at < raw.len(), "{raw}: {oddity}");
            Err(oddity.to_string())
        }
        None => Ok(Read {
            segments: path.segments_from(0).map(str::to_owned).collect(),
            slash: path.trailing_slash(),
        }),
    }
}

/// The spellings that the bits of a byte allow.
#[must_use]
pub fn allow_of(bits: u8) -> Allow {
    let mut allow = Allow::default();
    for (i, name) in Allow::NAMES.iter().enumerate() {
        if bits >> i & 1 == 1 {
            allow.set(name);
        }
    }
    allow
}

pub fn check_of(parse: &Parse, data: &[u8]) -> Verdict {
    let Some((bits, raw)) = data.split_first() else {
        return Ok(Seen::Refused);
    };
    let Ok(raw) = std::str::from_utf8(raw) else {
        return Ok(Seen::Refused);
    };
    let allow = allow_of(*bits);
    let read = match parse(raw, allow) {
        Ok(read) => read,
        Err(message) => {
            hold!(
                message.starts_with("byte "),
                "a refusal without a place: {message}"
            );
            let strict = parse(raw, Allow::default());
            hold!(
                strict.is_err(),
                "{raw} is refused where more is allowed: {message}"
            );
            return Ok(Seen::Refused);
        }
    };
    for segment in &read.segments {
        let dots = |piece: &str| matches!(piece.split(';').next(), Some("." | ".."));
        hold!(!segment.is_empty(), "{raw} has an empty segment");
        hold!(
            !segment.split(['/', '\\']).any(dots),
            "{raw} has a dot segment"
        );
        hold!(
            !segment.chars().any(char::is_control),
            "{raw} has a control character"
        );
    }
    for server in Server::all(allow) {
        let found = server.reads(raw);
        let same = found.0.len() == read.segments.len()
            && found
                .0
                .iter()
                .zip(&read.segments)
                .all(|(a, b)| a == b.as_bytes())
            && found.1 == read.slash;
        hold!(
            same,
            "{raw} is {read:?} here, and to {server:?} it is {:?}",
            found
                .0
                .iter()
                .map(|s| s.escape_ascii().to_string())
                .collect::<Vec<_>>()
        );
    }
    for spelling in [
        flip_escapes(raw),
        escape_unreserved(raw),
        path_of(&read.segments, read.slash, unreserved),
        path_of(&read.segments, read.slash, |_| false),
    ] {
        match parse(&spelling, allow) {
            Ok(again) => hold!(
                again == read,
                "{raw} is {read:?}, and {spelling}, which is the same, is {again:?}"
            ),
            Err(message) => {
                return Err(format!(
                    "{spelling} is refused, and {raw} is not: {message}"
                ));
            }
        }
    }
    Ok(Seen::Accepted)
}

/// A way in which servers read paths.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a habit of its own, and all mixtures occur"
)]
struct Server {
    /// Decodes the whole path before it splits it, so that an escaped slash separates.
    decodes_first: bool,
    /// Takes a backslash for a slash.
    backslash: bool,
    /// Cuts segments at a `;`.
    cuts: bool,
    /// Drops empty segments.
    merges: bool,
    /// Resolves dot segments before it decodes, or behind.
    dots_first: bool,
    /// Decodes again what it has decoded.
    decodes_twice: bool,
    /// Cuts segments at a `?` or `#` that was escaped.
    cuts_decoded: bool,
}

impl Server {
    /// Every mixture but those of which the operator says that the upstream is not like that.
    fn all(allow: Allow) -> impl Iterator<Item = Self> {
        (0..128_u8).filter_map(move |bits| {
            let bit = |i: u8| bits >> i & 1 == 1;
            let server = Self {
                decodes_first: bit(0),
                backslash: bit(1),
                cuts: bit(2),
                merges: bit(3),
                dots_first: bit(4),
                decodes_twice: bit(5),
                cuts_decoded: bit(6),
            };
            let ruled_out = server.decodes_first && allow.allows("encoded-slash")
                || server.cuts && allow.allows("semicolon")
                || !server.merges && allow.allows("empty-segments");
            (!ruled_out).then_some(server)
        })
    }

    fn reads(self, raw: &str) -> (Vec<Vec<u8>>, bool) {
        let body = raw.strip_prefix('/').unwrap_or(raw).as_bytes();
        let decode = |bytes: &[u8]| {
            let once = decode(bytes);
            if self.decodes_twice {
                decode(&once)
            } else {
                once
            }
        };
        let whole = if self.decodes_first {
            decode(body)
        } else {
            body.to_vec()
        };
        let mut segments: Vec<Vec<u8>> = whole
            .split(|b| *b == b'/' || self.backslash && *b == b'\\')
            .map(<[u8]>::to_vec)
            .collect();
        if self.dots_first {
            segments = resolve(segments);
        }
        if !self.decodes_first {
            segments = segments.iter().map(|segment| decode(segment)).collect();
        }
        if self.backslash {
            segments = segments
                .iter()
                .flat_map(|segment| segment.split(|b| *b == b'\\').map(<[u8]>::to_vec))
                .collect();
        }
        if self.cuts {
            for segment in &mut segments {
                if let Some(end) = segment.iter().position(|b| *b == b';') {
                    segment.truncate(end);
                }
            }
        }
        if self.cuts_decoded {
            for segment in &mut segments {
                if let Some(end) = segment.iter().position(|b| matches!(b, b'?' | b'#')) {
                    segment.truncate(end);
                }
            }
        }
        segments = resolve(segments);
        let slash = segments.len() > 1 && segments.last().is_some_and(Vec::is_empty);
        if segments.last().is_some_and(Vec::is_empty) {
            segments.pop();
        }
        if self.merges {
            segments.retain(|segment| !segment.is_empty());
        }
        let slash = slash && !segments.is_empty();
        (segments, slash)
    }
}

/// RFC 3986, 5.2.4.
fn resolve(segments: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut resolved = Vec::new();
    let last = segments.len() - 1;
    for (i, segment) in segments.into_iter().enumerate() {
        let dots = match &segment[..] {
            b"." => true,
            b".." => {
                resolved.pop();
                true
            }
            _ => false,
        };
        if !dots {
            resolved.push(segment);
        } else if i == last {
            resolved.push(Vec::new());
        }
    }
    resolved
}
