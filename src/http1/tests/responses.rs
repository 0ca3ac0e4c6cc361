//! Heads of responses: what is read, what becomes of odd fields, and what is refused.

use bytes::BytesMut;

use super::super::MessageError;
use super::super::content::{ContentReader, Framing};
use super::super::head::HeadLimits;
use super::super::response::{ReceivedResponse, ResponseExpectation, ResponseReader};

const LIMITS: HeadLimits = HeadLimits {
    bytes: 200,
    fields: 4,
    target: 0,
};
const GET: ResponseExpectation = ResponseExpectation {
    head: false,
    upgrade: false,
};
const HEAD: ResponseExpectation = ResponseExpectation { head: true, ..GET };
const OPEN: ResponseExpectation = ResponseExpectation {
    upgrade: true,
    ..GET
};

type Read = Result<Option<ReceivedResponse>, MessageError>;

/// The verdict, which must be the same whatever the pieces are, and the bytes that are left.
fn read(asked: ResponseExpectation, head: &[u8]) -> (Read, BytesMut) {
    let mut buf = BytesMut::from(head);
    let whole = ResponseReader::new(asked, LIMITS).read(&mut buf);
    for piece in [1, 2, 3, 7] {
        let mut reader = ResponseReader::new(asked, LIMITS);
        let (mut again, mut rest) = (Ok(None), BytesMut::new());
        for piece in head.chunks(piece) {
            rest.extend_from_slice(piece);
            if matches!(again, Ok(None)) {
                again = reader.read(&mut rest);
            }
        }
        let case = head.escape_ascii();
        assert_eq!(format!("{again:?}"), format!("{whole:?}"), "{case}");
        assert_eq!(rest, buf, "{case}");
    }
    (whole, buf)
}

fn received(asked: ResponseExpectation, head: &[u8]) -> ReceivedResponse {
    let case = head.escape_ascii();
    let read = read(asked, head).0;
    read.unwrap_or_else(|error| panic!("{case}: {error}"))
        .unwrap_or_else(|| panic!("{case} is not whole"))
}

