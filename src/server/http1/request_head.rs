//! Builds a request from the lines that the reader has found, so that nothing is parsed twice.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Uri, Version};

use crate::http1::fields;
use crate::proxy::buffer_pool;
use crate::wire::request::{RequestError, RequestReader};

/// Room for the fields that are added on the way upstream.
const OURS: usize = 9;

/// The parts of the request with this `head`, which the reader has read.
pub(super) fn parts(reader: &RequestReader, head: &Bytes) -> Result<Parts, RequestError> {
    let start = reader.start().ok_or(RequestError::StartLine)?;
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method =
        Method::from_bytes(&head[start.method.clone()]).map_err(|_| RequestError::StartLine)?;
    parts.uri = Uri::from_maybe_shared(head.slice(start.target.clone()))
        .map_err(|_| RequestError::TargetForm)?;
    parts.version = if start.http_11 {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    parts.headers = buffer_pool::map();
    let spelling = fields::read(head, reader.fields(), &mut parts.headers, OURS)?;
    if !spelling.is_empty() {
        parts.extensions.insert(spelling);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::HeadLimits;
    use crate::wire::spelling::Spelling;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1000,
        fields: 10,
        target: 100,
    };

    fn read(head: &'static [u8]) -> Parts {
        let mut reader = RequestReader::default();
        let whole = reader.read(head, &LIMITS).expect("it passes");
        assert_eq!(whole.expect("it is whole").length, head.len());
        parts(&reader, &Bytes::from_static(head)).expect("a request")
    }

    #[test]
    fn a_request_is_what_was_sent() {
        let parts = read(
            b"\r\nPUT /a//b?x=%2f&y HTTP/1.1\r\nhost:app.test:80\r\nX-A: \t 1 2 \t\r\nx-a:\r\nSOAPAction: \xe9\r\n\r\n",
        );
        assert_eq!(parts.method, Method::PUT);
        assert_eq!(parts.uri, "/a//b?x=%2f&y");
        assert_eq!(parts.version, Version::HTTP_11);
        let lines: Vec<_> = parts.headers.iter().collect();
        let lines: Vec<_> = lines
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        assert_eq!(
            lines,
            [
                ("host", &b"app.test:80"[..]),
                ("x-a", b"1 2"),
                ("x-a", b""),
                ("soapaction", b"\xe9")
            ]
        );
        let spelling = parts.extensions.get::<Spelling>().expect("its spellings");
        let mut out = Vec::new();
        for (name, nth) in [("host", 0), ("x-a", 0), ("x-a", 1), ("soapaction", 0)] {
            spelling.write_line(name, nth, &mut out);
        }
        assert_eq!(out, b"hostX-Ax-aSOAPAction");
    }

    #[test]
    fn usual_names_need_no_spelling() {
        let parts = read(b"OPTIONS * HTTP/1.0\r\nHost: a\r\nUser-Agent: b\r\n\r\n");
        assert_eq!(parts.uri, "*");
        assert_eq!(parts.version, Version::HTTP_10);
        assert!(parts.extensions.get::<Spelling>().is_none());
        let parts = read(b"GET http://a:1/x?y HTTP/1.1\r\nHost: a:1\r\n\r\n");
        assert_eq!(parts.uri, "http://a:1/x?y");
    }
}
