//! The exchanges that are tried: methods, bodies, fields, statuses, answers.

use fencepost::routing::SAFE_METHODS;

use super::cases::{EchoCase, chunked, noise, pieces, sized};

/// The matrix.
pub fn all() -> Vec<EchoCase> {
    let mut cases = methods();
    cases.extend(bodies());
    cases.extend(request_fields());
    cases.extend(statuses());
    cases.extend(answers());
    let unfenced: Vec<EchoCase> = cases
        .iter()
        .filter(|case| SAFE_METHODS.contains(&&*case.method))
        .cloned()
        .map(|case| EchoCase {
            name: format!("{}, unfenced", case.name),
            fenced: false,
            ..case
        })
        .collect();
    cases.extend(unfenced);
    for (number, case) in cases.iter_mut().enumerate() {
        case.number = number;
    }
    cases
}

fn methods() -> Vec<EchoCase> {
    let mut cases = Vec::new();
    for method in [
        "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PROPFIND", "PURGE",
        "M-SEARCH", "LABEL", "REPORT", "QUERY", "X_OWN",
    ] {
        cases.push(EchoCase::new(format!("{method} without a body"), method));
        if method != "HEAD" {
            let case = EchoCase::new(format!("{method} with a body"), method);
            cases.push(case.body(b"a body\0\r\n\xff"));
            let case = EchoCase::new(format!("{method} with chunks"), method);
            cases.push(case.chunks(pieces(b"in some chunks", &[3, 1]), ""));
            let case = EchoCase::new(format!("{method} with a body that is streamed"), method);
            cases.push(case.chunks(vec![noise((1 << 20) + 1)], ""));
        }
    }
    for method in ["GETS", "XPUT", "X!#$%&'*+.^`|~0"] {
        let case = EchoCase::new(format!("the method {method}"), method);
        cases.push(case.body("b"));
    }
    let query = "?a=1&&b=%2f%2F;c+d='()*!~&e=[]?/:@%ff";
    for method in ["GET", "PUT"] {
        let mut case = EchoCase::new(format!("{method} with a query"), method);
        case.query = query;
        cases.push(case);
        let mut case = EchoCase::new(format!("{method} with an empty query"), method);
        case.query = "?";
        cases.push(case);
    }
    cases
}

fn bodies() -> Vec<EchoCase> {
    const MIB: usize = 1 << 20;
    let mut cases = Vec::new();
    for size in [0, 1, 8191, 8192, 8193, MIB - 1, MIB, MIB + 1, 16 * MIB] {
        let body = noise(size);
        let case = EchoCase::new(format!("{size} bytes with a length, both ways"), "PUT");
        cases.push(case.body(&body).answer(sized("200 OK", b"", &body)));

        let odd: &[usize] = if size <= 8193 {
            &[1, 7, 3]
        } else {
            &[4093, 1, 65_537, 13]
        };
        let mut down =
            b"HTTP/1.1 200 OK\r\nX-Is: chunked\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        down.extend_from_slice(&chunked(&pieces(&body, odd), b""));
        let case = EchoCase::new(format!("{size} bytes in odd chunks, both ways"), "PUT");
        cases.push(case.chunks(pieces(&body, odd), "").answer(down));
    }
    let sums = "X-Sum: 1\r\nx-Empty: \r\nX-Sum: 2\r\n";
    let down = format!(
        "HTTP/1.1 200 OK\r\nTrailer: X-Sum, X-Empty\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{sums}\r\n"
    );
    for size in [0, 3, 2 * MIB] {
        let case = EchoCase::new(
            format!("trailers behind {size} bytes, from both sides"),
            "PUT",
        );
        let case = case.lines(&["Trailer: X-Sum, X-Empty", "TE: trailers", "Connection: TE"]);
        let case = case.chunks(pieces(&noise(size), &[70_001]), sums);
        cases.push(case.answer(&down));
    }
    cases.push(
        EchoCase::new("a body that is asked for first", "PUT")
            .line("Expect: 100-continue")
            .body(noise(5000)),
    );
    cases.push(
        EchoCase::new("a long body that is asked for first", "PUT")
            .line("expect: 100-Continue")
            .body(noise(2 * MIB)),
    );
    cases.push(
        EchoCase::new("an encoded body, both ways", "POST")
            .line("Content-Encoding: gzip")
            .line("Accept-Encoding: gzip, br;q=0.5, *;q=0")
            .body(b"\x1f\x8b\x08\0not really")
            .answer(sized(
                "200 OK",
                b"Content-Encoding: br\r\nVary: Accept-Encoding\r\nETag: W/\"x\"\r\n",
                b"\x0b\x02\x80nor this",
            )),
    );
    cases
}

