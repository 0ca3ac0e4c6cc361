//! The head of a request.
//!
//! Narrower than RFC 9112 where readers differ. Careful clients send nothing of what is refused:
//!
//! - HTTP/1.0 and 1.1 only. `Transfer-Encoding` on 1.0 is refused (RFC 9112, 6.1 calls its framing
//!   faulty).
//! - One Host, which HTTP/1.0 may leave out, with a plain host in it: a registered name in letters,
//!   digits and `-._~`, or an IP address. A port has digits. Escapes, empty ports and sub-delims
//!   would be second spellings of one host.
//! - The target is visible ASCII without `#`. `http::Uri` would silently cut a fragment, so the
//!   upstream would get another target than the client sent.
//! - The path has no `<`, `>` or `` ` ``: RFC 3986 does not allow them, and no upstream needs them.
//!   RFC 3986 allows `\`, `"`, `^`, `{`, `|` and `}` only escaped, too. These are left to
//!   [`crate::routing`], which refuses them unless a route says `allow`.
//! - The query has no `\`, `"`, `<` or `>`. It may have `^`, `` ` ``, `{`, `|` and `}`: browsers
//!   send them raw (<https://url.spec.whatwg.org/#query-percent-encode-set>), and no server splits
//!   a query at them.
//! - Absolute-form has the same host as the Host field (RFC 9112, 3.2.2 would let the target win).
//!   The upstream gets origin-form. Authority-form goes with CONNECT, which is refused.

use std::net::Ipv6Addr;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Version};

use super::content::{CODING_ON_1_0, Framing, content_length, is_chunked, is_framing_twin};
use super::fields::{connection_has, members};
use super::head::{
    HeadEnd, HeadLimits, LINE_END, MessageError, REPEATED, is_tchar, is_token, length_of, number,
};
use super::names::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, UPGRADE};
use super::{Fields, RequestHead, Target};

/// The first bytes of an HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const START_LINE: MessageError = MessageError::Malformed(
    "the first line is not `method target HTTP/1.1`, with one space between each two",
);
const TARGET_FORM: MessageError =
    MessageError::Malformed("the target is neither a path nor an http URL");
const BAD_HOST: MessageError =
    MessageError::Malformed("Host is not one name or address, with a port or without");

/// A request whose head has come.
pub struct Request {
    pub head: RequestHead,
    pub framing: Framing,
    /// The client waits for `100 Continue`. HTTP/1.0 does not have it (RFC 9110, 10.1.1).
    pub expects: bool,
    /// The connection may be used again. In HTTP/1.0 the client must ask for that (RFC 9112, 9.3).
    pub keeps: bool,
    /// It asks to leave HTTP: the bytes after its content may be another protocol. To be ignored on
    /// HTTP/1.0 (RFC 9110, 7.8).
    pub upgrade: bool,
}

/// The next head of a connection.
#[allow(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum NextHead {
    /// It is not whole.
    None,
    /// The client speaks HTTP/2.
    Http2,
    Request(Request),
}

/// Reads the heads of a client's connection, piece by piece. No byte of a head is handed on before
/// the whole head has passed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestReader {
    /// The connection is one of HTTP/1.
    begun: bool,
    end: HeadEnd,
    /// An empty line before the start line has been taken.
    skipped: bool,
}

impl RequestReader {
    /// Takes the next head off `buf`, which has the bytes of the last call and new ones. A refused
    /// head stays, without the empty line before it. The beginning of the next message is not certain
    /// then, so nothing more may be read.
    ///
    /// The verdict does not depend on the pieces in which it comes.
    pub fn read(
        &mut self,
        buf: &mut BytesMut,
        limits: &HeadLimits,
    ) -> Result<NextHead, MessageError> {
        if !self.begun {
            if buf.starts_with(PREFACE) {
                return Ok(NextHead::Http2);
            }
            if PREFACE.starts_with(buf) {
                return Ok(NextHead::None);
            }
            self.begun = true;
        }
        // One empty line before the request, as RFC 9112, 2.2 asks for.
        if !self.skipped && buf.starts_with(b"\r\n") {
            buf.advance(2);
            self.skipped = true;
            self.end = HeadEnd::default();
        }
        // Refuses anything else at once, without waiting for the end of the head.
        match buf.first() {
            None | Some(b'\r') => {}
            Some(byte) if is_tchar(*byte) => {}
            Some(b'\n') => return Err(LINE_END),
            Some(_) => return Err(START_LINE),
        }
        match self.end.find(buf, limits) {
            Ok(None) => Ok(NextHead::None),
            Ok(Some(length)) => {
                self.skipped = false;
                let lines = std::mem::take(&mut self.end).lines;
                let request = Request::read(&buf[..length], lines, limits)?;
                buf.advance(length);
                Ok(NextHead::Request(request))
            }
            Err(_) if self.end.lines == 0 && buf[..limits.bytes].contains(&b' ') => {
                Err(MessageError::TargetLong(limits.target))
            }
            Err(error) => Err(error),
        }
    }
}

