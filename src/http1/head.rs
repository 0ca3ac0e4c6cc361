//! Lines and fields, which heads of requests and responses and trailers have in common, and how
//! fields frame a body.
//!
//! Lines end with CRLF alone. RFC 9112, 2.2 lets a recipient accept a bare LF, but the upstream may
//! not accept it, or may accept a bare CR as well. Names are tokens that touch the colon. Values
//! have no control bytes except HTAB (RFC 9110, 5.5). No line is folded (RFC 9112, 5.2).

use std::fmt;
use std::ops::Range;

/// The framing of a message that its fields announce (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Neither `Content-Length` nor `Transfer-Encoding`. A request has no content then, and a
    /// response ends with its connection.
    None,
    /// This many bytes, at most 2^63-1.
    Length(u64),
    Chunked,
}

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

/// The reason for refusing a head or a trailer section. The texts are for the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    BareLf,
    BareCr,
    /// A line that starts with a space or tab: obs-fold, or white space before the first field.
    Folded,
    /// A field line without a colon.
    NoColon,
    EmptyName,
    /// This byte in a field's name.
    Name(u8),
    /// White space between a field's name and its colon.
    SpaceBeforeColon,
    /// This byte in a field's value.
    Value(u8),
    /// More than one line of a field that may have one. Equal lines too, since readers differ on
    /// which they take.
    Repeated(&'static str),
    /// A name that some servers take for this one (`Content_Length`).
    Twin(&'static str),
    /// `Content-Length` is not 1*DIGIT, or more than 2^63-1.
    Length,
    /// `Transfer-Encoding` is not `chunked` and nothing else.
    Coding,
    /// Both `Content-Length` and `Transfer-Encoding`.
    TwoFramings,
    /// More bytes than `HeadLimits::bytes`.
    Bytes(usize),
    /// More lines than `HeadLimits::fields`.
    Fields(usize),
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BareLf => f.write_str("a line ends with LF alone; end every line with CRLF"),
            Self::BareCr => f.write_str("a CR that no LF follows; end every line with CRLF"),
            Self::Folded => f.write_str(
                "a line starts with white space (a folded field, RFC 9112, 5.2); put each field on one line",
            ),
            Self::NoColon => f.write_str("a field line without a colon"),
            Self::EmptyName => f.write_str("a field without a name"),
            Self::Name(byte) => write!(f, "the byte 0x{byte:02x} in the name of a field"),
            Self::SpaceBeforeColon => f.write_str("white space between a field's name and its colon"),
            Self::Value(byte) => write!(f, "the byte 0x{byte:02x} in the value of a field"),
            Self::Repeated(name) => write!(f, "{name} is given more than once; send one line"),
            Self::Twin(name) => {
                write!(f, "a name that some servers take for {name}; send {name} only")
            }
            Self::Length => f.write_str(
                "Content-Length is not one decimal number up to 9223372036854775807",
            ),
            Self::Coding => f.write_str(
                "Transfer-Encoding is not exactly `chunked`, the one coding that is taken here",
            ),
            Self::TwoFramings => f.write_str(
                "both Content-Length and Transfer-Encoding; the end of the body can be read in two ways",
            ),
            Self::Bytes(limit) => write!(f, "more than {limit} bytes (limits.header_bytes)"),
            Self::Fields(limit) => write!(f, "more than {limit} field lines (limits.header_count)"),
        }
    }
}

impl std::error::Error for HeadError {}

/// One field line. The value is without the white space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Field<'a> {
    /// Reads a line without its CRLF.
    pub fn parse(line: &'a [u8]) -> Result<Self, HeadError> {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(HeadError::Folded);
        }
        let end = line
            .iter()
            .position(|byte| !is_tchar(*byte))
            .ok_or(HeadError::NoColon)?;
        let (name, rest) = line.split_at(end);
        match rest {
            [b':', ..] if name.is_empty() => return Err(HeadError::EmptyName),
            [b':', ..] => {}
            [b' ' | b'\t', ..] => return Err(HeadError::SpaceBeforeColon),
            [byte, ..] => return Err(HeadError::Name(*byte)),
            [] => return Err(HeadError::NoColon),
        }
        let value = trim(&rest[1..]);
        match value.iter().find(|byte| !is_in_value(**byte)) {
            Some(byte) => Err(HeadError::Value(*byte)),
            None => Ok(Self { name, value }),
        }
    }

    /// True if this is the field of that name, which is in lower case.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        is_name(self.name, name.as_bytes())
    }
}

