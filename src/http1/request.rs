//! The head of a request.
//!
//! Narrower than RFC 9112 where readers differ. Careful clients send nothing of what is refused:
//!
//! - HTTP/1.0 and 1.1 only. `Transfer-Encoding` on 1.0 is refused (RFC 9112, 6.1 calls its framing
//!   faulty).
//! - One Host with a plain host in it: a registered name in letters, digits and `-._~`, or an IP
//!   address. A port has digits. Escapes, empty ports and sub-delims would be second spellings of
//!   one host.
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

mod error;

use std::net::Ipv6Addr;
use std::ops::Range;

pub use self::error::{RequestError, RequestErrorKind};
use super::head::{
    Field, FieldLines, FieldRange, Framing, HeadError, HeadLimits, HeadLines, is_tchar, is_token,
    trim,
};

/// `http::Uri` takes no more.
const LONGEST_TARGET: usize = 65_534;

/// The parts of a head that the end of the request depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeHead {
    /// The length of the head, up to the end of its empty line.
    pub length: usize,
    pub framing: Framing,
    /// It asks to leave HTTP: the bytes after its content may be another protocol.
    pub upgrade: bool,
}

/// The first line of a head, and where its parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartLine {
    pub method: Range<usize>,
    pub target: Range<usize>,
    pub http_11: bool,
    /// The range of an absolute-form target's authority in the head.
    pub authority: Option<Range<usize>>,
}

/// Reads one head, piece by piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestReader {
    lines: HeadLines,
    /// An empty line has come before the start line.
    skipped: bool,
    start: Option<StartLine>,
    fields: FieldLines,
    /// The range of its value in the head.
    host: Option<Range<usize>>,
    expect: bool,
    upgrade: bool,
    wishes: HeadWishes,
}

/// The wishes of the client for the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeadWishes {
    close: bool,
    keep_alive: bool,
    trailers: bool,
}

impl RequestReader {
    /// Prepares for the next head, and keeps the memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self {
            fields,
            ..Self::default()
        };
    }

    /// The first line. `None`: it has not come.
    #[must_use]
    pub const fn start(&self) -> Option<&StartLine> {
        self.start.as_ref()
    }

    /// The fields that have come.
    #[must_use]
    pub fn fields(&self) -> &[FieldRange] {
        &self.fields.ranges
    }

    /// True if the client waits for `100 Continue`. HTTP/1.0 does not have it (RFC 9110, 10.1.1).
    #[must_use]
    pub fn expects(&self) -> bool {
        self.expect && self.start().is_some_and(|start| start.http_11)
    }

    /// True if the connection may be used again. In HTTP/1.0 the client must ask for that (RFC
    /// 9112, 9.3).
    #[must_use]
    pub fn keeps(&self) -> bool {
        let asked = |start: &StartLine| start.http_11 || self.wishes.keep_alive;
        !self.wishes.close && self.start().is_some_and(asked)
    }

    /// True if the client accepts trailers (RFC 9110, 10.1.4).
    #[must_use]
    pub const fn takes_trailers(&self) -> bool {
        self.wishes.trailers
    }

    /// Reads the head from its first byte: the bytes of the last call, and new ones, which may go
    /// beyond the head. `None`: the head is not whole.
    ///
    /// The verdict does not depend on the pieces in which it comes.
    pub fn read(
        &mut self,
        bytes: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<WholeHead>, RequestError> {
        let head = &bytes[..bytes.len().min(limits.bytes)];
        // Refuses anything else at once, without waiting for the end of the line.
        if self.start.is_none()
            && head
                .first()
                .is_some_and(|byte| *byte != b'\r' && !is_tchar(*byte))
        {
            return Err(match head[0] {
                b'\n' => HeadError::BareLf.into(),
                _ => RequestError::StartLine,
            });
        }
        loop {
            let begin = self.lines.position();
            let Some(line) = self.lines.next(head)? else {
                return if head.len() < limits.bytes {
                    Ok(None)
                } else if self.start.is_none() && head[begin..].contains(&b' ') {
                    Err(RequestError::TargetLong(limits.target))
                } else {
                    Err(HeadError::Bytes(limits.bytes).into())
                };
            };
            if self.start.is_none() {
                // One empty line before the request, as RFC 9112, 2.2 asks for.
                if line.is_empty() && !self.skipped {
                    self.skipped = true;
                } else {
                    self.start = Some(StartLine::parse(line, begin, limits)?);
                }
            } else if line.is_empty() {
                return self.whole(head).map(Some);
            } else {
                let (field, value) = self.fields.add(line, begin, limits)?;
                self.field(&field, &value)?;
            }
        }
    }

    fn field(&mut self, field: &Field<'_>, value: &Range<usize>) -> Result<(), RequestError> {
        let has = |member: &str| {
            let mut members = field.value.split(|byte| *byte == b',').map(trim);
            members.any(|one| one.eq_ignore_ascii_case(member.as_bytes()))
        };
        match field.name.len() {
            2 if field.is("te") => self.wishes.trailers |= has("trailers"),
            4 if field.is("host") => {
                if self.host.is_some() {
                    return Err(HeadError::Repeated("Host").into());
                }
                if !is_host(field.value) {
                    return Err(RequestError::Host);
                }
                self.host = Some(value.clone());
            }
            6 if field.is("expect") => {
                if std::mem::replace(&mut self.expect, true) {
                    return Err(HeadError::Repeated("Expect").into());
                }
                if !field.value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(RequestError::Expect);
                }
            }
            7 if field.is("upgrade") => {
                if std::mem::replace(&mut self.upgrade, true) {
                    return Err(HeadError::Repeated("Upgrade").into());
                }
                let protocol = |member: &[u8]| {
                    let mut parts = member.splitn(2, |byte| *byte == b'/');
                    parts.all(is_token)
                };
                list(field.value, protocol).map_err(|()| RequestError::List("Upgrade"))?;
            }
            10 if field.is("connection") => {
                list(field.value, is_token).map_err(|()| RequestError::List("Connection"))?;
                self.wishes.close |= has("close");
                self.wishes.keep_alive |= has("keep-alive");
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks all lines together.
    fn whole(&self, head: &[u8]) -> Result<WholeHead, RequestError> {
        let framing = self.fields.framing.framing()?;
        let Some(start) = &self.start else {
            return Err(RequestError::StartLine);
        };
        if framing == Framing::Chunked && !start.http_11 {
            return Err(RequestError::CodingOn10);
        }
        match (&self.host, &start.authority) {
            (None, Some(_)) if !start.http_11 => {}
            (None, _) => return Err(RequestError::NoHost),
            (Some(_), None) => {}
            (Some(host), Some(authority)) => {
                if !head[host.clone()].eq_ignore_ascii_case(&head[authority.clone()]) {
                    return Err(RequestError::OtherHost);
                }
            }
        }
        Ok(WholeHead {
            length: self.lines.position(),
            framing,
            // RFC 9110, 7.8: to be ignored on HTTP/1.0.
            upgrade: self.upgrade && start.http_11,
        })
    }
}

impl StartLine {
    /// `begin`: the start of the line in the head.
    fn parse(line: &[u8], begin: usize, limits: &HeadLimits) -> Result<Self, RequestError> {
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(RequestError::StartLine);
        };
        if method == b"CONNECT" {
            return Err(RequestError::Connect);
        }
        if !is_token(method) || target.is_empty() {
            return Err(RequestError::StartLine);
        }
        let http_11 = match version {
            b"HTTP/1.1" => true,
            b"HTTP/1.0" => false,
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
                return Err(RequestError::Version);
            }
            _ => return Err(RequestError::StartLine),
        };
        let longest = limits.target.min(LONGEST_TARGET);
        if target.len() > longest {
            return Err(RequestError::TargetLong(longest));
        }
        let at = begin + method.len() + 1;
        let authority = check_target(method, target)?;
        Ok(Self {
            method: begin..begin + method.len(),
            target: at..at + target.len(),
            http_11,
            authority: authority.map(|range| at + range.start..at + range.end),
        })
    }
}