impl Request {
    /// Reads a whole head, which has about this number of lines.
    pub fn read(head: &[u8], lines: usize, limits: &HeadLimits) -> Result<Self, MessageError> {
        let end = length_of(head, |byte| byte != b'\n');
        let (method, target, version) = start_line(&head[..end], limits)?;
        if head.len() > limits.bytes {
            return Err(MessageError::Bytes(limits.bytes));
        }
        let fields = Fields::read(head, end + 1, lines, limits)?;
        let http_11 = version == Version::HTTP_11;
        let framing = framing(&fields, http_11)?;
        match (one(&fields, HOST)?, target.authority.as_deref()) {
            (None, _) if !http_11 => {}
            (None, _) => return Err(MessageError::Malformed("there is no Host")),
            (Some(host), _) if !is_host(host) => return Err(BAD_HOST),
            (Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
                return Err(MessageError::Malformed(
                    "Host and the target's authority differ",
                ));
            }
            (Some(_), _) => {}
        }
        let expect = one(&fields, EXPECT)?;
        if expect.is_some_and(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(MessageError::Malformed("Expect is not `100-continue`"));
        }
        let upgrade = one(&fields, UPGRADE)?;
        let protocol = |member: &[u8]| member.splitn(2, |byte| *byte == b'/').all(is_token);
        if !members(&fields, CONNECTION).all(is_token) || !members(&fields, UPGRADE).all(protocol) {
            return Err(MessageError::Malformed(
                "Connection or Upgrade is not a list of tokens",
            ));
        }
        Ok(Self {
            framing,
            expects: expect.is_some() && http_11,
            keeps: !connection_has(&fields, "close")
                && (http_11 || connection_has(&fields, "keep-alive")),
            upgrade: upgrade.is_some() && http_11,
            head: RequestHead::new(method, target, version, fields),
        })
    }
}

/// The value of a field that may have one line. Equal lines are refused too, since readers differ on
/// which they take.
fn one<'a>(fields: &'a Fields, name: &'a str) -> Result<Option<&'a [u8]>, MessageError> {
    let mut values = fields.get_all(name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(REPEATED),
    }
}

fn framing(fields: &Fields, http_11: bool) -> Result<Framing, MessageError> {
    if fields.iter().any(|(name, _)| is_framing_twin(name)) {
        return Err(MessageError::Malformed(
            "a name that some servers take for Content-Length or Transfer-Encoding",
        ));
    }
    match (one(fields, CONTENT_LENGTH)?, is_chunked(fields)?) {
        (None, false) => Ok(Framing::None),
        // A list of equal numbers is refused, though RFC 9112, 6.3 lets a recipient accept it: the
        // upstream may read it otherwise.
        (Some(length), false) => content_length(length).map(Framing::Length),
        (None, true) if http_11 => Ok(Framing::Chunked),
        (None, true) => Err(CODING_ON_1_0),
        (Some(_), true) => Err(MessageError::Malformed(
            "both Content-Length and Transfer-Encoding; the end of the body can be read in two ways",
        )),
    }
}

/// Reads the first line of a head, without its LF.
fn start_line(line: &[u8], limits: &HeadLimits) -> Result<(Method, Target, Version), MessageError> {
    let line = line.strip_suffix(b"\r").ok_or(LINE_END)?;
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(START_LINE);
    };
    if method == b"CONNECT" {
        return Err(MessageError::Connect);
    }
    if !is_token(method) || target.is_empty() {
        return Err(START_LINE);
    }
    let version = match version {
        b"HTTP/1.1" => Version::HTTP_11,
        b"HTTP/1.0" => Version::HTTP_10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(MessageError::Version);
        }
        _ => return Err(START_LINE),
    };
    if target.len() > limits.target {
        return Err(MessageError::TargetLong(limits.target));
    }
    let (authority, target) = split_target(method, target)?;
    let method = Method::from_bytes(method).map_err(|_| START_LINE)?;
    let target = Target::parse(target, authority.map(Bytes::copy_from_slice));
    Ok((method, target.ok_or(START_LINE)?, version))
}

/// Checks a target, and takes the authority off one in absolute form.
fn split_target<'a>(
    method: &[u8],
    target: &'a [u8],
) -> Result<(Option<&'a [u8]>, &'a [u8]), MessageError> {
    if target == b"*" && method == b"OPTIONS" {
        return Ok((None, target));
    }
    if target[0] == b'/' {
        check_path_and_query(target)?;
        return Ok((None, target));
    }
    let scheme = ["http://", "https://"].into_iter().find(|scheme| {
        let start = target.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    });
    let rest = &target[scheme.ok_or(TARGET_FORM)?.len()..];
    let (authority, rest) = rest.split_at(length_of(rest, |byte| !b"/?#".contains(&byte)));
    if !is_host(authority) {
        return Err(BAD_HOST);
    }
    check_path_and_query(rest)?;
    // `OPTIONS http://host` means `OPTIONS *` (RFC 9112, 3.2.4), and not `/`.
    if method == b"OPTIONS" && !rest.starts_with(b"/") {
        return Err(TARGET_FORM);
    }
    Ok((Some(authority), rest))
}

fn check_path_and_query(target: &[u8]) -> Result<(), MessageError> {
    let path = length_of(target, |byte| byte != b'?');
    let wrong = |(at, byte): (usize, &u8)| match byte {
        b'#' | b'<' | b'>' => true,
        b'`' => at < path,
        b'"' | b'\\' => at > path,
        byte => !byte.is_ascii_graphic(),
    };
    match target.iter().enumerate().position(wrong) {
        Some(at) => Err(MessageError::Target(target[at])),
        None => Ok(()),
    }
}

/// True if this is a host, with a port or without, in the one accepted spelling.
pub fn is_host(value: &[u8]) -> bool {
    let (host, port) = if value.starts_with(b"[") {
        let end = length_of(value, |byte| byte != b']');
        let address = std::str::from_utf8(&value[1..end]).unwrap_or_default();
        if address.parse::<Ipv6Addr>().is_err() || end == value.len() {
            return false;
        }
        (&b"ip"[..], &value[end + 1..])
    } else {
        value.split_at(length_of(value, |byte| byte != b':'))
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let port = match port {
        [] => true,
        [b':', digits @ ..] => {
            digits.len() <= 5 && number(digits, 10).is_some_and(|port| port <= u16::MAX.into())
        }
        _ => false,
    };
    !host.is_empty() && length_of(host, is_name) == host.len() && port
}
