//! Connections of clients: where one request ends and the next begins.

use super::super::client_framing::{ClientFraming, ClientPart, Violation};
use super::super::request::RequestError;
use super::{LIMITS, feed};

#[test]
fn a_connection_is_followed_from_request_to_request() {
    let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /";
    let second = "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\nA: b\r\n\r\n";
    let third = "GET /c HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut framing = ClientFraming::new(LIMITS);
    let all = format!("{first}{second}{third}GET");
    assert_eq!(feed(&mut framing, all.as_bytes()), (all.len() - 3, Ok(())));
    assert!(framing.is_in_head(b"GET") && !framing.is_in_head(b"") && !framing.is_in_head(b"\r\n"));

    let mut framing = ClientFraming::new(LIMITS);
    let bad = "GET / HTTP/1.1\r\n\r\n";
    let violation = Violation::Head(RequestError::NoHost);
    let all = format!("{first}{second}{bad}{third}");
    assert_eq!(
        feed(&mut framing, all.as_bytes()),
        (first.len() + second.len(), Err(violation))
    );
    assert_eq!(
        feed(&mut framing, third.as_bytes()),
        (0, Ok(())),
        "nothing passes any more"
    );
}

#[test]
fn what_follows_an_upgrade_waits_for_its_answer() {
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nab";
    let next = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut framing = ClientFraming::new(LIMITS);
    let all = format!("{upgrade}{next}");
    assert_eq!(feed(&mut framing, all.as_bytes()), (upgrade.len(), Ok(())));
    assert_eq!(feed(&mut framing, next.as_bytes()), (0, Ok(())));
    framing.resume();
    assert_eq!(feed(&mut framing, next.as_bytes()), (next.len(), Ok(())));
}

#[test]
fn http_2_passes_by_its_preface_only() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut framing = ClientFraming::new(LIMITS);
    for end in 0..preface.len() {
        assert_eq!(feed(&mut framing, &preface[..end]), (0, Ok(())));
    }
    let rest = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0";
    assert_eq!(framing.next(rest), Ok(ClientPart::Http2(26)));
    let mut framing = ClientFraming::new(LIMITS);
    let version = Violation::Head(RequestError::Version);
    assert_eq!(
        feed(&mut framing, b"PRI * HTTP/2.0\r\n\r\nXX"),
        (0, Err(version))
    );
    let mut framing = ClientFraming::new(LIMITS);
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(feed(&mut framing, get.as_bytes()).0, get.len());
    assert_eq!(
        feed(&mut framing, preface),
        (0, Err(Violation::Head(RequestError::Version)))
    );
}
