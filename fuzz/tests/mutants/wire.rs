//! Broken parsers of HTTP/1 on the wire.

use super::*;

#[test]
fn heads_that_are_read_as_httparse_reads_them() {
    use fencepost::http1::content::Framing;
    use fencepost_fuzz::request::Whole;
    let mutant: &request::Read = &|pieces| {
        let come = pieces.concat();
        let mut space = [httparse::EMPTY_HEADER; 16];
        let mut parsed = httparse::Request::new(&mut space);
        match parsed.parse(&come) {
            Ok(httparse::Status::Complete(length)) => Ok(Some(Whole {
                length,
                framing: Framing::None,
            })),
            Ok(httparse::Status::Partial) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    };
    for (input, words) in [
        (&b"GET / HTTP/1.1\nHost: a\n\n"[..], "a bare LF"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "2 Host fields",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "0 Host fields"),
        (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", "goes on as"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
            "framed None",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n",
            "framed None",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
            "a length that is none",
        ),
        (
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "a coding on HTTP/1.0",
        ),
    ] {
        notices!(request, mutant, input, words);
    }
}

#[test]
fn responses_that_are_read_as_httparse_reads_them() {
    use fencepost::http1::content::Framing;
    use fencepost_fuzz::response::Whole;
    let mutant: &response::Read = &|pieces| {
        let come = pieces.concat();
        let mut space = [httparse::EMPTY_HEADER; 16];
        let mut parsed = httparse::Response::new(&mut space);
        match parsed.parse(&come) {
            Ok(httparse::Status::Complete(length)) => Ok(Some(Whole {
                length,
                status: parsed.code.unwrap_or_default(),
                framing: Some(Framing::None),
                odd: false,
            })),
            Ok(httparse::Status::Partial) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    };
    for (input, words) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"[..],
            "to a plain reader None",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
            "to a plain reader Some(Length(5))",
        ),
        (
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "to a plain reader None",
        ),
    ] {
        notices!(response, mutant, input, words);
    }
}

#[test]
fn chunks_that_end_where_a_lenient_reader_ends_them() {
    // As one that takes a bare LF for the end of a line.
    let mutant: &chunked::End = &|pieces| {
        let data = pieces.concat();
        let lenient = String::from_utf8_lossy(&data)
            .replace("\r\n", "\n")
            .replace('\n', "\r\n");
        let end = chunked::real(&[lenient.as_bytes()])?;
        Ok(end.map(|_| data.len()))
    };
    notices!(chunked, mutant, b"5\nhello\n0\n\n", "to Reader");
    let short: &chunked::End = &|pieces| chunked::real(pieces).map(|end| end.map(|end| end - 2));
    notices!(chunked, short, b"0\r\n\r\n", "bytes, and to Reader");
}

#[test]
fn connections_on_which_a_body_is_a_request() {
    let mutant: &stream::Run = &|pieces| {
        let mut passed = stream::real(pieces);
        passed.heads += 1;
        Passed {
            in_body: false,
            ..passed
        }
    };
    let input = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    notices!(stream, mutant, input, "request 2, at byte");
    assert_eq!((stream::TARGET.check)(input), Ok(Seen::Accepted));
}
