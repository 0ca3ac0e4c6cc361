//! Builds a request from the lines that the reader has found, so that nothing is parsed twice.

use bytes::Bytes;
use http::{Method, Version};

use crate::http1::Fields;
use crate::http1::request::{RequestError, RequestReader};
use crate::http1::{RequestHead, Target};

/// The request with this `head`, which the reader has read.
pub(super) fn read(reader: &RequestReader, head: Bytes) -> Result<RequestHead, RequestError> {
    let start = reader.start().ok_or(RequestError::StartLine)?;
    let method =
        Method::from_bytes(&head[start.method.clone()]).map_err(|_| RequestError::StartLine)?;
    let mut target = start.target.clone();
    let authority = start.authority.clone();
    if let Some(authority) = &authority {
        target.start = authority.end;
    }
    let authority = authority.map(|range| head.slice(range));
    let version = if start.http_11 {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    let target = Target::new(head.slice(target), authority);
    let fields = Fields::of(head, reader.fields());
    Ok(RequestHead::new(method, target, version, fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::head::HeadLimits;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1000,
        fields: 10,
        target: 100,
    };

    fn read(head: &'static [u8]) -> RequestHead {
        let mut reader = RequestReader::default();
        let whole = reader.read(head, &LIMITS).expect("it passes");
        assert_eq!(whole.expect("it is whole").length, head.len());
        super::read(&reader, Bytes::from_static(head)).expect("a request")
    }

    #[test]
    fn a_request_is_what_was_sent() {
        let head = read(
            b"\r\nPUT /a//b?x=%2f&y HTTP/1.1\r\nhost:app.test:80\r\nX-A: \t 1 2 \t\r\nx-a:\r\nSOAPAction: \xe9\r\n\r\n",
        );
        assert_eq!(head.method, Method::PUT);
        assert_eq!(head.target.as_str(), "/a//b?x=%2f&y");
        assert_eq!(head.version, Version::HTTP_11);
        let lines: Vec<_> = head.fields.iter().collect();
        let expected: [(&[u8], &[u8]); 4] = [
            (b"host", b"app.test:80"),
            (b"X-A", b"1 2"),
            (b"x-a", b""),
            (b"SOAPAction", b"\xe9"),
        ];
        assert_eq!(lines, expected);
        let mut out = Vec::new();
        head.fields.write_to(&mut out);
        assert_eq!(
            out,
            b"host: app.test:80\r\nX-A: 1 2\r\nx-a: \r\nSOAPAction: \xe9\r\n"
        );
    }

    #[test]
    fn a_target_may_have_an_authority() {
        let head = read(b"OPTIONS * HTTP/1.0\r\nHost: a\r\nUser-Agent: b\r\n\r\n");
        assert_eq!(head.target.as_str(), "*");
        assert_eq!(head.version, Version::HTTP_10);
        let head = read(b"GET http://a:1/x?y HTTP/1.1\r\nHost: a:1\r\n\r\n");
        assert_eq!(head.target.as_str(), "/x?y");
        assert_eq!(head.target.authority(), Some(&b"a:1"[..]));
        let head = read(b"GET http://a?y HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(head.target.as_str(), "/?y");
    }
}
