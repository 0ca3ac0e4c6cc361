//! Reasons for refusing a request's head.

use std::fmt;
use std::time::Duration;

use crate::http1::head::HeadError;

/// The reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    Head(HeadError),
    /// Not `method SP target SP HTTP/1.x`.
    StartLine,
    /// Another version of HTTP.
    Version,
    Connect,
    /// More bytes than `HeadLimits::target`.
    TargetLong(usize),
    /// This byte in the target.
    Target(u8),
    /// Neither a path nor an http URL.
    TargetForm,
    NoHost,
    Host,
    /// Host is not the authority of the target.
    OtherHost,
    /// `Transfer-Encoding` on HTTP/1.0.
    CodingOn10,
    /// `Expect` is not `100-continue`.
    Expect,
    /// This list does not parse.
    List(&'static str),
    /// The head was not whole in this time.
    Slow(Duration),
}

/// The kind of the error, which decides the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorKind {
    Malformed,
    Method,
    Version,
    TargetLong,
    /// Too many bytes.
    HeadBytes,
    /// Too many lines.
    HeadFields,
    Slow,
}

impl RequestError {
    #[must_use]
    pub const fn kind(self) -> RequestErrorKind {
        match self {
            Self::Head(HeadError::Bytes(_)) => RequestErrorKind::HeadBytes,
            Self::Head(HeadError::Fields(_)) => RequestErrorKind::HeadFields,
            Self::TargetLong(_) => RequestErrorKind::TargetLong,
            Self::Version => RequestErrorKind::Version,
            Self::Connect => RequestErrorKind::Method,
            Self::Slow(_) => RequestErrorKind::Slow,
            _ => RequestErrorKind::Malformed,
        }
    }
}

impl From<HeadError> for RequestError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => error.fmt(f),
            Self::StartLine => f.write_str(
                "the first line is not `method target HTTP/1.1`, with one space between each two",
            ),
            Self::Version => f.write_str("neither HTTP/1.1 nor HTTP/1.0"),
            Self::Connect => f.write_str("CONNECT"),
            Self::TargetLong(limit) => write!(
                f,
                "a target of more than {limit} bytes (limits.target_bytes)"
            ),
            Self::Target(b'#') => {
                f.write_str("a fragment (`#…`) is never sent; a literal `#` is `%23`")
            }
            Self::Target(byte) if byte.is_ascii_graphic() => write!(
                f,
                "a raw `{}` in the target, which has it only as `%{byte:02X}`",
                char::from(*byte)
            ),
            Self::Target(byte) => write!(
                f,
                "the byte 0x{byte:02x} in the target; escape it as `%{byte:02X}`"
            ),
            Self::TargetForm => f.write_str("the target is neither a path nor an http URL"),
            Self::NoHost => f.write_str("there is no Host"),
            Self::Host => f.write_str("Host is not a name or address, with a port or without"),
            Self::OtherHost => f.write_str("Host and the target's authority differ"),
            Self::CodingOn10 => {
                f.write_str("Transfer-Encoding on HTTP/1.0, which does not have it")
            }
            Self::Expect => f.write_str("Expect is not `100-continue`"),
            Self::List(name) => write!(f, "{name} is not a list of tokens"),
            Self::Slow(limit) => write!(
                f,
                "the head was not whole within {}s (limits.head_timeout)",
                limit.as_secs_f64()
            ),
        }
    }
}

impl std::error::Error for RequestError {}