/// Checks a target. Returns where the authority of an absolute-form target is in it.
fn check_target(method: &[u8], target: &[u8]) -> Result<Option<Range<usize>>, RequestError> {
    let asterisk = target == b"*";
    if asterisk && method == b"OPTIONS" {
        return Ok(None);
    }
    if target[0] == b'/' {
        return check_path_and_query(target).map(|()| None);
    }
    let Some(scheme) = ["http://", "https://"].into_iter().find(|scheme| {
        target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    }) else {
        return Err(RequestError::TargetForm);
    };
    let rest = &target[scheme.len()..];
    let end = rest
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?' | b'#'))
        .unwrap_or(rest.len());
    if !is_host(&rest[..end]) {
        return Err(RequestError::Host);
    }
    check_path_and_query(&rest[end..])?;
    // `OPTIONS http://host` means `OPTIONS *` (RFC 9112, 3.2.4), and not `/`.
    if method == b"OPTIONS" && rest.get(end) != Some(&b'/') {
        return Err(RequestError::TargetForm);
    }
    Ok(Some(scheme.len()..scheme.len() + end))
}

fn check_path_and_query(target: &[u8]) -> Result<(), RequestError> {
    let mut query = false;
    for byte in target {
        let taken = match byte {
            b'#' | b'<' | b'>' => false,
            b'`' => query,
            b'"' | b'\\' => !query,
            b'?' => {
                query = true;
                true
            }
            byte => byte.is_ascii_graphic(),
        };
        if !taken {
            return Err(RequestError::Target(*byte));
        }
    }
    Ok(())
}

/// True if this is a host, with a port or without, in the one accepted spelling.
#[must_use]
pub fn is_host(value: &[u8]) -> bool {
    let (host, port) = if let [b'[', rest @ ..] = value {
        let Some(end) = rest.iter().position(|byte| *byte == b']') else {
            return false;
        };
        let address = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        if address.parse::<Ipv6Addr>().is_err() {
            return false;
        }
        (&b"ip"[..], &rest[end + 1..])
    } else {
        let end = value
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(value.len());
        value.split_at(end)
    };
    let name = !host.is_empty()
        && host
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte));
    let port = match port {
        [] => true,
        [b':', digits @ ..] => {
            (1..=5).contains(&digits.len())
                && digits.iter().all(u8::is_ascii_digit)
                && std::str::from_utf8(digits).is_ok_and(|text| text.parse::<u16>().is_ok())
        }
        _ => false,
    };
    name && port
}

/// Checks the members of a list, and ignores empty ones (RFC 9110, 5.6.1).
fn list(value: &[u8], member: impl Fn(&[u8]) -> bool) -> Result<(), ()> {
    let well_formed = value
        .split(|byte| *byte == b',')
        .map(trim)
        .all(|one| one.is_empty() || member(one));
    if well_formed { Ok(()) } else { Err(()) }
}
