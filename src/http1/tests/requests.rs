//! Heads of requests.

use http::{Method, Version};

use super::super::content::Framing;
use super::super::request::{Request, is_host};
use super::{LIMITS, Whole, read};

fn taken(head: &str) -> Whole {
    let read = read(head.as_bytes());
    read.unwrap_or_else(|error| panic!("{head:?}: {error}"))
        .unwrap_or_else(|| panic!("{head:?} is not whole"))
}

#[track_caller]
fn refused(head: &str, words: &str) {
    let error = read(head.as_bytes()).expect_err(head).to_string();
    assert!(error.contains(words), "{head:?}: {error}");
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
        ("GET / HTTP/1.0\r\n\r\n", Framing::None),
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
        refused(&format!("{line}\r\nHost: a\r\n\r\n"), "first line");
    }
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0"] {
        refused(
            &format!("GET / {version}\r\nHost: a\r\n\r\n"),
            "neither HTTP/1.1",
        );
    }
    refused("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "CONNECT");
    refused("\x16\x03\x01\x02", "first line");
    refused("\nGET / HTTP/1.1\r\n\r\n", "CR or LF alone");
    refused("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "first line");
    refused("GET / HTTP/1.1\nHost: a\n\n", "CR or LF alone");
    refused("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "CR or LF alone");
}

#[test]
fn targets_name_one_thing() {
    for target in [
        "*", "orders", "a:443", "ftp://a/", "http:/a", "http:a", "?x", ":", "http",
    ] {
        refused(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            "neither a path",
        );
    }
    for target in ["http://a", "http://a?x"] {
        refused(
            &format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            "neither a path",
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
            &format!("0x{byte:02x} in the target"),
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
            "Host is not one name",
        );
    }
    for target in ["http://b/", "http://a:80/", "http://a.test/"] {
        refused(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            "authority differ",
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
    refused("GET / HTTP/1.1\r\n\r\n", "no Host");
    refused("GET http://a/ HTTP/1.1\r\n\r\n", "no Host");
    refused("GET / HTTP/1.1\r\nHost:\r\n\r\n", "Host is not one name");
    refused(
        "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        "more than once",
    );
}

#[test]
fn fields_that_matter_are_single_and_well_formed() {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    for (fields, error) in [
        (
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "both Content-Length",
        ),
        ("Content-Length: 1\r\nContent-Length: 1", "more than once"),
        ("Content-Length: 1, 1", "one decimal number"),
        ("Transfer-Encoding: xchunked", "not exactly one"),
        ("Transfer-Encoding: \x0bchunked", "control byte"),
        (
            "Transfer-Encoding\x0b: chunked",
            "a name, a colon, and a value",
        ),
        (
            "Transfer-Encoding : chunked",
            "a name, a colon, and a value",
        ),
        ("Transfer_Encoding: chunked", "some servers take"),
        (
            "Expect: 100-continue\r\nExpect: 100-continue",
            "more than once",
        ),
        ("Expect: 200-ok", "Expect is not"),
        ("Upgrade: a\r\nUpgrade: b", "more than once"),
        ("Upgrade: a b", "list of tokens"),
        ("Upgrade: a/", "list of tokens"),
        ("Connection: a b", "list of tokens"),
        ("Connection: \"close\"", "list of tokens"),
        ("X: a\r\n b", "starts with white space"),
        ("X: a\r\n\tb", "starts with white space"),
        ("X", "a name, a colon, and a value"),
        (": x", "a name, a colon, and a value"),
    ] {
        refused(&with(fields), error);
    }
    refused(" POST / HTTP/1.1\r\n\r\n", "first line");
    refused(
        "POST / HTTP/1.1\r\n Host: a\r\n\r\n",
        "starts with white space",
    );
    refused(
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "Transfer-Encoding on HTTP/1.0",
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
    refused(&long(65), "a target of more than 64");
    refused(
        &format!("GET /{}", "a".repeat(600)),
        "a target of more than 64",
    );
    refused(&"a".repeat(600), "more than 512 bytes");
    let lines = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "A: b\r\n".repeat(count - 1)
        )
    };
    taken(&lines(8));
    refused(&lines(9), "more than 8 field lines");
    let bytes = |length: usize| {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
        head.replace("X: ", &format!("X: {}", "x".repeat(length - head.len())))
    };
    assert_eq!(taken(&bytes(512)).length, 512);
    refused(&bytes(513), "more than 512 bytes");
    assert_eq!(read(&bytes(513).as_bytes()[..511]), Ok(None));
}

fn request(head: &'static [u8]) -> Request {
    Request::read(head, 0, &LIMITS).expect("it passes")
}

#[test]
fn a_request_is_what_was_sent() {
    let head = request(
        b"PUT /a//b?x=%2f&y HTTP/1.1\r\nhost:app.test:80\r\nX-A: \t 1 2 \t\r\nx-a:\r\nSOAPAction: \xe9\r\n\r\n",
    );
    let head = head.head;
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
    let head = request(b"OPTIONS * HTTP/1.0\r\nHost: a\r\nUser-Agent: b\r\n\r\n").head;
    assert_eq!(head.target.as_str(), "*");
    assert_eq!(head.version, Version::HTTP_10);
    let head = request(b"GET http://a:1/x?y HTTP/1.1\r\nHost: a:1\r\n\r\n").head;
    assert_eq!(head.target.as_str(), "/x?y");
    assert_eq!(head.target.authority.as_deref(), Some(&b"a:1"[..]));
    let head = request(b"GET http://a?y HTTP/1.1\r\nHost: a\r\n\r\n").head;
    assert_eq!(head.target.as_str(), "/?y");
}

#[test]
fn a_head_says_what_becomes_of_its_connection() {
    let read = |version: &str, fields: &str| {
        let head = format!("GET / {version}\r\nHost: a\r\n{fields}\r\n\r\n");
        let request = Request::read(head.as_bytes(), 0, &LIMITS).expect("it passes");
        (request.keeps, request.expects)
    };
    assert_eq!(read("HTTP/1.1", "A: b"), (true, false));
    assert_eq!(read("HTTP/1.0", "A: b"), (false, false));
    assert_eq!(
        read(
            "HTTP/1.0",
            "Connection: x, Keep-Alive\r\nExpect: 100-continue"
        ),
        (true, false)
    );
    assert_eq!(
        read(
            "HTTP/1.1",
            "Connection: x\r\nConnection: Close\r\nExpect: 100-continue"
        ),
        (false, true)
    );
}
