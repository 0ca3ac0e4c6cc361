//! [`ResourceKey`]: the name of a fenced resource, the sources of its parts, and why a request may
//! have none.

use std::fmt;
use std::sync::Arc;

use super::path::has_control;

/// The name of a protected resource: 1 to 1,024 bytes of text without control characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey(Arc<str>);

impl ResourceKey {
    /// The most bytes a key may have.
    pub const MAX_BYTES: usize = 1024;

    /// Checks a text that names a resource.
    pub fn new(text: impl AsRef<str>) -> Result<Self, KeyError> {
        let text = text.as_ref();
        if text.is_empty() {
            Err(KeyError::Blank)
        } else if text.len() > Self::MAX_BYTES {
            Err(KeyError::TooLong { bytes: text.len() })
        } else if has_control(text) {
            Err(KeyError::Control)
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The reasons for which a request has no resource key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The key is empty.
    Blank,
    /// The key is longer than [`ResourceKey::MAX_BYTES`].
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The key has a control character.
    Control,
    /// The request does not have this part.
    Absent(Source),
    /// The request has this part, and it is empty.
    Empty(Source),
    /// The request has this part, and it cannot be used.
    Part {
        /// Which.
        source: Source,
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => {
                f.write_str("the resource key is empty; it needs at least one character")
            }
            Self::TooLong { bytes } => write!(
                f,
                "the resource key has {bytes} bytes, and {} is the most; name the resource by less",
                ResourceKey::MAX_BYTES
            ),
            Self::Control => {
                f.write_str("the resource key would have a control character; leave it out")
            }
            Self::Absent(source) => write!(
                f,
                "the resource key needs {source}, and the request has none; send it"
            ),
            Self::Empty(source) => write!(
                f,
                "the resource key needs {source}, and the request has it empty; send a value"
            ),
            Self::Part { source, reason } => {
                write!(f, "the resource key needs {source}: {reason}")
            }
        }
    }
}

impl std::error::Error for KeyError {}

/// The source of a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// `{name}` or `{*rest}`: a capture of the route's path.
    Path(String),
    /// `{path}`: the whole path, without its trailing slash.
    WholePath,
    /// `{host}`.
    Host,
    /// `{header.x-tenant}`; lower case.
    Header(String),
    /// `{query.q}`.
    Query(String),
    /// `{json.order.id}`: the names of the members on the way down.
    Json(Vec<String>),
}

/// As written in a template.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(name) => write!(f, "`{{{name}}}`"),
            Self::WholePath => f.write_str("`{path}`"),
            Self::Host => f.write_str("`{host}`"),
            Self::Header(name) => write!(f, "`{{header.{name}}}`"),
            Self::Query(name) => write!(f, "`{{query.{name}}}`"),
            Self::Json(path) => write!(f, "`{{json.{}}}`", path.join(".")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for good in [
            "a",
            "order:42",
            "é",
            "a b",
            "/",
            &"x".repeat(1024),
            &"é".repeat(512),
        ] {
            assert_eq!(ResourceKey::new(good).unwrap().as_str(), good);
        }
        assert_eq!(ResourceKey::new(""), Err(KeyError::Blank));
        assert_eq!(
            ResourceKey::new("x".repeat(1025)),
            Err(KeyError::TooLong { bytes: 1025 })
        );
        assert_eq!(
            ResourceKey::new("é".repeat(512) + "x"),
            Err(KeyError::TooLong { bytes: 1025 })
        );
        for bad in ["\0", "a\0b", "a\n", "\ta", "a\u{7f}", "a\u{85}"] {
            assert_eq!(ResourceKey::new(bad), Err(KeyError::Control), "{bad:?}");
        }
    }

    #[test]
    fn sources_are_shown_as_they_are_written() {
        for (source, expected) in [
            (Source::Path("id".into()), "`{id}`"),
            (Source::WholePath, "`{path}`"),
            (Source::Host, "`{host}`"),
            (Source::Header("x-tenant".into()), "`{header.x-tenant}`"),
            (Source::Query("q".into()), "`{query.q}`"),
            (
                Source::Json(vec!["order".into(), "id".into()]),
                "`{json.order.id}`",
            ),
        ] {
            assert_eq!(source.to_string(), expected);
        }
    }
}
