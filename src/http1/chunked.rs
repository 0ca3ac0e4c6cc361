//! A chunked body (RFC 9112, 7.1), byte for byte. The reader finds its end, and checks that every
//! reader finds the same.
//!
//! Chunk extensions are skipped without a look at their grammar, since a recipient must ignore
//! unknown ones (7.1.1), and they are not passed on. Their bytes must be such as a field value may
//! have, and are counted over the whole body: otherwise a client could send a body of nothing else.
//! White space behind the size is refused unless an extension follows, since only some servers strip
//! it. So is any line end but CRLF.

use super::head::{HeadError, HeadLimits, is_in_value, is_tchar};

/// The most bytes of a trailer section, whatever the limits of a head: hyper takes no more.
pub const MOST_TRAILER_BYTES: usize = (16 << 10) - 1;
/// The most bytes that all extensions of one body have together.
const EXTENSION_BYTES: usize = 4096;
/// Digits of 2^64-1: more are leading zeros or too much.
const SIZE_DIGITS: u8 = 16;

/// The reason for refusing a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkError {
    /// The size is not 1*HEXDIG, or over 2^63-1.
    Size,
    /// This byte is not allowed there in an extension.
    Extension(u8),
    /// More than 4096 bytes of extensions.
    Extensions,
    /// No CRLF where one must be: behind a size, or a chunk's data.
    LineEnd,
}

impl std::fmt::Display for ChunkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size => f.write_str("the size of a chunk is not a hexadecimal number below 2^63"),
            Self::Extension(byte) => write!(f, "the byte 0x{byte:02x} in a chunk's extension"),
            Self::Extensions => {
                write!(f, "more than {EXTENSION_BYTES} bytes of chunk extensions")
            }
            Self::LineEnd => f.write_str("no CRLF behind a chunk's size or data"),
        }
    }
}

impl std::error::Error for ChunkError {}

/// The reason for refusing the body of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    Chunk(ChunkError),
    Trailer(HeadError),
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Chunk(error) => error.fmt(f),
            Self::Trailer(HeadError::Bytes(limit)) => write!(
                f,
                "the trailer section has more than {limit} bytes (limits.header_bytes, and \
                 {MOST_TRAILER_BYTES} at the most)"
            ),
            Self::Trailer(error) => write!(f, "in the trailer section, {error}"),
        }
    }
}

impl BodyError {
    /// True if it only exceeds a limit.
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Trailer(HeadError::Bytes(_) | HeadError::Fields(_))
        )
    }
}

/// Makes the limits of a trailer section from those of a head.
#[must_use]
pub fn trailer_limits(head: HeadLimits) -> HeadLimits {
    HeadLimits {
        bytes: head.bytes.min(MOST_TRAILER_BYTES),
        ..head
    }
}

impl std::error::Error for BodyError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedState {
    /// In the size, behind this many digits.
    Size(u8),
    /// White space behind the size: an extension must follow.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty one.
    Line,
    FieldName,
    FieldValue,
    FieldLf,
    LastLf,
    End,
}

/// A number of bytes of a body, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentPart {
    /// Sizes, extensions and line ends of chunks.
    Framing(usize),
    Data(usize),
    /// The trailer section, with the empty line behind it.
    Trailer(usize),
}

impl ContentPart {
    /// Its length in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        let (Self::Framing(length) | Self::Data(length) | Self::Trailer(length)) = self;
        length
    }
}

/// Finds the end of a chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    state: ChunkedState,
    /// The rest of the current chunk.
    left: u64,
    extensions: usize,
    trailer_bytes: usize,
    trailer_lines: usize,
    /// White space may follow a size, as Apache 1.3 pads it.
    padded: bool,
}

impl Default for Chunks {
    fn default() -> Self {
        Self {
            state: ChunkedState::Size(0),
            left: 0,
            extensions: 0,
            trailer_bytes: 0,
            trailer_lines: 0,
            padded: false,
        }
    }
}

impl Chunks {
    /// The chunks of a response.
    pub(super) fn of_response() -> Self {
        Self {
            padded: true,
            ..Self::default()
        }
    }

