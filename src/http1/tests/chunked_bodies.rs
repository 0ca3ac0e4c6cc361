//! Chunked bodies: sizes, extensions and trailers.

use super::super::chunked::{BodyError, ChunkError};
use super::super::head::HeadError;
use super::chunks;

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario, in order")]
fn chunked_bodies_end_where_they_say() {
    for body in [
        "0\r\n\r\n",
        "000\r\n\r\n",
        "1\r\na\r\n0\r\n\r\n",
        "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n",
        "1;a\r\nx\r\n0;b=c\r\n\r\n",
        "1;a=\"b;\\\"\\\\ c\";d\r\nx\r\n0\r\n\r\n",
        "1 ; a = b\t;c\r\nx\r\n0\r\n\r\n",
        "0\r\nA: b\r\nC:\r\n\r\n",
        "0000000000000001\r\na\r\n0\r\n\r\n",
    ] {
        let with_more = format!("{body}GET /");
        assert_eq!(
            chunks(with_more.as_bytes()),
            Ok((body.len(), true)),
            "{body:?}"
        );
        for end in 0..body.len() {
            assert_eq!(
                chunks(&body.as_bytes()[..end]),
                Ok((end, false)),
                "{body:?} to {end}"
            );
        }
    }
    for (body, error) in [
        ("\r\n", ChunkError::Size),
        ("g\r\n", ChunkError::Size),
        ("0x1\r\n", ChunkError::Size),
        ("-1\r\n", ChunkError::Size),
        ("+1\r\n", ChunkError::Size),
        (" 1\r\n", ChunkError::Size),
        (";a\r\n", ChunkError::Size),
        ("1_0\r\n", ChunkError::Size),
        ("8000000000000000\r\n", ChunkError::Size),
        ("00000000000000001\r\n", ChunkError::Size),
        ("fffffffffffffffff\r\n", ChunkError::Size),
        ("1\n", ChunkError::LineEnd),
        ("1\ra", ChunkError::LineEnd),
        ("1\r\nab", ChunkError::LineEnd),
        ("1\r\na\n", ChunkError::LineEnd),
        ("1\r\na\rb", ChunkError::LineEnd),
        ("1;a\n", ChunkError::LineEnd),
        ("1;\n", ChunkError::LineEnd),
        ("1 \r\n", ChunkError::Extension(b'\r')),
        ("1 a\r\n", ChunkError::Extension(b'a')),
        ("1;a=\"\n", ChunkError::LineEnd),
        ("1;a\0\r\n", ChunkError::Extension(0)),
    ] {
        assert_eq!(
            chunks(body.as_bytes()),
            Err(BodyError::Chunk(error)),
            "{body:?}"
        );
        assert!(error.to_string().len() > 10);
    }
    for (trailer, error) in [
        ("A : b\r\n", HeadError::SpaceBeforeColon),
        (" A: b\r\n", HeadError::Folded),
        ("A\r\n", HeadError::NoColon),
        (": b\r\n", HeadError::EmptyName),
        ("A: b\n", HeadError::BareLf),
        ("\n", HeadError::BareLf),
        ("A: b\rc", HeadError::BareCr),
        ("\ra", HeadError::BareCr),
        ("A: \0\r\n", HeadError::Value(0)),
        ("A\0: \r\n", HeadError::Name(0)),
        ("\0", HeadError::Name(0)),
    ] {
        assert_eq!(
            chunks(format!("0\r\n{trailer}").as_bytes()),
            Err(BodyError::Trailer(error)),
            "{trailer:?}"
        );
    }
    let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(9));
    assert_eq!(
        chunks(many.as_bytes()),
        Err(BodyError::Trailer(HeadError::Fields(8)))
    );
    let long = format!("0\r\nA: {}", "b".repeat(600));
    assert_eq!(
        chunks(long.as_bytes()),
        Err(BodyError::Trailer(HeadError::Bytes(512)))
    );
    let extended = "1;a=bcdefghi\r\nx\r\n".repeat(500);
    assert_eq!(
        chunks(extended.as_bytes()),
        Err(BodyError::Chunk(ChunkError::Extensions))
    );
    let most = chunks(b"7fffffffffffffff\r\nabc");
    assert_eq!(most, Ok((21, false)));
}
