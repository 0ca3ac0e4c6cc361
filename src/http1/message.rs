//! The heads of messages, as every phase sees them.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::Fields;
use super::names::HOST;

/// The head of a request.
pub struct RequestHead {
    pub method: Method,
    pub target: Target,
    pub version: Version,
    pub fields: Fields,
    /// The client's socket, if the request asks to leave HTTP. It comes once the client knows.
    pub(crate) upgrade: Option<oneshot::Receiver<ClientSocket>>,
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

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Path and query, or `*`.
    pub text: PathAndQuery,
    /// Of an absolute URI, or HTTP/2's `:authority`.
    pub authority: Option<Bytes>,
}

impl Target {
    #[must_use]
    pub const fn new(text: PathAndQuery, authority: Option<Bytes>) -> Self {
        Self { text, authority }
    }

    /// `text`: the path and query, perhaps without a path, or `*`. `None`: it has a forbidden byte.
    #[must_use]
    pub fn parse(text: &[u8], authority: Option<Bytes>) -> Option<Self> {
        let slash: &[u8] = match text.first() {
            Some(b'/' | b'*') => b"",
            _ => b"/",
        };
        let text = PathAndQuery::from_maybe_shared([slash, text].concat()).ok()?;
        Some(Self::new(text, authority))
    }

    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    pub fn path(&self) -> &str {
        self.text.path()
    }

    /// Without its question mark.
    pub fn query(&self) -> Option<&str> {
        self.text.query()
    }

    /// The host that the request is for, as `proxy::classify` has checked it.
    pub fn host(&self, fields: &Fields) -> Option<Bytes> {
        let host = || fields.get(HOST).map(Bytes::copy_from_slice);
        self.authority.clone().or_else(host)
    }

    /// The same authority with another path and query.
    #[must_use]
    pub fn at(&self, text: &str) -> Option<Self> {
        Self::parse(text.as_bytes(), self.authority.clone())
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

/// A client's socket, of whatever kind, that has left HTTP.
pub(crate) type ClientSocket = Box<dyn DuplexStream>;

pub(crate) trait DuplexStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> DuplexStream for S {}

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
            let target = Target::parse(text.as_bytes(), None);
            let target = target.expect("a target");
            assert_eq!((target.path(), target.query()), (path, query), "{text}");
        }
    }
}
