//! Heads of requests.

use super::super::head::{Framing, HeadError};
use super::super::request::{RequestError, RequestErrorKind, WholeHead, is_host};
use super::read;

fn taken(head: &str) -> WholeHead {
    let read = read(head.as_bytes());
    read.unwrap_or_else(|error| panic!("{head:?}: {error}"))
        .unwrap_or_else(|| panic!("{head:?} is not whole"))
}

#[track_caller]
fn refused(head: &str, error: RequestError) {
    assert_eq!(read(head.as_bytes()), Err(error), "{head:?}");
    assert!(error.to_string().len() > 6, "{error}");
}

#[test]
fn plain_requests_are_taken() {
    for (head, framing) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Framing::None),
        ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Framing::None),
        ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", Framing::None),
        (
            "PUT /orders/7?a[]=1|2&b={c} HTTP/1.1\r\nHOST:\tA.test:8080 \r\ncontent-length: 3\r\n\r\n",
            Framing::Length(3),
        ),
        (
            "POST / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n",
            Framing::Chunked,
        ),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Framing::None),
        (
            "GET http://A:80/x?y HTTP/1.1\r\nHost: a:80\r\n\r\n",
            Framing::None,
        ),
        ("GET HTTPS://a HTTP/1.1\r\nHost: a\r\n\r\n", Framing::None),
        ("GET http://a?x HTTP/1.1\r\nHost: a\r\n\r\n", Framing::None),
        ("GET http://a/ HTTP/1.0\r\n\r\n", Framing::None),
        (
            "OPTIONS http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            Framing::None,
        ),
        (
            "put /%20;a=b/\\\"{}|^[] HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 0\r\n\r\n",
            Framing::Length(0),
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, , X-Y\r\nConnection: te\r\n\r\n",
            Framing::None,
        ),
    ] {
        let read = taken(head);
        assert_eq!(
            (read.framing, read.length, read.upgrade),
            (framing, head.len(), false),
            "{head}"
        );
    }
    let upgrade = "Host: a\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c, a/1\r\n\r\n";
    assert!(taken(&format!("GET / HTTP/1.1\r\n{upgrade}")).upgrade);
    assert!(!taken(&format!("GET / HTTP/1.0\r\n{upgrade}")).upgrade);
}

#[test]
fn start_lines_have_one_form() {
    for line in [
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET /",
        "GET",
        "GET / / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET  HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1",
        "GET / HTTP/1.10",
        "GET / HTTP/11",
        "GET / HTTP/ 1.1",
        "GET / HTP/1.1",
        "GET /\tHTTP/1.1",
        "\"GET\" / HTTP/1.1",
        ": / HTTP/1.1",
    ] {
        refused(
            &format!("{line}\r\nHost: a\r\n\r\n"),
            RequestError::StartLine,
        );
    }
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0"] {
        refused(
            &format!("GET / {version}\r\nHost: a\r\n\r\n"),
            RequestError::Version,
        );
    }
    refused(
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        RequestError::Connect,
    );
    refused("\x16\x03\x01\x02", RequestError::StartLine);
    refused("\nGET / HTTP/1.1\r\n\r\n", HeadError::BareLf.into());
    refused(
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        RequestError::StartLine,
    );
    refused("GET / HTTP/1.1\nHost: a\n\n", HeadError::BareLf.into());
    refused("GET / HTTP/1.1\rHost: a\r\r", HeadError::BareCr.into());
}

#[test]
fn targets_name_one_thing() {
    for target in [
        "*", "orders", "a:443", "ftp://a/", "http:/a", "http:a", "?x", ":", "http",
    ] {
        refused(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            RequestError::TargetForm,
        );
    }
    for target in ["http://a", "http://a?x"] {
        refused(
            &format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            RequestError::TargetForm,
        );
    }
    for (target, byte) in [
        ("/a#b", b'#'),
        ("/#", b'#'),
        ("http://a#b", b'#'),
        ("/<", b'<'),
        ("/>", b'>'),
        ("/`", b'`'),
        ("/?\\", b'\\'),
        ("/?\"", b'"'),
        ("/?<", b'<'),
        ("/?>", b'>'),
        ("/?#", b'#'),
        ("/\x01", 1),
        ("/\x7f", 0x7f),
        ("/a\tb", 9),
        ("/é", 0xc3),
        ("/?é", 0xc3),
        ("/\0", 0),
    ] {
        refused(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            RequestError::Target(byte),
        );
    }
    for target in [
        "http://a@b/",
        "http:///",
        "http://",
        "http://a:/",
        "http://a:x/",
        "https://[::1/",
        "http://%61/",
    ] {
        refused(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            RequestError::Host,
        );
    }
    for target in ["http://b/", "http://a:80/", "http://a.test/"] {
        refused(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            RequestError::OtherHost,
        );
    }
}

