//! Tests of the reader: what it accepts, what it refuses, and that another reader reads the same,
//! in whatever pieces the bytes come.

use proptest::prelude::*;

use super::chunked::{BodyError, ChunkError, Chunks};
use super::follow::{Follow, Violation};
use super::head::{Framing, HeadError, HeadLimits, fields};
use super::request::{RequestError, RequestErrorKind, RequestHead, RequestReader, is_host};

const LIMITS: HeadLimits = HeadLimits {
    bytes: 512,
    fields: 8,
    target: 64,
};

fn read(head: &[u8]) -> Result<Option<RequestHead>, RequestError> {
    RequestReader::default().read(head, &LIMITS)
}

fn taken(head: &str) -> RequestHead {
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

fn chunks(body: &[u8]) -> Result<(usize, bool), BodyError> {
    let mut chunks = Chunks::default();
    let taken = chunks.read(body, &LIMITS)?;
    Ok((taken, chunks.is_end()))
}

#[test]
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
        ("1;\r\n", ChunkError::Extension(b'\r')),
        ("1 \r\n", ChunkError::Extension(b'\r')),
        ("1 a\r\n", ChunkError::Extension(b'a')),
        ("1;a=\r\n", ChunkError::Extension(b'\r')),
        ("1;a b\r\n", ChunkError::Extension(b'b')),
        ("1;a=\"\r\n", ChunkError::Extension(b'\r')),
        ("1;a=\"\n", ChunkError::LineEnd),
        ("1;a=b \r\n", ChunkError::Extension(b'\r')),
        ("1;a\0\r\n", ChunkError::Extension(0)),
        ("1;a=\"b\"c\r\n", ChunkError::Extension(b'c')),
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

#[test]
fn a_connection_is_followed_from_request_to_request() {
    let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /";
    let second = "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\nA: b\r\n\r\n";
    let third = "GET /c HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut follow = Follow::new(LIMITS);
    let all = format!("{first}{second}{third}GET");
    assert_eq!(follow.feed(all.as_bytes()), (all.len() - 3, Ok(())));
    assert_eq!(follow.heads(), 3);
    assert!(follow.is_in_head(b"GET") && !follow.is_in_head(b"") && !follow.is_in_head(b"\r\n"));

    let mut follow = Follow::new(LIMITS);
    let bad = "GET / HTTP/1.1\r\n\r\n";
    let violation = Violation::Head(3, RequestError::NoHost);
    let all = format!("{first}{second}{bad}{third}");
    assert_eq!(
        follow.feed(all.as_bytes()),
        (first.len() + second.len(), Err(violation))
    );
    assert_eq!(
        follow.feed(third.as_bytes()),
        (0, Ok(())),
        "nothing passes any more"
    );
}

#[test]
fn what_follows_an_upgrade_waits_for_its_answer() {
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nab";
    let next = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut follow = Follow::new(LIMITS);
    let all = format!("{upgrade}{next}");
    assert_eq!(follow.feed(all.as_bytes()), (upgrade.len(), Ok(())));
    assert!(follow.is_held());
    assert_eq!(follow.feed(next.as_bytes()), (0, Ok(())));
    let mut granted = follow.clone();
    follow.resume();
    assert_eq!(follow.feed(next.as_bytes()), (next.len(), Ok(())));
    granted.pass_through();
    assert_eq!(granted.feed(b"\0\n\r"), (3, Ok(())));
}

#[test]
fn http_2_passes_by_its_preface_only() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut follow = Follow::new(LIMITS);
    for end in 0..preface.len() {
        assert_eq!(follow.feed(&preface[..end]), (0, Ok(())));
    }
    assert_eq!(
        follow.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"),
        (26, Ok(()))
    );
    assert!(follow.is_through());
    let mut follow = Follow::new(LIMITS);
    let version = Violation::Head(1, RequestError::Version);
    assert_eq!(follow.feed(b"PRI * HTTP/2.0\r\n\r\nXX"), (0, Err(version)));
    let mut follow = Follow::new(LIMITS);
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(follow.feed(get.as_bytes()).0, get.len());
    assert_eq!(
        follow.feed(preface),
        (0, Err(Violation::Head(2, RequestError::Version)))
    );
}