/// The position of a field in its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRange {
    pub name: Range<usize>,
    /// Without the white space around it.
    pub value: Range<usize>,
}

/// The field lines of one head, and the framing that they announce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldLines {
    pub ranges: Vec<FieldRange>,
    pub framing: FramingFields,
}

impl FieldLines {
    /// Forgets all lines and keeps the memory for the next head.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.framing = FramingFields::default();
    }

    /// Adds a line that begins at `begin` in the head. Returns its field and the position of its
    /// value.
    pub fn add<'a>(
        &mut self,
        line: &'a [u8],
        begin: usize,
        limits: &HeadLimits,
    ) -> Result<(Field<'a>, Range<usize>), HeadError> {
        if self.ranges.len() == limits.fields {
            return Err(HeadError::Fields(limits.fields));
        }
        let field = Field::parse(line)?;
        self.framing.note(&field)?;
        let name = begin..begin + field.name.len();
        let behind = &line[field.name.len() + 1..];
        let blank = behind.iter().take_while(|byte| is_blank(**byte)).count();
        let value = name.end + 1 + blank;
        let value = value..value + field.value.len();
        self.ranges.push(FieldRange {
            name,
            value: value.clone(),
        });
        Ok((field, value))
    }
}

/// Cuts a head that comes piece by piece into lines. It remembers how far it has looked, so that a
/// head that comes byte by byte is still read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadLines {
    /// A line may end with LF alone.
    bare_lf: bool,
    /// The start of the next line.
    start: usize,
    /// The position up to which it has neither CR nor LF.
    clean: usize,
}

impl HeadLines {
    /// Lines that may end with LF alone, as RFC 9112, 2.2 allows.
    #[must_use]
    pub fn with_bare_lf() -> Self {
        Self {
            bare_lf: true,
            ..Self::default()
        }
    }

    /// The next line without its CRLF. `None`: it is not whole. `head` has the bytes of the last
    /// call, from the first byte of the head on, and new ones.
    pub fn next<'a>(&mut self, head: &'a [u8]) -> Result<Option<&'a [u8]>, HeadError> {
        let Some(found) = position_of_line_end(&head[self.clean..]) else {
            self.clean = head.len();
            return Ok(None);
        };
        let end = self.clean + found;
        self.clean = end;
        let length = match &head[end..] {
            [b'\n', ..] if self.bare_lf => 1,
            [b'\n', ..] => return Err(HeadError::BareLf),
            [b'\r', b'\n', ..] => 2,
            [b'\r'] => return Ok(None),
            _ => return Err(HeadError::BareCr),
        };
        let line = &head[self.start..end];
        self.start = end + length;
        self.clean = self.start;
        Ok(Some(line))
    }

    /// The start of the next line. After the empty line, that is the end of the head.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.start
    }
}

/// The first CR or LF. Eight bytes at a step: this is the one loop over every byte of a head.
fn position_of_line_end(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGHS: u64 = ONES << 7;
    // Exact on whether a byte is zero, but not on which one.
    let has = |word: u64, byte: u8| {
        let zeroed = word ^ (ONES * u64::from(byte));
        zeroed.wrapping_sub(ONES) & !zeroed & HIGHS != 0
    };
    let (words, _) = bytes.as_chunks::<8>();
    let skipped = words
        .iter()
        .map(|word| u64::from_ne_bytes(*word))
        .take_while(|word| !has(*word, b'\r') && !has(*word, b'\n'))
        .count()
        * 8;
    let rest = &bytes[skipped..];
    let found = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    Some(skipped + found)
}

/// The fields of a whole head (behind its start line) or trailer section, up to its empty line.
pub fn fields(section: &[u8]) -> impl Iterator<Item = Result<Field<'_>, HeadError>> {
    let mut lines = HeadLines::default();
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let field = match lines.next(section) {
            Ok(None | Some([])) => None,
            Ok(Some(line)) => Some(Field::parse(line)),
            Err(error) => Some(Err(error)),
        };
        done = !matches!(field, Some(Ok(_)));
        field
    })
}

