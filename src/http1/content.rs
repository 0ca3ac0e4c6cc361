//! The content of a message: how its fields frame it, which of the bytes behind its head it is, and
//! where it ends.

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use memchr::memchr;

use super::Fields;
use super::head::{
    HeadEnd, HeadLimits, MessageError, is_in_value, length_of, number, same_name, trim,
};
use super::names::{CONTENT_LENGTH, TRANSFER_ENCODING};

/// The most bytes of a trailer section, whatever the limits of a head.
pub const MOST_TRAILER_BYTES: usize = (16 << 10) - 1;
/// The most bytes that all extensions of one chunked body have together.
const EXTENSION_BYTES: usize = 4096;
/// Digits of 2^64-1: more are leading zeros or too much.
const SIZE_DIGITS: usize = 16;
/// With its CRLF.
const LONGEST_SIZE_LINE: usize = SIZE_DIGITS + EXTENSION_BYTES + 2;

const LENGTH: MessageError =
    MessageError::Malformed("Content-Length is not one decimal number up to 9223372036854775807");
pub(super) const CODING_ON_1_0: MessageError =
    MessageError::Malformed("Transfer-Encoding on HTTP/1.0, which does not have it");
const SIZE: MessageError = MessageError::Malformed(
    "a chunk does not begin with a hexadecimal number below 2^63, perhaps an extension, and CRLF",
);
const EXTENSIONS: MessageError =
    MessageError::Malformed("more than 4096 bytes of chunk extensions");
const DATA_END: MessageError = MessageError::Malformed("no CRLF behind a chunk's data");

/// The framing of a message that its fields announce (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Neither `Content-Length` nor `Transfer-Encoding`. A request has no content then, and a
    /// response ends with its connection.
    #[default]
    None,
    /// This many bytes, at most 2^63-1.
    Length(u64),
    Chunked,
}

/// True if some servers take this name for that of a framing field: it has another sign in place of
/// the dash.
pub fn is_framing_twin(name: &[u8]) -> bool {
    let twin = |known: &str| same_name(name, known) && !name.eq_ignore_ascii_case(known.as_bytes());
    [CONTENT_LENGTH, TRANSFER_ENCODING].into_iter().any(twin)
}

/// The value of a `Content-Length`: 1*DIGIT (RFC 9110, 8.6), at most 2^63-1.
pub fn content_length(value: &[u8]) -> Result<u64, MessageError> {
    number(value, 10).ok_or(LENGTH)
}

/// True if the content is chunked. Any other `Transfer-Encoding` is an error, and so is a second.
pub(super) fn is_chunked(fields: &Fields) -> Result<bool, MessageError> {
    let mut codings = fields.get_all(TRANSFER_ENCODING);
    match (codings.next(), codings.next()) {
        (None, _) => Ok(false),
        (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(MessageError::Malformed(
            "Transfer-Encoding is not exactly one `chunked`, the one coding that is taken here",
        )),
    }
}

/// Takes content off the bytes behind a head, and finds its end.
#[derive(Debug)]
pub enum ContentReader {
    /// This many bytes are left. 0: it has ended.
    Length(u64),
    Chunked(Chunks),
    /// The content of a response that ends with its connection.
    ToEnd,
}

impl ContentReader {
    /// No content.
    pub const NONE: Self = Self::Length(0);

    /// The content of a request.
    #[must_use]
    pub fn of_request(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::NONE,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunks::default()),
        }
    }

    /// The content of a final response whose status and method allow some.
    #[must_use]
    pub fn of_response(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::ToEnd,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunks {
                padded: true,
                ..Chunks::default()
            }),
        }
    }

    /// Takes the next data off `buf`, and the framing before and behind it: the end may have come
    /// with the last data. `None`: no more data has come, or none is to come. `limits` are those of
    /// heads.
    ///
    /// # Errors
    ///
    /// The chunks or the trailer section are malformed. What is before that has been taken, and the
    /// next call has the same error.
    pub fn take(
        &mut self,
        buf: &mut BytesMut,
        limits: &HeadLimits,
    ) -> Result<Option<Bytes>, MessageError> {
        let mut endless = u64::MAX;
        let mut data = None;
        loop {
            let left = match self {
                Self::Length(left) => left,
                Self::ToEnd => &mut endless,
                Self::Chunked(chunks) => {
                    match chunks.frame(buf, limits) {
                        Ok(()) => {}
                        Err(error) if data.is_none() => return Err(error),
                        Err(_) => return Ok(data),
                    }
                    &mut chunks.left
                }
            };
            if data.is_some() || buf.is_empty() || *left == 0 {
                return Ok(data);
            }
            let count = buf.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= count as u64;
            data = Some(buf.split_to(count).freeze());
        }
    }

    /// True if the content is whole.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.state == ChunkState::End,
            Self::ToEnd => false,
        }
    }

    /// The trailers of whole content, once.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match self {
            Self::Chunked(chunks) => chunks.trailers.take().map(|trailers| *trailers),
            _ => None,
        }
    }
}