/// A field with every byte that a value may have.
fn every_byte() -> Vec<u8> {
    b"X-Bytes: a"
        .iter()
        .copied()
        .chain(0x80..=0xff)
        .chain(0x20..=0x7e)
        .collect()
}

fn request_fields() -> Vec<EchoCase> {
    let put = |name: &str| EchoCase::new(name, "PUT").body("b");
    let long = format!("X-Long: {}", "v".repeat(8192));
    let traced = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    vec![
        put("fields in no order").lines(&["Z: 1", "B: 2", "Accept: */*", "A: 3", "Y: 4", "C: 5"]),
        put("lines of one name apart").lines(&["X-A: 2", "X-B: 1", "x-a: 1", "X-B: 0", "X-A: 3"]),
        put("names in every case").lines(&[
            "x-lower: 1",
            "X-UPPER: 2",
            "X-MiXeD-cASE: 3",
            "content-TYPE: text/plain",
            "aCCEPT-language: de",
            "etag: x",
            "DNT: 1",
            "SOAPAction: \"urn:x\"",
        ]),
        put("names of odd signs").lines(&["X!#$%&'*+.^`|~1: 1", "_: 2", "x_y: 3", "1: 4"]),
        put("values of every byte").line(every_byte()),
        put("empty values").lines(&["X-A:", "X-B: ", "X-C:\t ", "X-D: x"]),
        put("white space").lines(&["X-A: \t a\t b \t", "X-B:c", "X-C: , ,\",\" ;=, "]),
        put("a long value").line(long),
        put("fields that decide").lines(&[
            "If-Match: \"a\", W/\"b\"",
            "If-None-Match: *",
            "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "If-Range: \"a\"",
            "Range: bytes=0-0,-1, 5-",
            "Authorization: Digest a=\"b\", c=d",
            "Cache-Control: no-cache, max-age=0",
            "Prefer: respond-async",
            "Max-Forwards: 3",
            "Date: Tue, 15 Nov 1994 08:12:31 GMT",
            "Content-Range: bytes 0-0/1",
            "Content-Location: /x",
        ]),
        put("cookies").lines(&["Cookie: a=1; b=\"2\"; c=", "Cookie: d=\u{e9}"]),
        put("what other proxies have added").lines(&[
            "X-Forwarded-For: 192.0.2.1, 198.51.100.2",
            "X-Forwarded-For: 203.0.113.3",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: public.test",
            "Forwarded: for=192.0.2.1;proto=https",
            "Via: 1.0 first, 1.1 second",
            traced,
            "tracestate: a=1,b=2",
            "X-Request-Id: 7",
            "X-Real-IP: 192.0.2.1",
        ]),
        put("a key of the client's").line("Idempotency-Key: mine"),
        put("fields of the connection").lines(&[
            "Connection: X-Hop, keep-alive",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "X-End: 1",
            "Proxy-Connection: keep-alive",
        ]),
        EchoCase {
            version: "HTTP/1.0",
            ..put("HTTP/1.0")
        },
        EchoCase {
            version: "HTTP/1.0",
            ..EchoCase::new("HTTP/1.0 GET", "GET")
        },
        EchoCase::new("a range", "GET")
            .line("Range: bytes=1-2")
            .answer(sized(
                "206 Partial Content",
                b"Content-Range: bytes 1-2/5\r\nAccept-Ranges: bytes\r\nETag: \"a\"\r\n",
                b"on",
            )),
    ]
}

