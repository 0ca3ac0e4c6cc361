//! Trailers of responses: which fields may be there, and which `Trailer` may announce.
//!
//! A client may merge trailers into the header. So fields that are allowed only in a header are
//! removed (RFC 9110, 6.5.1), and so are those that the response's `Connection` names. `Trailer`
//! never announces a field that is removed. Requests' trailers are not forwarded at all.

use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::connection::connection_named;
use super::edit::remove_where;
use super::fields::members;
use super::names::{HOP_BY_HOP, end_to_end, is_fencing, plain, same_name};

/// The fields that are not allowed in one message's trailers.
#[derive(Clone, Debug, Default)]
pub struct TrailerRules {
    /// The fields besides those that are never allowed.
    barred: Vec<HeaderName>,
}

impl TrailerRules {
    /// Of a message with this header, as it came: `Connection` names trailers too (RFC 9110,
    /// 7.6.1).
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        Self {
            barred: connection_named(headers),
        }
    }

    fn forbids(&self, name: &HeaderName) -> bool {
        forbidden(name)
            || self
                .barred
                .iter()
                .any(|barred| same_name(name, barred.as_str()))
    }

    /// Removes the forbidden fields from a message's trailers.
    pub fn strip(&self, trailers: &mut HeaderMap) {
        remove_where(trailers, |name| self.forbids(name));
    }

    /// Removes from `Trailer` the fields that [`Self::strip`] will remove from the trailers.
    pub fn announce(&self, headers: &mut HeaderMap) {
        let members = || members(headers, &TRAILER);
        let stays =
            |member: &&[u8]| HeaderName::from_bytes(member).is_ok_and(|name| !self.forbids(&name));
        if members().all(|member| stays(&member)) {
            return;
        }
        let kept: Vec<&[u8]> = members().filter(stays).collect();
        let line = HeaderValue::from_bytes(&kept.join(&b", "[..]));
        match line {
            Ok(line) if !kept.is_empty() => headers.insert(TRAILER, line),
            _ => headers.remove(TRAILER),
        };
    }
}

/// Fields that may only stand in a header (RFC 9110, 6.5.1): framing, routing, authentication,
/// modifiers of the request, controls of the response, and the format of the content; and those
/// that this proxy adds. Digests are what trailers are for (RFC 9530), and stay, as do
/// `ETag` (RFC 9110, 8.8.3) and gRPC's status.
fn forbidden(name: &HeaderName) -> bool {
    if ["content-digest", "etag"].contains(&name.as_str()) {
        return false;
    }
    let dashed: String = name
        .as_str()
        .bytes()
        .map(|byte| char::from(plain(byte)))
        .collect();
    is_fencing(name)
        || end_to_end(&dashed)
        || dashed.starts_with("proxy-")
        || HOP_BY_HOP.iter().any(|field| *field == *dashed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(header: &[(&str, &str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in header {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        TrailerRules::of(&headers).announce(&mut headers);
        let lines = headers.get_all(TRAILER).iter();
        lines
            .map(|line| line.to_str().expect("text").to_owned())
            .collect()
    }

    #[test]
    fn nothing_is_announced_that_will_not_come() {
        assert_eq!(announced(&[]), [""; 0]);
        assert_eq!(announced(&[("trailer", "x-fencing-token")]), [""; 0]);
        assert_eq!(
            announced(&[("trailer", "X-Checksum,X_Fencing_Token , content_length")]),
            ["X-Checksum"]
        );
        assert_eq!(
            announced(&[
                ("trailer", "a, X-Hop"),
                ("trailer", "no name, b"),
                ("connection", "x_hop")
            ]),
            ["a, b"]
        );
        // A correct list stays as it was written.
        assert_eq!(
            announced(&[("trailer", "X-A,,x-b"), ("trailer", " ETag")]),
            ["X-A,,x-b", " ETag"]
        );
    }

    #[test]
    fn what_connection_names_is_no_trailer() {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("X-Hop, close"));
        let rules = TrailerRules::of(&headers);
        let mut trailers = HeaderMap::new();
        for name in ["x-hop", "x_hop", "x-other"] {
            trailers.insert(name, HeaderValue::from_static("1"));
        }
        rules.strip(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-other"]);
    }
}