/// A head made of right parts and wrong ones, then with a few bytes changed.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let method = prop::sample::select(vec![
        "GET", "PUT", "OPTIONS", "CONNECT", "m-x", "P ST", "POST",
    ]);
    let target = prop_oneof![
        Just("/".to_owned()),
        Just("*".to_owned()),
        "/[!-~]{0,12}",
        "(/|[a-z]{1,3}|%[0-9a-f]{2}|[?=&#|\\\\{}<>^`\"]){0,8}",
        "https?://[a-c.:0-9@]{0,6}(/[a-z?#]{0,3})?",
    ];
    let version = prop::sample::select(vec![
        "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0",
    ]);
    let field = prop_oneof![
        Just("Host: a".to_owned()),
        Just("host:b.test:80 ".to_owned()),
        "Content-Length: [0-9+ ,]{1,3}",
        "(Transfer[-_]Encoding|transfer-encoding): ?(chunked|Chunked|gzip, chunked|identity)",
        "(Connection|Upgrade|Expect|TE): ?(close|upgrade|100-continue|[a-z, /\"]{0,8})",
        "[A-Za-z!#-'*+.^_`|~-]{1,8}:[ \t]{0,2}[ -~\u{e9}\t]{0,10}",
    ];
    let fields = prop::collection::vec(field, 0..5);
    let changes = prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            prop_oneof![any::<u8>(), prop::sample::select(b"\r\n\t :\0;,".to_vec())],
            0..3_u8,
        ),
        0..3,
    );
    (method, target, version, fields, any::<bool>(), changes).prop_map(
        |(method, target, version, fields, host, changes)| {
            let mut head = format!("{method} {target} {version}\r\n");
            if host {
                head.push_str("Host: a\r\n");
            }
            for field in fields {
                head.push_str(&field);
                head.push_str("\r\n");
            }
            head.push_str("\r\n");
            let mut head = head.into_bytes();
            for (at, byte, how) in changes {
                let at = at.index(head.len());
                match how {
                    0 => head[at] = byte,
                    1 => head.insert(at, byte),
                    _ => drop(head.remove(at)),
                }
            }
            head
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// Another reader finds the same method, target, version and fields in what is taken, and the same
    /// end; and nothing in the target is lost on its way through `http::Uri`.
    #[test]
    fn what_is_taken_is_read_the_same_way_elsewhere(head in heads()) {
        let Ok(Some(taken)) = read(&head) else { return Ok(()) };
        let mut slots = [httparse::EMPTY_HEADER; 16];
        let mut other = httparse::Request::new(&mut slots);
        let end = other.parse(&head).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(end, httparse::Status::Complete(taken.length));
        let head = head.strip_prefix(b"\r\n").unwrap_or(&head);
        let line_end = head.iter().position(|byte| *byte == b'\r').unwrap_or(0);
        let words: Vec<&[u8]> = head[..line_end].split(|byte| *byte == b' ').collect();
        prop_assert_eq!(words[0], other.method.unwrap_or_default().as_bytes());
        prop_assert_eq!(words[1], other.path.unwrap_or_default().as_bytes());
        prop_assert_eq!(words[2], &b"HTTP/1.1"[..7].iter().copied().chain([b'0' + other.version.unwrap_or(9)]).collect::<Vec<_>>()[..]);
        let own: Vec<_> = fields(&head[line_end + 2..])
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let theirs: Vec<_> = other.headers.iter().map(|field| (field.name.as_bytes(), field.value)).collect();
        prop_assert_eq!(own.iter().map(|field| (field.name, field.value)).collect::<Vec<_>>(), theirs);

        let target = other.path.unwrap_or_default();
        let uri: http::Uri = target.parse().map_err(|_| TestCaseError::fail(format!("{target} is no URI")))?;
        let after = if target.starts_with(['/', '*']) {
            target
        } else {
            let rest = target.split_once("://").map_or("", |(_, rest)| rest);
            rest.find(['/', '?']).map_or("/", |at| &rest[at..])
        };
        let sent = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        prop_assert_eq!(sent.trim_start_matches('/'), after.trim_start_matches('/'));
        prop_assert!(http::Method::from_bytes(words[0]).is_ok());
    }

    /// The verdict, and where the connection stands then, do not depend on the pieces.
    #[test]
    fn pieces_change_nothing(
        parts in prop::collection::vec(prop_oneof![
            heads(),
            Just(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc".to_vec()),
            Just(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0\r\nA: b\r\n\r\n".to_vec()),
            Just(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ], 1..4),
        cuts in prop::collection::vec(1..9_usize, 1..40),
    ) {
        let all: Vec<u8> = parts.concat();
        let mut at_once = Follow::new(LIMITS);
        let (released, verdict) = at_once.feed(&all);

        let mut in_pieces = Follow::new(LIMITS);
        let (mut passed, mut end, mut ended) = (0, 0, Ok(()));
        let mut cuts = cuts.iter().cycle();
        while ended.is_ok() && end < all.len() {
            end = all.len().min(end + cuts.next().copied().unwrap_or(1));
            let (now, then) = in_pieces.feed(&all[passed..end]);
            passed += now;
            ended = then;
        }
        prop_assert_eq!(ended, verdict);
        prop_assert_eq!(in_pieces.heads(), at_once.heads());
        if !matches!(verdict, Err(Violation::Body(_))) {
            prop_assert_eq!(passed, released);
        }
    }

    /// Nothing panics, whatever comes.
    #[test]
    fn any_bytes_get_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (released, _) = Follow::new(LIMITS).feed(&bytes);
        prop_assert!(released <= bytes.len());
        let _ = chunks(&bytes);
    }
}