fn statuses() -> Vec<EchoCase> {
    let mut cases = Vec::new();
    let odd = ["200 ", "200 Fine by me", "404 not  here; (really): \"no\""];
    let statuses = [
        200, 201, 202, 203, 206, 207, 226, 299, 300, 301, 302, 303, 307, 308, 400, 401, 402, 403,
        404, 405, 406, 409, 410, 411, 412, 413, 415, 416, 418, 422, 423, 428, 429, 451, 499, 500,
        501, 502, 503, 504, 507, 599,
    ];
    let usual = statuses.map(|status| {
        let known = http::StatusCode::from_u16(status).expect("a status");
        format!("{status} {}", known.canonical_reason().unwrap_or("Own"))
    });
    for status in usual.iter().map(String::as_str).chain(odd) {
        let lines =
            b"Location: /elsewhere\r\nRetry-After: 7\r\nWWW-Authenticate: Basic realm=\"a\"\r\n\
            WWW-Authenticate: Bearer\r\nAllow: GET, PUT\r\n";
        let case = EchoCase::new(format!("answer {status}"), "PUT").body("b");
        cases.push(case.answer(sized(status, lines, b"why\n")));
    }
    let mut odd = b"HTTP/1.1 200 Gut gemacht, J\xfcrgen\r\nContent-Length: 2\r\n\r\n".to_vec();
    odd.extend_from_slice(b"ok");
    cases.push(EchoCase::new("a reason that is not ASCII", "PUT").answer(odd));
    let no_content = "HTTP/1.1 204 No Content\r\nETag: \"a\"\r\nX-A: 1\r\n\r\n";
    cases.push(EchoCase::new("answer 204", "DELETE").answer(no_content));
    let no_content = "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
    cases.push(EchoCase::new("answer 204 with a length", "DELETE").answer(no_content));
    let reset = sized("205 Reset Content", b"X-A: 1\r\n", b"");
    cases.push(EchoCase::new("answer 205", "POST").answer(reset));
    let not_modified = "HTTP/1.1 304 Not Modified\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\nETag: \"a\"\r\n\
        Vary: Accept\r\nCache-Control: max-age=5\r\nContent-Location: /x\r\nExpires: 0\r\n\r\n";
    cases.push(EchoCase::new("answer 304", "GET").answer(not_modified));
    let not_modified = "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 700\r\n\r\n";
    cases.push(EchoCase::new("answer 304 with a length", "GET").answer(not_modified));
    cases
}

fn answers() -> Vec<EchoCase> {
    let put = |name: &str, answer: &[u8]| EchoCase::new(name, "PUT").body("b").answer(answer);
    let bytes = [&every_byte()[..], b"\r\n"].concat();
    let long = format!("X-Long: {}\r\n", "v".repeat(8192));
    let ok = |lines: &[u8]| sized("200 OK", lines, b"ok");
    vec![
        put("fields of the answer in no order", &ok(b"Z: 1\r\nB: 2\r\nServer: own/1\r\nA: 3\r\nAge: 4\r\n")),
        put("cookies of the answer", &ok(b"Set-Cookie: b=2; Path=/\r\nX-A: 1\r\nSet-Cookie: a=1\r\nset-cookie: b=\r\n")),
        put("names of the answer in every case", &ok(b"x-lower: 1\r\nX-UPPER: 2\r\nx-MiXeD: 3\r\neTAG: \"a\"\r\ncontent-type: text/plain\r\n")),
        put("values of the answer of every byte", &ok(&bytes)),
        put("empty values of the answer", &ok(b"X-A:\r\nX-B: \t\r\nX-C: c\r\n")),
        put("a long value of the answer", &ok(long.as_bytes())),
        put("the answer's own date", &ok(b"Date: Tue, 15 Nov 1994 08:12:31 GMT\r\nLast-Modified: Tue, 15 Nov 1994 08:12:31 GMT\r\n")),
        put("fields of the upstream's connection", &ok(b"Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=60\r\nX-End: 1\r\n")),
        put("other proxies behind", &ok(b"Via: 1.0 other\r\nX-Cache: HIT\r\nAge: 7\r\n")),
        put("an answer that ends with its connection", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nto the end").closes(),
        put("an empty answer that ends with its connection", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n").closes(),
        put("an answer of HTTP/1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok").closes(),
        put("an answer of HTTP/1.0 to its end", b"HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nto the end").closes(),
        put("a connection that is closed behind an answer", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").closes(),
        put("early hints", b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        put("processing", b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        put("chunks with extensions", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0;last\r\n\r\n"),
        EchoCase::new("HEAD with a length", "HEAD").answer("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\nETag: \"a\"\r\n\r\n"),
        EchoCase::new("HEAD with a length of 0", "HEAD").answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        EchoCase::new("HEAD without a length", "HEAD").answer("HTTP/1.1 200 OK\r\nETag: \"a\"\r\n\r\n"),
        EchoCase::new("HEAD of chunks", "HEAD").answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: \"a\"\r\n\r\n"),
        EchoCase::new("HEAD not found", "HEAD").answer("HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n"),
        EchoCase::new("GET with an answer that ends with its connection", "GET").answer("HTTP/1.1 200 OK\r\n\r\nto the end").closes(),
    ]
}
