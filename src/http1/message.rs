//! The heads of messages, as every phase sees them.

use bytes::Bytes;
use http::{Method, StatusCode, Version};

use super::handover::UpgradeSlot;
use crate::http1::Fields;
use crate::http1::names::HOST;

/// The head of a request.
#[derive(Clone)]
pub struct RequestHead {
    pub method: Method,
    pub target: Target,
    pub version: Version,
    pub fields: Fields,
    /// The client's socket, if the request asks to leave HTTP.
    pub(crate) upgrade: Option<UpgradeSlot>,
}

impl RequestHead {
    #[must_use]
    pub fn new(method: Method, target: Target, version: Version, fields: Fields) -> Self {
        Self {
            method,
            target,
            version,
            fields,
            upgrade: None,
        }
    }
}

/// The target of a request: visible ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Path and query, or `*`.
    text: Bytes,
    path: usize,
    /// Of an absolute URI, or HTTP/2's `:authority`.
    authority: Option<Bytes>,
}

impl Target {
    /// `text`: the path and query, perhaps without a path, or `*`.
    #[must_use]
    pub fn new(text: Bytes, authority: Option<Bytes>) -> Self {
        let text = match text.first() {
            Some(b'/' | b'*') => text,
            _ => [b"/", &text[..]].concat().into(),
        };
        let query = text.iter().position(|byte| *byte == b'?');
        Self {
            path: query.unwrap_or(text.len()),
            text,
            authority,
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    #[must_use]
    pub fn path(&self) -> &str {
        self.as_str().get(..self.path).unwrap_or_default()
    }

    /// Without its question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.as_str().get(self.path + 1..)
    }

    #[must_use]
    pub fn authority(&self) -> Option<&[u8]> {
        self.authority.as_deref()
    }

    /// The host that the request is for, as [`super::classify::host`] has checked it.
    #[must_use]
    pub fn host(&self, fields: &Fields) -> Option<Bytes> {
        self.authority.clone().or_else(|| fields.shared(HOST))
    }

    /// The same target with another path and query.
    #[must_use]
    pub fn at(&self, text: &str) -> Self {
        Self::new(
            Bytes::copy_from_slice(text.as_bytes()),
            self.authority.clone(),
        )
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    /// As it was received.
    pub version: Version,
    /// `None`: the usual one.
    pub reason: Option<Bytes>,
    pub fields: Fields,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Response<B> {
    pub head: ResponseHead,
    pub body: B,
}

impl<B> Response<B> {
    pub fn new(status: StatusCode, body: B) -> Self {
        let head = ResponseHead {
            status,
            version: Version::HTTP_11,
            reason: None,
            fields: Fields::default(),
        };
        Self { head, body }
    }

    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn map<C>(self, f: impl FnOnce(B) -> C) -> Response<C> {
        Response {
            head: self.head,
            body: f(self.body),
        }
    }
}

/// For HTTP/2, and for who serves it with hyper.
impl<B> From<Response<B>> for http::Response<B> {
    fn from(response: Response<B>) -> Self {
        let mut other = Self::new(response.body);
        *other.status_mut() = response.head.status;
        *other.headers_mut() = response.head.fields.to_map();
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_path_and_perhaps_a_query() {
        for (text, path, query) in [
            ("/a/b?c?d", "/a/b", Some("c?d")),
            ("/a?", "/a", Some("")),
            ("/a", "/a", None),
            ("", "/", None),
            ("?x", "/", Some("x")),
            ("*", "*", None),
        ] {
            let target = Target::new(Bytes::from_static(text.as_bytes()), None);
            assert_eq!((target.path(), target.query()), (path, query), "{text}");
        }
    }
}
