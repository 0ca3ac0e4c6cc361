//! Connections of clients: where one request ends and the next begins.

use super::Client;

#[test]
fn a_connection_is_followed_from_request_to_request() {
    let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /";
    let second = "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\nA: b\r\n\r\n";
    let third = "GET /c HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut client = Client::new();
    client
        .feed(format!("{first}{second}\r\n{third}GET").as_bytes())
        .expect("well-formed");
    let seen = [("/a", "GET /"), ("/b", "GET"), ("/c", "")];
    let seen = seen.map(|(target, body)| (target.to_owned(), body.as_bytes().to_vec()));
    assert_eq!(client.seen, seen);
    assert_eq!(&client.buf[..], b"GET");

    let mut client = Client::new();
    let bad = "GET / HTTP/1.1\r\n\r\n";
    let all = format!("{first}{second}{bad}{third}");
    let error = client.feed(all.as_bytes()).expect_err("no Host");
    assert_eq!(error.to_string(), "there is no Host");
    assert_eq!(client.seen, seen[..2]);
}

#[test]
fn data_before_a_fault_is_handed_on_and_the_fault_stays() {
    let mut client = Client::new();
    let all = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX";
    let first = client.feed(all.as_bytes()).expect_err("no CRLF");
    assert_eq!(client.seen, [("/a".to_owned(), b"abc".to_vec())]);
    assert_eq!(client.feed(b"\r\n0\r\n\r\n"), Err(first));
    assert_eq!(client.seen.len(), 1);
}

#[test]
fn http_2_passes_by_its_preface_only() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut client = Client::new();
    for end in 0..preface.len() {
        assert!(!client.http2, "after {end} bytes");
        client.feed(&preface[end..=end]).expect("no fault");
    }
    assert!(client.http2 && client.buf == preface[..]);
    let version = "neither HTTP/1.1 nor HTTP/1.0";
    let other = Client::new().feed(b"PRI * HTTP/2.0\r\n\r\nXX");
    assert_eq!(other.expect_err("no preface").to_string(), version);
    let mut client = Client::new();
    client
        .feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("well-formed");
    let late = client.feed(preface).expect_err("too late");
    assert_eq!(late.to_string(), version);
}
