//! Chunked bodies: sizes, extensions and trailers.

use super::super::content::content_length;
use super::chunks;

#[track_caller]
fn refused(body: &str, words: &str) {
    let error = chunks(body.as_bytes()).expect_err(body).to_string();
    assert!(error.contains(words), "{body:?}: {error}");
}

#[test]
fn a_length_is_one_decimal_number() {
    assert_eq!(content_length(b"0"), Ok(0));
    assert_eq!(content_length(b"007"), Ok(7));
    let most = i64::MAX.unsigned_abs();
    assert_eq!(content_length(most.to_string().as_bytes()), Ok(most));
    for length in [
        "",
        "+1",
        "-1",
        "1,1",
        "1, 1",
        "0x1",
        "1.0",
        "1e1",
        "1 1",
        "9223372036854775808",
        "\u{661}",
        "1;",
        "\"1\"",
    ] {
        content_length(length.as_bytes()).expect_err(length);
    }
}

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
            let (taken, whole) = chunks(&body.as_bytes()[..end]).expect("no fault yet");
            assert!(taken <= end && !whole, "{body:?} to {end}");
        }
    }
    for (body, error) in [
        ("\r\n", "chunk"),
        ("g\r\n", "chunk"),
        ("0x1\r\n", "chunk"),
        ("-1\r\n", "chunk"),
        ("+1\r\n", "chunk"),
        (" 1\r\n", "chunk"),
        (";a\r\n", "chunk"),
        ("1_0\r\n", "chunk"),
        ("8000000000000000\r\n", "chunk"),
        ("00000000000000001\r\n", "chunk"),
        ("fffffffffffffffff\r\n", "chunk"),
        ("1\n", "chunk"),
        ("1\ra\r\n", "chunk"),
        ("1\r\nab", "chunk"),
        ("1\r\na\n", "chunk"),
        ("1\r\na\rb", "chunk"),
        ("1;a\n", "chunk"),
        ("1;\n", "chunk"),
        ("1 \r\n", "chunk"),
        ("1 a\r\n", "chunk"),
        ("1;a=\"\n", "chunk"),
        ("1;a\0\r\n", "chunk"),
    ] {
        refused(body, error);
    }
    for (trailer, error) in [
        ("A : b\r\n", "a name, a colon, and a value"),
        (" A: b\r\n", "starts with white space"),
        ("A\r\n", "a name, a colon, and a value"),
        (": b\r\n", "a name, a colon, and a value"),
        ("A: b\n", "CR or LF alone"),
        ("\n", "CR or LF alone"),
        ("A: b\rc", "CR or LF alone"),
        ("\ra", "a name, a colon, and a value"),
        ("A: \0\r\n", "control byte"),
        ("A\0: \r\n", "a name, a colon, and a value"),
        ("\0", "a name, a colon, and a value"),
    ] {
        refused(&format!("0\r\n{trailer}\r\n\r\n"), error);
    }
    let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(9));
    refused(&many, "more than 8 field lines");
    let long = format!("0\r\nA: {}", "b".repeat(600));
    refused(&long, "more than 512 bytes");
    let extended = "1;a=bcdefghi\r\nx\r\n".repeat(500);
    refused(&extended, "4096 bytes of chunk extensions");
    refused(
        &format!("1;{}", "a".repeat(5000)),
        "4096 bytes of chunk extensions",
    );
    let most = chunks(b"7fffffffffffffff\r\nabc");
    assert_eq!(most, Ok((21, false)));
}
