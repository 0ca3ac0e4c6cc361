//! Properties that hold for all bytes.

use proptest::prelude::*;

use super::super::request::Request;
use super::{Client, LIMITS, chunks, read};

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

    /// Another reader finds the same method, target, version and fields in what is taken, and the
    /// same end; and nothing in the target is lost on its way through `http::Uri`.
    #[test]
    fn what_is_taken_is_read_the_same_way_elsewhere(head in heads()) {
        let Ok(Some(taken)) = read(&head) else { return Ok(()) };
        let mut slots = [httparse::EMPTY_HEADER; 16];
        let mut other = httparse::Request::new(&mut slots);
        let end = other.parse(&head).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(end, httparse::Status::Complete(taken.length));
        let skipped = if head.starts_with(b"\r\n") { 2 } else { 0 };
        let head = &head[skipped..];
        let line_end = head.iter().position(|byte| *byte == b'\r').unwrap_or(0);
        let words: Vec<&[u8]> = head[..line_end].split(|byte| *byte == b' ').collect();
        prop_assert_eq!(words[0], other.method.unwrap_or_default().as_bytes());
        prop_assert_eq!(words[1], other.path.unwrap_or_default().as_bytes());
        prop_assert_eq!(words[2], &b"HTTP/1.1"[..7].iter().copied().chain([b'0' + other.version.unwrap_or(9)]).collect::<Vec<_>>()[..]);
        let own = Request::read(&head[..taken.length - skipped], 0, &LIMITS);
        let own = own.map_err(|error| TestCaseError::fail(error.to_string()))?.head.fields;
        let theirs: Vec<_> = other.headers.iter().map(|field| (field.name.as_bytes(), field.value)).collect();
        prop_assert_eq!(own.iter().collect::<Vec<_>>(), theirs);

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
        let mut at_once = Client::new();
        let verdict = at_once.feed(&all);

        let mut in_pieces = Client::new();
        let (mut end, mut ended) = (0, Ok(()));
        let mut cuts = cuts.iter().cycle();
        while ended.is_ok() && end < all.len() {
            let next = all.len().min(end + cuts.next().copied().unwrap_or(1));
            ended = in_pieces.feed(&all[end..next]);
            end = next;
        }
        prop_assert_eq!(ended, verdict);
        prop_assert_eq!(in_pieces.seen, at_once.seen);
    }

    /// Nothing panics, whatever comes.
    #[test]
    fn any_bytes_get_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Client::new().feed(&bytes);
        let _ = chunks(&bytes);
    }
}
