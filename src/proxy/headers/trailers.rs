//! Trailers of responses: which fields may be there, and which `Trailer` may announce.
//!
//! A client may merge trailers into the header. So fields that are allowed only in a header are
//! removed (RFC 9110, 6.5.1), and so are those that the response's `Connection` names. `Trailer`
//! never announces a field that is removed. Requests' trailers are not forwarded at all.

use http::HeaderMap;

use super::fields::connection_named;
use super::names::{end_to_end, is_fencing, is_hop_by_hop, same_name};
use crate::http1::Fields;
use crate::http1::head::{is_token, plain};
use crate::http1::members;
use crate::http1::names::TRAILER;

/// The fields that are not allowed in one message's trailers.
#[derive(Clone, Debug, Default)]
pub struct TrailerRules {
    /// The fields besides those that are never allowed.
    pub(super) barred: Vec<String>,
}

impl TrailerRules {
    /// Of a message with these fields, as they came: `Connection` names trailers too (RFC 9110,
    /// 7.6.1).
    #[must_use]
    pub fn of(fields: &Fields) -> Self {
        Self {
            barred: connection_named(fields),
        }
    }

    fn forbids(&self, name: &[u8]) -> bool {
        forbidden(name) || self.barred.iter().any(|barred| same_name(name, barred))
    }

    /// Removes from trailers what is not allowed there.
    pub fn strip(&self, trailers: &mut HeaderMap) {
        let names: Vec<_> = trailers.keys().cloned().collect();
        for name in names {
            if self.forbids(name.as_str().as_bytes()) {
                trailers.remove(name);
            }
        }
    }

    /// Removes from `Trailer` what will not come. A correct list stays as it was written.
    pub fn announce(&self, fields: &mut Fields) {
        let stays = |member: &&[u8]| is_token(member) && !self.forbids(member);
        if members(fields, TRAILER).all(|member| stays(&member)) {
            return;
        }
        let kept: Vec<&[u8]> = members(fields, TRAILER).filter(stays).collect();
        let line = kept.join(&b", "[..]);
        fields.remove(TRAILER);
        if !line.is_empty() {
            fields.append(TRAILER, line);
        }
    }
}

/// True of a field that is never a trailer, in any spelling: it frames or routes messages, or stands
/// in the header for all recipients.
fn forbidden(name: &[u8]) -> bool {
    let dashed = name.iter().map(|byte| char::from(plain(*byte)));
    let dashed: String = dashed.collect();
    if ["content-digest", "etag"]
        .iter()
        .any(|known| known.as_bytes().eq_ignore_ascii_case(name))
    {
        return false;
    }
    is_fencing(name)
        || end_to_end(&dashed)
        || dashed.starts_with("proxy-")
        || is_hop_by_hop(dashed.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(header: &[(&str, &str)]) -> Vec<String> {
        let mut fields = Fields::default();
        for (name, value) in header {
            fields.append(name, value);
        }
        TrailerRules::of(&fields).announce(&mut fields);
        let lines = fields.get_all(TRAILER);
        let text = |line: &[u8]| String::from_utf8(line.to_vec()).expect("text");
        lines.map(text).collect()
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
        let mut fields = Fields::default();
        fields.insert("connection", "X-Hop, close");
        let rules = TrailerRules::of(&fields);
        let mut trailers = HeaderMap::new();
        for name in ["x-hop", "x_hop", "x-other"] {
            trailers.insert(name, http::HeaderValue::from_static("1"));
        }
        rules.strip(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-other"]);
    }
}
