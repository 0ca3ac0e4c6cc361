//! [`ResourceKey`] and [`KeyTemplate`]: what is fenced, as text.

use std::fmt;
use std::sync::Arc;

use super::path::{CheckedPath, has_control};
use super::route::{Captures, Pattern};

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

/// Why a request has no resource key.
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
        /// What is wrong with it.
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

/// Where a part of a key comes from.
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

/// As it is written in a template.
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

/// How a route's resource key is made of a request (`resource`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    text: Arc<str>,
}

impl KeyTemplate {
    /// Reads a template of the configuration, for a route with this pattern.
    pub fn parse(template: &str, _pattern: &Pattern) -> Result<Self, TemplateError> {
        Ok(Self {
            text: template.into(),
        })
    }

    /// The template as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the request's body is needed.
    #[must_use]
    pub fn uses_json(&self) -> bool {
        self.parts().any(|source| matches!(source, Source::Json(_)))
    }

    /// The parts, from the left.
    pub fn parts(&self) -> impl Iterator<Item = &Source> {
        std::iter::empty()
    }

    /// Makes the key. `lookup` is asked for what is not in the path: host, headers, query, JSON.
    pub fn render(
        &self,
        _captures: &Captures,
        _path: &CheckedPath,
        _lookup: &mut dyn FnMut(&Source) -> Result<Option<String>, String>,
    ) -> Result<ResourceKey, KeyError> {
        ResourceKey::new(&*self.text)
    }

    /// Whether some request could have exactly this key.
    #[must_use]
    pub fn could_yield(&self, key: &str) -> bool {
        *key == *self.text
    }
}

/// A template that cannot be used: what is wrong, where, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    template: String,
    message: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource `{}`: {}", self.template, self.message)
    }
}

impl std::error::Error for TemplateError {}

/// The value of a query parameter, decoded; `None` if it is not there.
pub fn query_value(_raw_query: &str, _name: &str) -> Result<Option<String>, String> {
    Ok(None)
}