const LENGTH: &str = "Content-Length";
const CODING: &str = "Transfer-Encoding";

/// The framing field that some servers take this name for: it has another sign in place of the
/// dash.
#[must_use]
pub fn framing_twin(name: &[u8]) -> Option<&'static str> {
    let names = [(LENGTH, "content-length"), (CODING, "transfer-encoding")];
    let twin = names
        .into_iter()
        .find(|(_, lower)| !is_name(name, lower.as_bytes()) && same_name(name, lower));
    twin.map(|(shown, _)| shown)
}

/// The framing that the fields so far announce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramingFields {
    length: Option<u64>,
    chunked: bool,
}

impl FramingFields {
    /// Takes one more field into account.
    pub fn note(&mut self, field: &Field<'_>) -> Result<(), HeadError> {
        if !matches!(field.name.len(), 14 | 17) {
            // Not the length of either name.
            return Ok(());
        }
        if let Some(name) = framing_twin(field.name) {
            return Err(HeadError::Twin(name));
        }
        if field.is("content-length") {
            if self.length.replace(content_length(field.value)?).is_some() {
                return Err(HeadError::Repeated(LENGTH));
            }
        } else if field.is("transfer-encoding") {
            if !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(HeadError::Coding);
            }
            if std::mem::replace(&mut self.chunked, true) {
                return Err(HeadError::Repeated(CODING));
            }
        }
        Ok(())
    }

    /// The framing that all fields together announce.
    pub const fn framing(self) -> Result<Framing, HeadError> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(HeadError::TwoFramings),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, true) => Ok(Framing::Chunked),
            (None, false) => Ok(Framing::None),
        }
    }
}

/// The value of a `Content-Length`: 1*DIGIT (RFC 9110, 8.6), at most 2^63-1. A list of equal
/// numbers is refused, though RFC 9112, 6.3 lets a recipient accept it: the upstream may read it
/// otherwise.
pub fn content_length(value: &[u8]) -> Result<u64, HeadError> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(HeadError::Length);
    }
    let number = value.iter().try_fold(0_i64, |number, digit| {
        number.checked_mul(10)?.checked_add(i64::from(digit - b'0'))
    });
    number
        .and_then(|number| u64::try_from(number).ok())
        .ok_or(HeadError::Length)
}

/// True if the names are the same without case. `lower` is in lower case. Eight bytes at a step:
/// heads are searched for a dozen names.
#[must_use]
pub fn is_name(name: &[u8], lower: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    // Sets 0x20 in each byte from `A` to `Z`. The sums carry into no other byte.
    let lowered = |bytes: &[u8; 8]| {
        let word = u64::from_ne_bytes(*bytes);
        let low = word & (ONES * 0x7f);
        let from_a = low + ONES * (0x80 - 0x41);
        let beyond_z = low + ONES * (0x80 - 0x5b);
        word | (from_a & !beyond_z & !word & (ONES << 7)) >> 2
    };
    let same = |(one, other): (&[u8; 8], &[u8; 8])| lowered(one) == u64::from_ne_bytes(*other);
    if name.len() != lower.len() {
        return false;
    }
    match (name.last_chunk(), lower.last_chunk()) {
        // The last eight bytes overlap with those before them.
        (Some(end), Some(other)) => {
            let words = name.as_chunks().0.iter().zip(lower.as_chunks().0);
            same((end, other)) && words.into_iter().all(same)
        }
        _ => name.eq_ignore_ascii_case(lower),
    }
}

/// True if both names are the same to a server that turns fields into variables, as in CGI
/// (RFC 3875, 4.1.18): case is ignored, and every sign counts as `-`.
#[must_use]
pub fn same_name(name: &[u8], other: &str) -> bool {
    let plain = |(a, b): (&u8, &u8)| plain(*a) == plain(*b);
    name.len() == other.len() && name.iter().zip(other.as_bytes()).all(plain)
}

/// One letter of a name, as [`same_name`] compares it.
#[must_use]
pub const fn plain(byte: u8) -> u8 {
    const TABLE: [u8; 256] = {
        let mut table = [b'-'; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            if byte.is_ascii_alphanumeric() {
                table[byte as usize] = byte.to_ascii_lowercase();
            }
            byte += 1;
        }
        table
    };
    TABLE[byte as usize]
}