#[track_caller]
fn refused(asked: ResponseExpectation, head: &[u8], words: &str) {
    let error = read(asked, head).0.expect_err("a fault").to_string();
    assert!(error.contains(words), "{}: {error}", head.escape_ascii());
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of heads")]
fn what_is_read() {
    const NONE: Framing = Framing::None;
    // Status, reason, framing, whether the connection is kept, and the fields that go on.
    for (head, status, reason, framing, keeps, fields) in [
        (
            &b"HTTP/1.1 200 OK\r\n\r\nbody"[..],
            200,
            "OK",
            NONE,
            true,
            &[][..],
        ),
        (
            b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n",
            200,
            "OK",
            Framing::Length(4),
            true,
            &["Content-Length: 4"],
        ),
        (
            b"HTTP/1.1 404\r\ncontent-length:0\r\n\r\n",
            404,
            "",
            Framing::Length(0),
            true,
            &["content-length: 0"],
        ),
        (
            b"HTTP/1.1 599 \r\nA:\r\n\r\n",
            599,
            "",
            NONE,
            true,
            &["A: "],
        ),
        (b"HTTP/1.1 999 caf\xe9\tx\r\n\r\n", 999, "", NONE, true, &[]),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
            200,
            "OK",
            Framing::Chunked,
            true,
            &["Transfer-Encoding: Chunked"],
        ),
        (
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            304,
            "Not Modified",
            Framing::Length(9),
            true,
            &["Content-Length: 9"],
        ),
        // The status line.
        (b"HTTP/1.2 200 OK\r\n\r\n", 200, "OK", NONE, true, &[]),
        (b"HTTP/1.1 \t200  OK \r\n\r\n", 200, " OK ", NONE, true, &[]),
        (b"HTTP/1.1 200\tO\0K\r\n\r\n", 200, "", NONE, true, &[]),
        // Lines.
        (
            b"HTTP/1.1 200 OK\nA: b\n\n",
            200,
            "OK",
            NONE,
            true,
            &["A: b"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nA: b\nC: d\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &["A: b", "C: d"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nA \t: b\r\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &["A: b"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nA: b\r\n \t c \r\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &["A: b   \t c"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nA:\r\n c\r\n \r\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &["A: c"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &["A: "],
        ),
        (
            b"HTTP/1.1 200 OK\r\n: b\r\n c\r\nA(: b\r\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &[],
        ),
        // Framing.
        (
            b"HTTP/1.1 200 OK\r\nContent-Length : 4\r\n\r\n",
            200,
            "OK",
            Framing::Length(4),
            true,
            &["Content-Length: 4"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 4, 04\r\ncontent-length: 4\r\n\r\n",
            200,
            "OK",
            Framing::Length(4),
            true,
            &["Content-Length: 4"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent_Length: 4\r\n\r\n",
            200,
            "OK",
            NONE,
            true,
            &["Content_Length: 4"],
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            200,
            "OK",
            Framing::Chunked,
            false,
            &["Transfer-Encoding: chunked"],
        ),
        (
            b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
            204,
            "No",
            Framing::Length(0),
            true,
            &[],
        ),
        (
            b"HTTP/1.1 204 No\r\nContent-Length: 1\r\nA: b\r\n\r\n",
            204,
            "No",
            Framing::Length(1),
            false,
            &["A: b"],
        ),
        (
            b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
            204,
            "No",
            Framing::Chunked,
            false,
            &["Transfer-Encoding: chunked"],
        ),
    ] {
        let case = head.escape_ascii().to_string();
        let read = received(GET, head);
        assert_eq!(read.head.status.as_u16(), status, "{case}");
        let usual = read.head.status.canonical_reason().unwrap_or_default();
        let said = read.head.reason.as_deref().unwrap_or(usual.as_bytes());
        assert_eq!((said, read.odd), (reason.as_bytes(), !keeps), "{case}");
        let content = read.content.expect("no other protocol");
        let expected = if status == 204 || status == 304 {
            ContentReader::NONE
        } else {
            ContentReader::of_response(framing)
        };
        assert_eq!(format!("{content:?}"), format!("{expected:?}"), "{case}");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let lines = read.head.fields.iter();
        let lines = lines.map(|(name, value)| format!("{}: {}", text(name), text(value)));
        assert_eq!(lines.collect::<Vec<_>>(), fields, "{case}");
    }
    assert!(matches!(
        read(GET, b"HTTP/1.1 200 OK\r\nA: b\r\n").0,
        Ok(None)
    ));
}

#[test]
fn what_is_refused() {
    for (head, words) in [
        (&b"220 mail.test ESMTP\r\n"[..], "first line"),
        (b"\r\nHTTP/1.1 200 OK\r\n\r\n", "first line"),
        (b"http/1.1 200 OK\r\n\r\n", "first line"),
        (b"HTTP/2 200 OK\r\n\r\n", "first line"),
        (b"HTTP/1.1200 OK\r\n\r\n", "first line"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "first line"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "first line"),
        (b"HTTP/1.1 099 OK\r\n\r\n", "first line"),
        (b"HTTP/1.1 +20 OK\r\n\r\n", "first line"),
        (b"HTTP/1.1 200 OK\r\rA: b\r\n\r\n", "CR or LF alone"),
        (b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n", "CR or LF alone"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\r\n\r\n", "CR or LF alone"),
        (
            b"HTTP/1.1 200 OK\r\nA: b\r\n c\rd\r\n\r\n",
            "CR or LF alone",
        ),
        (
            b"HTTP/1.1 200 OK\r\n A: b\r\n\r\n",
            "starts with white space",
        ),
        (b"HTTP/1.1 200 OK\r\nA\r\n\r\n", "a name, a colon"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length\r\n : 1\r\n\r\n",
            "a name, a colon",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent Length: 1\r\n\r\n",
            "a name, a colon",
        ),
        (
            b"HTTP/1.1 200 OK\r\nA:\r\nB:\r\nC:\r\nD:\r\nE:\r\n\r\n",
            "more than 4 field",
        ),
        (
            &[&b"HTTP/1.1 200 "[..], &[b'x'; 187]].concat(),
            "more than 200 bytes",
        ),
    ] {
        refused(GET, head, words);
    }
}

/// A 204 and the response to HEAD end with their head all the same.
#[test]
fn framing_is_in_doubt_only_where_there_is_content() {
    for (fields, words) in [
        ("Content-Length: 1\r\nContent-Length: 2", "differ"),
        ("Content-Length: 1, 2", "differ"),
        ("Content-Length: +1", "one decimal number"),
        ("Content-Length:", "one decimal number"),
        ("Content-Length: 1\r\n 2", "control byte"),
        ("Content-Length: 1\0", "control byte"),
        ("Transfer-Encoding: gzip, chunked", "not exactly one"),
        ("Transfer-Encoding: identity", "not exactly one"),
        ("Transfer-Encoding: chunked\x0b", "control byte"),
        ("Transfer-Encoding:\r\n chunked", "control byte"),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "not exactly one",
        ),
    ] {
        let head = |status: u16| format!("HTTP/1.1 {status} X\r\n{fields}\r\n\r\n");
        refused(GET, head(200).as_bytes(), words);
        for (asked, status) in [(GET, 204), (GET, 304), (HEAD, 200)] {
            let read = received(asked, head(status).as_bytes());
            assert!(read.odd, "{status} {fields}");
            assert!(read.content.expect("HTTP").is_end(), "{status} {fields}");
            assert!(
                !read.head.fields.contains("content-length"),
                "{status} {fields}"
            );
        }
    }
    let old = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    refused(GET, old, "Transfer-Encoding on HTTP/1.0");
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
    let read = received(HEAD, head);
    assert!(read.content.expect("HTTP").is_end() && !read.odd);
    assert_eq!(read.head.fields.get("content-length"), Some(&b"2"[..]));
}

#[test]
fn interim_responses_are_passed_over() {
    let interim = &b"HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n"[..];
    let last = b"HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\nmore";
    let all = [&interim.repeat(100), &last[..]].concat();
    let (received, rest) = read(GET, &all);
    let received = received.expect("no fault").expect("whole");
    let names: Vec<_> = received.head.fields.iter().map(|(name, _)| name).collect();
    assert_eq!((names, &rest[..]), (vec![&b"A"[..], b"C"], &b"more"[..]));
}

#[test]
fn a_switch_passes_where_it_was_asked_for() {
    let switch = b"HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n";
    assert!(received(OPEN, switch).content.is_none());
    refused(GET, switch, "unasked");
    let refusal = received(OPEN, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
    assert!(matches!(refusal.content, Some(ContentReader::Length(2))));
}
