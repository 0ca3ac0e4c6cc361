//! What the heads of requests and responses and the trailer sections have in common: their limits,
//! their end, and the bytes that names and values may have.

use std::ops::Range;
use std::time::Duration;

use memchr::memchr;

/// The limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes from the first of the start line to the end of the empty line.
    pub bytes: usize,
    /// Field lines.
    pub fields: usize,
    /// Bytes of a request's target.
    pub target: usize,
}

/// The reason for refusing a message. The texts are for the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("{0}")]
    Malformed(&'static str),
    /// This byte in the target.
    #[error("the byte 0x{0:02x} in the target; escape it as `%{0:02X}`")]
    Target(u8),
    #[error("CONNECT")]
    Connect,
    /// Another version of HTTP.
    #[error("neither HTTP/1.1 nor HTTP/1.0")]
    Version,
    /// More bytes than `HeadLimits::target`.
    #[error("a target of more than {0} bytes (limits.target_bytes)")]
    TargetLong(usize),
    /// More bytes than `HeadLimits::bytes`.
    #[error("more than {0} bytes (limits.header_bytes; of a response, upstream.header_bytes)")]
    Bytes(usize),
    /// More lines than `HeadLimits::fields`.
    #[error("more than {0} field lines (limits.header_count)")]
    Fields(usize),
    /// The head was not whole in this time.
    #[error("the head was incomplete after {}s (limits.head_timeout)", .0.as_secs_f64())]
    Slow(Duration),
}

pub(super) const LINE_END: MessageError =
    MessageError::Malformed("a CR or LF alone; end every line with CRLF");
pub(super) const FOLDED: MessageError = MessageError::Malformed(
    "a line starts with white space (a folded field, RFC 9112, 5.2); put each field on one line",
);
pub(super) const NOT_A_FIELD: MessageError = MessageError::Malformed(
    "a field line is not a name, a colon, and a value; no white space may be before the colon",
);
pub(super) const CONTROL_BYTE: MessageError =
    MessageError::Malformed("a control byte in the value of a field");
pub(super) const REPEATED: MessageError = MessageError::Malformed(
    "Host, Content-Length, Expect or Upgrade is given more than once; send one line",
);

/// Looks for the empty line behind a head that comes piece by piece. It remembers how far it has
/// looked, so that a head that comes byte by byte is still searched once.
///
/// A line ends at its LF here, as for the laxest reader. Whoever reads the lines then refuses an end
/// that another reader would not see.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeadEnd {
    /// The start of the current line.
    line: usize,
    /// The position up to which it has no LF.
    clean: usize,
    /// The lines before it.
    pub lines: usize,
}

impl HeadEnd {
    /// The length of the head, up to the end of its empty line. `None`: it is not whole. `bytes` has
    /// the bytes of the last call, from the first byte of the head on, and new ones.
    pub fn find(
        &mut self,
        bytes: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<usize>, MessageError> {
        let head = &bytes[..bytes.len().min(limits.bytes)];
        loop {
            let length = match &head[self.line..] {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                _ => 0,
            };
            if length > 0 {
                return Ok(Some(self.line + length));
            }
            let Some(found) = memchr(b'\n', &head[self.clean..]) else {
                self.clean = head.len();
                return if head.len() < limits.bytes {
                    Ok(None)
                } else {
                    Err(MessageError::Bytes(limits.bytes))
                };
            };
            self.line = self.clean + found + 1;
            self.clean = self.line;
            self.lines += 1;
            // One more is the start line.
            if self.lines > limits.fields + 1 {
                return Err(MessageError::Fields(limits.fields));
            }
        }
    }
}

/// Reads the field line at `begin` of a head, strictly. It ends with CRLF alone. RFC 9112, 2.2 lets
/// a recipient accept a bare LF, but the upstream may not accept it, or may accept a bare CR as
/// well. The name is a token that touches the colon. The value has no control byte except HTAB
/// (RFC 9110, 5.5), and is not folded (RFC 9112, 5.2).
///
/// Returns the places of the name and of the value without the white space around it, and where the
/// next line begins.
pub(super) fn field_line(
    head: &[u8],
    begin: usize,
) -> Result<(Range<usize>, Range<usize>, usize), MessageError> {
    let colon = begin + length_of(&head[begin..], is_tchar);
    match head.get(colon) {
        Some(b':') if colon > begin => {}
        Some(b' ' | b'\t') if colon == begin => return Err(FOLDED),
        Some(b'\n') => return Err(LINE_END),
        _ => return Err(NOT_A_FIELD),
    }
    let start = colon + 1 + length_of(&head[colon + 1..], is_blank);
    let end = start + length_of(&head[start..], is_in_value);
    match head[end..] {
        [b'\r', b'\n', ..] => {}
        [b'\r' | b'\n', ..] => return Err(LINE_END),
        _ => return Err(CONTROL_BYTE),
    }
    let value = start..start + trim(&head[start..end]).len();
    Ok((begin..colon, value, end + 2))
}

/// The number of bytes before the first that is not such a one.
pub(super) fn length_of(bytes: &[u8], such: impl Fn(u8) -> bool) -> usize {
    let other = bytes.iter().position(|byte| !such(*byte));
    other.unwrap_or(bytes.len())
}

/// The number up to 2^63-1 that has these digits, and no sign.
pub(crate) fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
    let text = std::str::from_utf8(digits).ok();
    let text = text.filter(|_| digits.iter().all(is_digit))?;
    i64::from_str_radix(text, radix).ok()?.try_into().ok()
}