/// True if these bytes are a token (RFC 9110, 5.6.2).
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_tchar(*byte))
}

/// True if a token may have this byte.
#[must_use]
pub const fn is_tchar(byte: u8) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            table[byte as usize] = byte.is_ascii_alphanumeric();
            byte += 1;
        }
        let signs = b"!#$%&'*+-.^_`|~";
        let mut at = 0;
        while at < signs.len() {
            table[signs[at] as usize] = true;
            at += 1;
        }
        table
    };
    TABLE[byte as usize]
}

/// True if a field's value may have this byte: visible ASCII, space, HTAB, or obs-text.
#[must_use]
pub const fn is_in_value(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Removes the optional white space around a value: spaces and tabs only.
#[must_use]
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

    #[test]
    fn names_are_the_same_without_case() {
        let texts = [
            "",
            "a",
            "A",
            "te",
            "TE",
            "accept@",
            "ACCEPT`",
            "[ccepted",
            "{CCEPTED",
            "content-length",
            "Content-Length",
            "CONTENT-LENGTH",
            "content_length",
            "Content-Lengti",
            "\u{c3}\u{e3}\u{c1}\u{e1}",
        ];
        for lower in texts.map(str::to_ascii_lowercase) {
            for name in texts {
                let same = name.eq_ignore_ascii_case(&lower);
                assert_eq!(
                    is_name(name.as_bytes(), lower.as_bytes()),
                    same,
                    "{name} {lower}"
                );
            }
        }
        for one in 0..=255_u8 {
            for other in 0..=255_u8 {
                let (name, lower) = ([one; 9], [other.to_ascii_lowercase(); 9]);
                assert_eq!(
                    is_name(&name, &lower),
                    name.eq_ignore_ascii_case(&lower),
                    "{one} {other}"
                );
            }
        }
    }

    fn lines(head: &[u8]) -> Result<Vec<&[u8]>, HeadError> {
        let mut reader = HeadLines::default();
        let mut found = Vec::new();
        while let Some(line) = reader.next(head)? {
            found.push(line);
        }
        Ok(found)
    }

    #[test]
    fn lines_end_with_crlf_only() {
        assert_eq!(lines(b"a\r\nbc\r\n\r\nd"), Ok(vec![&b"a"[..], b"bc", b""]));
        assert_eq!(lines(b"a\nb\r\n"), Err(HeadError::BareLf));
        assert_eq!(lines(b"\n"), Err(HeadError::BareLf));
        assert_eq!(lines(b"a\rb\r\n"), Err(HeadError::BareCr));
        assert_eq!(lines(b"a\r\r\n"), Err(HeadError::BareCr));
        assert_eq!(lines(b"a\r"), Ok(vec![]));
    }

    #[test]
    fn a_line_that_comes_in_pieces_is_the_same_line() {
        let whole =
            b"GET / HTTP/1.1\r\nHost: app.test\r\nX-Long: 0123456789abcdef0123456789\r\n\r\n";
        let mut reader = HeadLines::default();
        let mut found = Vec::new();
        for end in 0..=whole.len() {
            while let Some(line) = reader.next(&whole[..end]).expect("well-formed") {
                found.push(line.to_vec());
            }
        }
        assert_eq!(found, lines(whole).expect("well-formed"));
        assert_eq!(reader.position(), whole.len());
    }

    #[test]
    fn the_line_end_is_found_wherever_it_stands() {
        for length in 0..40 {
            for at in 0..length {
                for end in [b'\r', b'\n'] {
                    // Neighbours that differ by one bit, or by what the word trick borrows.
                    for filler in [
                        b'\x0c', b'\x0e', b'\x0b', b'\x09', b'a', 0x8d, 0x8a, 0xff, 0,
                    ] {
                        let mut bytes = vec![filler; length];
                        bytes[at] = end;
                        assert_eq!(position_of_line_end(&bytes), Some(at));
                        bytes[at] = filler;
                        assert_eq!(position_of_line_end(&bytes), None);
                    }
                }
            }
        }
    }

    #[test]
    fn fields_are_read_to_the_letter() {
        let parse = |line: &'static [u8]| Field::parse(line).map(|field| (field.name, field.value));
        assert_eq!(parse(b"A: b"), Ok((&b"A"[..], &b"b"[..])));
        assert_eq!(parse(b"A:b"), Ok((&b"A"[..], &b"b"[..])));
        assert_eq!(
            parse(b"A: \t b \xe9\tc\t "),
            Ok((&b"A"[..], &b"b \xe9\tc"[..]))
        );
        assert_eq!(parse(b"A:"), Ok((&b"A"[..], &b""[..])));
        assert_eq!(
            parse(b"!#$%&'*+-.^_`|~09azAZ: :"),
            Ok((&b"!#$%&'*+-.^_`|~09azAZ"[..], &b":"[..]))
        );
        for (line, error) in [
            (&b" A: b"[..], HeadError::Folded),
            (b"\tA: b", HeadError::Folded),
            (b"A", HeadError::NoColon),
            (b": b", HeadError::EmptyName),
            (b"A : b", HeadError::SpaceBeforeColon),
            (b"A\t: b", HeadError::SpaceBeforeColon),
            (b"A b: c", HeadError::SpaceBeforeColon),
            (b"A\x0b: b", HeadError::Name(0x0b)),
            (b"A\0: b", HeadError::Name(0)),
            (b"A\xe9: b", HeadError::Name(0xe9)),
            (b"A(: b", HeadError::Name(b'(')),
            (b"A: b\0", HeadError::Value(0)),
            (b"A: \x0bb", HeadError::Value(0x0b)),
            (b"A: b\x7f", HeadError::Value(0x7f)),
            (b"A: b\x1f", HeadError::Value(0x1f)),
        ] {
            assert_eq!(Field::parse(line), Err(error), "{}", line.escape_ascii());
            assert!(error.to_string().len() > 10);
        }
    }

    #[test]
    fn fields_frame_a_body_in_one_way_or_not_at_all() {
        let framing = |section: &'static [u8]| {
            let mut noted = FramingFields::default();
            for field in fields(section) {
                noted.note(&field?)?;
            }
            noted.framing()
        };
        assert_eq!(framing(b"A: b\r\n\r\n"), Ok(Framing::None));
        assert_eq!(
            framing(b"Content-Length: 0\r\n\r\n"),
            Ok(Framing::Length(0))
        );
        assert_eq!(
            framing(b"content-LENGTH:\t007 \r\n\r\n"),
            Ok(Framing::Length(7))
        );
        assert_eq!(
            framing(b"Content-Length: 9223372036854775807\r\n\r\n"),
            Ok(Framing::Length(i64::MAX.unsigned_abs()))
        );
        assert_eq!(
            framing(b"Transfer-Encoding: Chunked\r\n\r\n"),
            Ok(Framing::Chunked)
        );
        for length in [
            "",
            "+1",
            "-1",
            "1,1",
            "1, 1",
            "0x1",
            "1.0",
            "1e1",
            "1 1",
            "9223372036854775808",
            "\u{661}",
            "1;",
            "\"1\"",
        ] {
            assert_eq!(
                content_length(length.as_bytes()),
                Err(HeadError::Length),
                "{length}"
            );
        }
        for (section, error) in [
            (
                &b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n"[..],
                HeadError::Repeated("Content-Length"),
            ),
            (
                b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                HeadError::Repeated("Transfer-Encoding"),
            ),
            (
                b"Transfer-Encoding: gzip, chunked\r\n\r\n",
                HeadError::Coding,
            ),
            (
                b"Transfer-Encoding: chunked, chunked\r\n\r\n",
                HeadError::Coding,
            ),
            (b"Transfer-Encoding: chunked;a=b\r\n\r\n", HeadError::Coding),
            (b"Transfer-Encoding: identity\r\n\r\n", HeadError::Coding),
            (b"Transfer-Encoding:\r\n\r\n", HeadError::Coding),
            (b"Transfer-Encoding: \"chunked\"\r\n\r\n", HeadError::Coding),
            (
                b"Transfer_Encoding: chunked\r\n\r\n",
                HeadError::Twin("Transfer-Encoding"),
            ),
            (
                b"Content.Length: 3\r\n\r\n",
                HeadError::Twin("Content-Length"),
            ),
            (
                b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
                HeadError::TwoFramings,
            ),
            (
                b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
                HeadError::TwoFramings,
            ),
        ] {
            assert_eq!(framing(section), Err(error), "{}", section.escape_ascii());
        }
    }
}