#[test]
fn hosts_have_one_spelling() {
    for host in [
        "a",
        "A.b-c_d~e",
        "1.2.3.4",
        "a:1",
        "a:65535",
        "[::1]",
        "[::ffff:1.2.3.4]:8080",
        "xn--caf-dma.test",
    ] {
        assert!(is_host(host.as_bytes()), "{host}");
    }
    for host in [
        "",
        ":80",
        "a:",
        "a:0x1",
        "a:65536",
        "a:000080",
        "a:+1",
        "a b",
        "a,b",
        "a/b",
        "a@b",
        "a?b",
        "a#b",
        "a\\b",
        "%61",
        "é",
        "[::1",
        "::1",
        "[]",
        "[1.2.3.4]",
        "[::1]a",
        "[::1%25eth0]",
        "[v1.a]",
        "a:1:2",
        "a;b",
        "a'b",
        "[::1]:",
        "a\tb",
        "a\0",
    ] {
        assert!(!is_host(host.as_bytes()), "{host}");
    }
    refused("GET / HTTP/1.1\r\n\r\n", RequestError::NoHost);
    refused("GET / HTTP/1.0\r\n\r\n", RequestError::NoHost);
    refused("GET http://a/ HTTP/1.1\r\n\r\n", RequestError::NoHost);
    refused("GET / HTTP/1.1\r\nHost:\r\n\r\n", RequestError::Host);
    refused(
        "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        HeadError::Repeated("Host").into(),
    );
}

#[test]
fn fields_that_matter_are_single_and_well_formed() {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    for (fields, error) in [
        (
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            HeadError::TwoFramings.into(),
        ),
        (
            "Content-Length: 1\r\nContent-Length: 1",
            HeadError::Repeated("Content-Length").into(),
        ),
        ("Content-Length: 1, 1", HeadError::Length.into()),
        ("Transfer-Encoding: xchunked", HeadError::Coding.into()),
        (
            "Transfer-Encoding: \x0bchunked",
            HeadError::Value(0x0b).into(),
        ),
        (
            "Transfer-Encoding\x0b: chunked",
            HeadError::Name(0x0b).into(),
        ),
        (
            "Transfer-Encoding : chunked",
            HeadError::SpaceBeforeColon.into(),
        ),
        (
            "Transfer_Encoding: chunked",
            HeadError::Twin("Transfer-Encoding").into(),
        ),
        (
            "Expect: 100-continue\r\nExpect: 100-continue",
            HeadError::Repeated("Expect").into(),
        ),
        ("Expect: 200-ok", RequestError::Expect),
        (
            "Upgrade: a\r\nUpgrade: b",
            HeadError::Repeated("Upgrade").into(),
        ),
        ("Upgrade: a b", RequestError::List("Upgrade")),
        ("Upgrade: a/", RequestError::List("Upgrade")),
        ("Connection: a b", RequestError::List("Connection")),
        ("Connection: \"close\"", RequestError::List("Connection")),
        ("X: a\r\n b", HeadError::Folded.into()),
        ("X: a\r\n\tb", HeadError::Folded.into()),
        ("X", HeadError::NoColon.into()),
        (": x", HeadError::EmptyName.into()),
    ] {
        refused(&with(fields), error);
    }
    refused(" POST / HTTP/1.1\r\n\r\n", RequestError::StartLine);
    refused(
        "POST / HTTP/1.1\r\n Host: a\r\n\r\n",
        HeadError::Folded.into(),
    );
    refused(
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        RequestError::CodingOn10,
    );
}

#[test]
fn limits_are_exact() {
    let long = |target: usize| {
        format!(
            "GET /{} HTTP/1.1\r\nHost: a\r\n\r\n",
            "a".repeat(target - 1)
        )
    };
    taken(&long(64));
    refused(&long(65), RequestError::TargetLong(64));
    refused(
        &format!("GET /{}", "a".repeat(600)),
        RequestError::TargetLong(64),
    );
    refused(&"a".repeat(600), HeadError::Bytes(512).into());
    let lines = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "A: b\r\n".repeat(count - 1)
        )
    };
    taken(&lines(8));
    refused(&lines(9), HeadError::Fields(8).into());
    let bytes = |length: usize| {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
        head.replace("X: ", &format!("X: {}", "x".repeat(length - head.len())))
    };
    assert_eq!(taken(&bytes(512)).length, 512);
    refused(&bytes(513), HeadError::Bytes(512).into());
    assert_eq!(read(&bytes(513).as_bytes()[..511]), Ok(None));
    assert_eq!(
        RequestError::Head(HeadError::Bytes(512)).kind(),
        RequestErrorKind::HeadBytes
    );
}