/// Finds the end of a chunked body (RFC 9112, 7.1), and checks that every reader finds the same.
///
/// Chunk extensions are skipped without a look at their grammar, since a recipient must ignore
/// unknown ones (7.1.1), and they are not passed on. Their bytes must be such as a field value may
/// have, and are counted over the whole body: otherwise a client could send a body of nothing else.
/// White space behind the size is refused unless an extension follows, since only some servers strip
/// it. So is any line end but CRLF.
#[derive(Debug, Default)]
pub struct Chunks {
    state: ChunkState,
    /// The rest of the current chunk's data.
    left: u64,
    extensions: usize,
    /// White space may follow a size, as Apache 1.3 pads it.
    padded: bool,
    end: HeadEnd,
    trailers: Option<Box<HeaderMap>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// Before the size of a chunk.
    #[default]
    Size,
    /// In a chunk's data, or before the CRLF behind it.
    Data,
    /// Behind the last chunk.
    Trailers,
    End,
}

impl Chunks {
    /// Takes the framing that stands before the next data, as far as it has come.
    fn frame(&mut self, buf: &mut BytesMut, limits: &HeadLimits) -> Result<(), MessageError> {
        loop {
            match self.state {
                ChunkState::Data if self.left > 0 => return Ok(()),
                ChunkState::Data => {
                    match buf[..] {
                        [b'\r', b'\n', ..] => buf.advance(2),
                        [] | [b'\r'] => return Ok(()),
                        _ => return Err(DATA_END),
                    }
                    self.state = ChunkState::Size;
                }
                ChunkState::Size => {
                    let line = &buf[..buf.len().min(LONGEST_SIZE_LINE)];
                    let Some(end) = memchr(b'\n', line) else {
                        let fits = line.len() < LONGEST_SIZE_LINE;
                        return if fits { Ok(()) } else { Err(EXTENSIONS) };
                    };
                    self.left = self.size(&buf[..end])?;
                    buf.advance(end + 1);
                    self.state = match self.left {
                        0 => ChunkState::Trailers,
                        _ => ChunkState::Data,
                    };
                }
                ChunkState::Trailers => {
                    let limits = HeadLimits {
                        bytes: limits.bytes.min(MOST_TRAILER_BYTES),
                        ..*limits
                    };
                    let Some(length) = self.end.find(buf, &limits)? else {
                        return Ok(());
                    };
                    if buf[..length] != b"\r\n"[..] {
                        let trailers = Fields::read(&buf[..length], 0, self.end.lines, &limits)?;
                        self.trailers = Some(Box::new(trailers.to_map()));
                    }
                    buf.advance(length);
                    self.state = ChunkState::End;
                }
                ChunkState::End => return Ok(()),
            }
        }
    }

    /// Reads the line before a chunk, without its LF.
    fn size(&mut self, line: &[u8]) -> Result<u64, MessageError> {
        let line = line.strip_suffix(b"\r").ok_or(SIZE)?;
        let (digits, rest) = line.split_at(length_of(line, |byte| byte.is_ascii_hexdigit()));
        let size = number(digits, 16).filter(|_| digits.len() <= SIZE_DIGITS);
        let size = size.ok_or(SIZE)?;
        let fits = match trim(rest) {
            [] => rest.is_empty() || self.padded,
            [b';', text @ ..] => text.iter().all(|byte| is_in_value(*byte)),
            _ => false,
        };
        if !fits {
            return Err(SIZE);
        }
        self.extensions += rest.len();
        if self.extensions > EXTENSION_BYTES {
            return Err(EXTENSIONS);
        }
        Ok(size)
    }
}