/// True if both names are the same to a server that turns fields into variables, as in CGI
/// (RFC 3875, 4.1.18): case is ignored, and every sign counts as `-`.
pub fn same_name(name: &[u8], other: &str) -> bool {
    let plain = |(a, b): (&u8, &u8)| plain(*a) == plain(*b);
    name.len() == other.len() && name.iter().zip(other.as_bytes()).all(plain)
}

/// One letter of a name, as [`same_name`] compares it.
pub const fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() {
        byte.to_ascii_lowercase()
    } else {
        b'-'
    }
}

/// True if these bytes are a token (RFC 9110, 5.6.2).
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_tchar(*byte))
}

/// True if a token may have this byte.
pub const fn is_tchar(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// True if a field's value may have this byte: visible ASCII, space, HTAB, or obs-text.
pub const fn is_in_value(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Removes the optional white space around a value: spaces and tabs only.
pub fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 100,
        fields: 3,
        target: 0,
    };

    #[test]
    fn a_head_ends_with_its_empty_line_whatever_the_pieces_are() {
        for (bytes, length) in [
            (
                &b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n\r\n"[..],
                Some(34),
            ),
            (b"a\n\nb", Some(3)),
            (b"a\r\n\nb", Some(4)),
            (b"a\n\r\nb", Some(4)),
            (b"\r\nb", Some(2)),
            (b"\nb", Some(1)),
            (b"a\r\n\r", None),
            (b"a\r\r\nb\r\n", None),
            (b"", None),
        ] {
            let case = bytes.escape_ascii();
            assert_eq!(
                HeadEnd::default().find(bytes, &LIMITS),
                Ok(length),
                "{case}"
            );
            let mut reader = HeadEnd::default();
            let mut found = (0..=bytes.len()).map(|end| reader.find(&bytes[..end], &LIMITS));
            let found = found.find(|found| *found != Ok(None));
            assert_eq!(found, length.map(|length| Ok(Some(length))), "{case}");
        }
        let long = [b'a'; 100];
        assert_eq!(HeadEnd::default().find(&long[..99], &LIMITS), Ok(None));
        let error = Err(MessageError::Bytes(100));
        assert_eq!(HeadEnd::default().find(&long, &LIMITS), error);
        let many = b"start\r\n1\r\n2\r\n3\r\n4\r\n";
        assert_eq!(HeadEnd::default().find(&many[..16], &LIMITS), Ok(None));
        let error = Err(MessageError::Fields(3));
        assert_eq!(HeadEnd::default().find(many, &LIMITS), error);
    }

    #[test]
    fn fields_are_read_to_the_letter() {
        let parts = |line: &'static [u8]| {
            let (name, value, next) = field_line(line, 0)?;
            Ok((&line[name], &line[value], next))
        };
        for (line, name, value) in [
            (&b"A: b\r\n"[..], &b"A"[..], &b"b"[..]),
            (b"A:b\r\n", b"A", b"b"),
            (b"A: \t b \xe9\tc\t \r\n", b"A", b"b \xe9\tc"),
            (b"A:\r\n", b"A", b""),
            (b"A: \t\r\n", b"A", b""),
            (
                b"!#$%&'*+-.^_`|~09azAZ: :\r\n",
                b"!#$%&'*+-.^_`|~09azAZ",
                b":",
            ),
        ] {
            assert_eq!(parts(line), Ok((name, value, line.len())));
        }
        for (line, error) in [
            (&b" A: b\r\n"[..], FOLDED),
            (b"\tA: b\r\n", FOLDED),
            (b"A\r\n", NOT_A_FIELD),
            (b": b\r\n", NOT_A_FIELD),
            (b"A : b\r\n", NOT_A_FIELD),
            (b"A\t: b\r\n", NOT_A_FIELD),
            (b"A b: c\r\n", NOT_A_FIELD),
            (b"A\x0b: b\r\n", NOT_A_FIELD),
            (b"A\0: b\r\n", NOT_A_FIELD),
            (b"A\xe9: b\r\n", NOT_A_FIELD),
            (b"A(: b\r\n", NOT_A_FIELD),
            (b"A: b\0\r\n", CONTROL_BYTE),
            (b"A: \x0bb\r\n", CONTROL_BYTE),
            (b"A: b\x7f\r\n", CONTROL_BYTE),
            (b"A: b\x1f\r\n", CONTROL_BYTE),
            (b"A: b\n", LINE_END),
            (b"A\n", LINE_END),
            (b"\n", LINE_END),
            (b"A: b\rc\r\n", LINE_END),
            (b"A: b\r\r\n", LINE_END),
        ] {
            assert_eq!(parts(line), Err(error), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn names_are_the_same_to_a_server_that_makes_variables_of_them() {
        assert!(same_name(b"Content_LENGTH", "content-length"));
        assert!(same_name(b"content.length", "content-length"));
        assert!(!same_name(b"contentlength", "content-length"));
    }
}
