//! The content of a message: which of the bytes behind its head are content, and where it ends.

pub use super::chunked::ContentPart;
use super::chunked::{BodyError, Chunks};
use super::head::{Framing, HeadLimits};

/// Finds the end of a message's content.
#[derive(Clone, Debug, PartialEq, Eq)]
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
            Framing::Chunked => Self::Chunked(Chunks::of_response()),
            Framing::Length(length) => Self::Length(length),
        }
    }

    /// Takes the next part off these bytes. There must be one byte at least, and more content.
    ///
    /// # Errors
    ///
    /// The chunks or the trailer section are malformed. The bytes before them have been taken.
    pub fn next(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<ContentPart, BodyError> {
        match self {
            Self::Length(left) => {
                let taken = (bytes.len() as u64).min(*left);
                *left -= taken;
                let taken = usize::try_from(taken).unwrap_or(bytes.len());
                Ok(ContentPart::Data(taken))
            }
            Self::Chunked(chunks) => chunks.next(bytes, limits),
            Self::ToEnd => Ok(ContentPart::Data(bytes.len())),
        }
    }

    /// True if the content is whole.
    #[must_use]
    pub fn is_end(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_end(),
            Self::ToEnd => false,
        }
    }

    /// True if the next byte is one of the content.
    #[must_use]
    pub const fn is_in_data(&self) -> bool {
        match self {
            Self::Length(left) => *left > 0,
            Self::Chunked(chunks) => chunks.is_in_data(),
            Self::ToEnd => true,
        }
    }
}