    /// Takes the next bytes of the body. Returns how many of them belong to it: all, unless
    /// [`Self::is_end`] holds then. The bytes before an error have been taken.
    pub fn read(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<usize, BodyError> {
        let mut at = 0;
        while at < bytes.len() && !self.is_end() {
            at += self.next(&bytes[at..], limits)?.length();
        }
        Ok(at)
    }

    /// Takes the next part of the body off these bytes, which must not be empty.
    pub fn next(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<ContentPart, BodyError> {
        if self.is_in_data() {
            let taken = (bytes.len() as u64).min(self.left);
            self.left -= taken;
            if self.left == 0 {
                self.state = ChunkedState::DataCr;
            }
            // `taken` is at most the length of `bytes`.
            return Ok(ContentPart::Data(
                usize::try_from(taken).unwrap_or(bytes.len()),
            ));
        }
        let trailer = self.is_in_trailer();
        let mut at = 0;
        while at < bytes.len()
            && !self.is_end()
            && !self.is_in_data()
            && self.is_in_trailer() == trailer
        {
            self.state = self.step(bytes[at], limits)?;
            at += 1;
        }
        Ok(if trailer {
            ContentPart::Trailer(at)
        } else {
            ContentPart::Framing(at)
        })
    }

    /// True if the next byte is one of the content.
    #[must_use]
    pub const fn is_in_data(&self) -> bool {
        matches!(self.state, ChunkedState::Data)
    }

    const fn is_in_trailer(&self) -> bool {
        matches!(
            self.state,
            ChunkedState::Line
                | ChunkedState::FieldName
                | ChunkedState::FieldValue
                | ChunkedState::FieldLf
                | ChunkedState::LastLf
        )
    }

    /// True if the body is whole.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.state == ChunkedState::End
    }

    fn step(&mut self, byte: u8, limits: &HeadLimits) -> Result<ChunkedState, BodyError> {
        match self.state {
            ChunkedState::Size(_)
            | ChunkedState::SizeLf
            | ChunkedState::DataCr
            | ChunkedState::DataLf => self.chunk(byte).map_err(BodyError::Chunk),
            ChunkedState::Line
            | ChunkedState::FieldName
            | ChunkedState::FieldValue
            | ChunkedState::FieldLf
            | ChunkedState::LastLf => self.trailer(byte, limits).map_err(BodyError::Trailer),
            ChunkedState::Data | ChunkedState::End => Ok(self.state),
            ChunkedState::Blank | ChunkedState::Extension => {
                self.extension(byte).map_err(BodyError::Chunk)
            }
        }
    }

    fn chunk(&mut self, byte: u8) -> Result<ChunkedState, ChunkError> {
        match (self.state, byte) {
            (ChunkedState::Size(digits), _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                if digits == SIZE_DIGITS || self.left > (i64::MAX.unsigned_abs() >> 4) {
                    return Err(ChunkError::Size);
                }
                self.left = self.left << 4 | u64::from(digit);
                Ok(ChunkedState::Size(digits + 1))
            }
            (ChunkedState::Size(0), _) => Err(ChunkError::Size),
            (ChunkedState::Size(_), b'\r') => Ok(ChunkedState::SizeLf),
            (ChunkedState::Size(_), b';') => Ok(ChunkedState::Extension),
            (ChunkedState::Size(_), b' ' | b'\t') => Ok(ChunkedState::Blank),
            (ChunkedState::SizeLf, b'\n') if self.left == 0 => Ok(ChunkedState::Line),
            (ChunkedState::SizeLf, b'\n') => Ok(ChunkedState::Data),
            (ChunkedState::DataCr, b'\r') => Ok(ChunkedState::DataLf),
            (ChunkedState::DataLf, b'\n') => Ok(ChunkedState::Size(0)),
            (ChunkedState::Size(_), b'\n')
            | (ChunkedState::SizeLf | ChunkedState::DataCr | ChunkedState::DataLf, _) => {
                Err(ChunkError::LineEnd)
            }
            _ => Err(ChunkError::Size),
        }
    }

    fn extension(&mut self, byte: u8) -> Result<ChunkedState, ChunkError> {
        self.extensions += 1;
        if self.extensions > EXTENSION_BYTES {
            return Err(ChunkError::Extensions);
        }
        let extends = self.state == ChunkedState::Extension;
        match byte {
            b'\r' if extends || self.padded => Ok(ChunkedState::SizeLf),
            b'\n' => Err(ChunkError::LineEnd),
            b';' => Ok(ChunkedState::Extension),
            b' ' | b'\t' => Ok(self.state),
            _ if extends && is_in_value(byte) => Ok(ChunkedState::Extension),
            _ => Err(ChunkError::Extension(byte)),
        }
    }

    fn trailer(&mut self, byte: u8, limits: &HeadLimits) -> Result<ChunkedState, HeadError> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > limits.bytes {
            return Err(HeadError::Bytes(limits.bytes));
        }
        match (self.state, byte) {
            (ChunkedState::Line, b'\r') => Ok(ChunkedState::LastLf),
            (ChunkedState::Line, _) => {
                self.trailer_lines += 1;
                match byte {
                    _ if self.trailer_lines > limits.fields => {
                        Err(HeadError::Fields(limits.fields))
                    }
                    b' ' | b'\t' => Err(HeadError::Folded),
                    b':' => Err(HeadError::EmptyName),
                    b'\n' => Err(HeadError::BareLf),
                    _ if is_tchar(byte) => Ok(ChunkedState::FieldName),
                    _ => Err(HeadError::Name(byte)),
                }
            }
            (ChunkedState::FieldName, b':') => Ok(ChunkedState::FieldValue),
            (ChunkedState::FieldName, b' ' | b'\t') => Err(HeadError::SpaceBeforeColon),
            (ChunkedState::FieldName, b'\r') => Err(HeadError::NoColon),
            (ChunkedState::FieldName | ChunkedState::FieldValue, b'\n') => Err(HeadError::BareLf),
            (ChunkedState::FieldName, _) if is_tchar(byte) => Ok(ChunkedState::FieldName),
            (ChunkedState::FieldName, _) => Err(HeadError::Name(byte)),
            (ChunkedState::FieldValue, b'\r') => Ok(ChunkedState::FieldLf),
            (ChunkedState::FieldValue, _) if is_in_value(byte) => Ok(ChunkedState::FieldValue),
            (ChunkedState::FieldValue, _) => Err(HeadError::Value(byte)),
            (ChunkedState::FieldLf, b'\n') => Ok(ChunkedState::Line),
            (ChunkedState::LastLf, b'\n') => Ok(ChunkedState::End),
            _ => Err(HeadError::BareCr),
        }
    }
}
