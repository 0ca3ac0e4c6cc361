//! Names and values of header fields: how two spellings compare, the groups that decide what a
//! proxy does with a field, and the values of which only one may be there.

use crate::http1::head::{is_token, same_name};
use crate::http1::names::{CONTENT_ENCODING, CONTENT_TYPE};
use crate::http1::{Fields, connection_has};
use crate::routing::{HOP_BY_HOP, begins};

/// Why a field whose one value matters has none that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FieldError(String);

/// The only value of a field; `None` if it is absent. A second line is malformed, and so is a name
/// that some servers take for the right one, alone or beside it.
pub fn single<'a>(fields: &'a Fields, name: &str) -> Result<Option<&'a [u8]>, FieldError> {
    let mut found = None;
    for (known, value) in fields.iter().filter(|(known, _)| same_name(known, name)) {
        if !known.eq_ignore_ascii_case(name.as_bytes()) {
            let twin = String::from_utf8_lossy(known).to_ascii_lowercase();
            return Err(FieldError(format!(
                "{twin} is the same as {name} for some servers; send {name} only"
            )));
        }
        if found.replace(value).is_some() {
            return Err(FieldError(format!(
                "{name} is given more than once; send one line"
            )));
        }
    }
    Ok(found)
}

/// The text of a field that a key is made of (`{header.x-tenant}`), or that names something: one
/// line, UTF-8, no white space around it, and sure to reach the upstream.
pub fn text<'a>(fields: &'a Fields, name: &str) -> Result<Option<&'a str>, FieldError> {
    let Some(value) = single(fields, name)? else {
        return Ok(None);
    };
    if connection_has(fields, name) {
        return Err(FieldError(format!(
            "{name} is named in Connection, which would take it off the request; leave it out there"
        )));
    }
    let text = std::str::from_utf8(value);
    text.map(|text| Some(text.trim_matches(BLANK)))
        .map_err(|_| FieldError(format!("{name} is not UTF-8; send it in ASCII or UTF-8")))
}

const BLANK: [char; 2] = [' ', '\t'];

/// Refuses a header that does not announce content which is JSON to every reader: declared once, in
/// UTF-8, not encoded. A reader that takes `text/plain` for a form, or inflates deflated content,
/// finds other members than those that the key was made of.
pub fn json(fields: &Fields) -> Result<(), FieldError> {
    if text(fields, CONTENT_ENCODING)?.is_none() && text(fields, CONTENT_TYPE)?.is_some_and(is_json)
    {
        return Ok(());
    }
    Err(FieldError(
        "the resource key of this route is taken from the body: send it without a \
         Content-Encoding, and with the Content-Type application/json or one that ends in +json, \
         in UTF-8"
            .to_owned(),
    ))
}

fn is_json(line: &str) -> bool {
    let mut parts = line.split(';').map(|part| part.trim_matches(BLANK));
    let media = parts.next().and_then(|media| media.split_once('/'));
    let Some((kind, subtype)) = media.filter(|(kind, _)| is_token(kind.as_bytes())) else {
        return false;
    };
    let plain = kind.eq_ignore_ascii_case("application") && subtype.eq_ignore_ascii_case("json");
    let suffixed = is_token(subtype.as_bytes())
        && subtype
            .rsplit_once('+')
            .is_some_and(|(name, suffix)| !name.is_empty() && suffix.eq_ignore_ascii_case("json"));
    (plain || suffixed) && parts.all(keeps_utf_8)
}

/// Says if a parameter of a media type names no other charset than UTF-8 (RFC 8259, 8.1), and is
/// read in one way: without escapes, and without a comma or a semicolon that only quotes protect.
/// Empty ones may be there (RFC 9110, 5.6.6).
fn keeps_utf_8(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return parameter.is_empty();
    };
    let quoted = value
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let text = quoted.unwrap_or(value);
    let plain = !text.is_empty() && !text.contains(['"', '\\', ',']);
    let is_charset = name.eq_ignore_ascii_case("charset");
    let is_utf_8 = || ["utf-8", "utf8"].contains(&&*text.to_ascii_lowercase());
    is_token(name.as_bytes()) && plain && (!is_charset || is_utf_8())
}

/// Says if a message is one of a gRPC call. gRPC-Web does not count: its trailers are in the body.
pub fn is_grpc(fields: &Fields) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let content = fields.get(CONTENT_TYPE).unwrap_or_default();
    let (start, rest) = content.split_at(TYPE.len().min(content.len()));
    start.eq_ignore_ascii_case(TYPE) && matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..])
}

const METHOD_OVERRIDES: [&str; 4] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-method",
];

/// Fields by which frameworks route in place of the request's own target (Symfony, Zend, IIS).
/// Others that carry a path (`X-Original-URI`, `X-Forwarded-Uri`, `X-Forwarded-Prefix`,
/// `X-Envoy-Original-Path`) are set by common proxies on every request, to be read and not routed
/// by.
const PATH_OVERRIDES: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// Fields that are no trailers, besides those of one connection and the beginnings below: they route
/// a message, or decide about it before its content is read (RFC 9110, 6.5.1).
const NO_TRAILERS: [&str; 11] = [
    "authorization",
    "cache-control",
    "cookie",
    "host",
    "location",
    "max-forwards",
    "set-cookie",
    "trailer",
    "vary",
    "via",
    "www-authenticate",
];
const NO_TRAILERS_BEGIN: [&str; 5] = ["content-", "if-", "proxy-", "x-fencing-", "x-forwarded-"];

/// The values of the fields by which an upstream may take a method for another one.
pub fn method_overrides(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let fields = fields.iter();
    let fields = fields.filter(|(name, _)| is_like_one_of(name, &METHOD_OVERRIDES));
    fields.map(|(_, value)| value)
}

/// A field that names another path beside the request's own.
pub fn path_override(fields: &Fields) -> Option<String> {
    let mut names = fields.iter().map(|(name, _)| name);
    let name = names.find(|name| is_like_one_of(name, &PATH_OVERRIDES))?;
    Some(String::from_utf8_lossy(name).to_ascii_lowercase())
}

/// True of a field of one connection.
pub(super) fn is_hop_by_hop(name: &[u8]) -> bool {
    is_one_of(name, &HOP_BY_HOP)
}

/// True of our own fields, in any spelling.
pub(super) fn is_fencing(name: &[u8]) -> bool {
    begins(name, "x-fencing-")
}

/// True of a field that `Connection` may take off besides those of one connection. Upstreams frame,
/// route, authenticate and decide by the others, so none is dropped because a client names it.
pub(super) fn is_of_connection(name: &[u8]) -> bool {
    begins(name, "x-") && !begins(name, "x-forwarded-") && !is_fencing(name)
}

/// True of a field that frames or routes messages, or stands in the header for all recipients.
pub(super) fn never_a_trailer(name: &[u8]) -> bool {
    let mut starts = NO_TRAILERS_BEGIN.iter();
    is_like_one_of(name, &NO_TRAILERS)
        || is_like_one_of(name, &HOP_BY_HOP)
        || starts.any(|start| begins(name, start)) && !is_one_of(name, &["content-digest"])
}

/// True if this is one of these names, which are in lower case.
pub(super) fn is_one_of(name: &[u8], known: &[impl AsRef<[u8]>]) -> bool {
    let mut known = known.iter();
    known.any(|known| name.eq_ignore_ascii_case(known.as_ref()))
}

/// The same in any spelling ([`same_name`]).
fn is_like_one_of(name: &[u8], known: &[&str]) -> bool {
    known.iter().any(|known| same_name(name, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lines: &[(&'static str, &str)]) -> bool {
        let mut fields = Fields::default();
        for (name, value) in lines {
            fields.append(name, value);
        }
        json(&fields).is_ok()
    }

    #[test]
    fn what_is_json_to_every_reader() {
        for kind in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/json;charset=utf8",
            "application/json ; odata=verbose ; charset=Utf-8;",
            "application/problem+json",
            "application/vnd.api+json; profile=\"http://a.test/b c\"",
            "model/gltf+json",
        ] {
            assert!(taken(&[("content-type", kind)]), "{kind}");
        }
        for kind in [
            "",
            "json",
            "text/json",
            "text/plain",
            "application/jsonp",
            "application/x-json",
            "application/+json",
            "application/json/x",
            "application/vnd api+json",
            "/json",
            "/a+json",
            "application/json, text/plain",
            "application/json; charset=utf-16",
            "application/json; charset=",
            "application/json; charset",
            "application/json; charset = utf-8",
            "application/json; charset=utf-8; charset=utf-7",
            "application/json; charset=utf-8, text/plain",
            "application/json; a=b, text/plain",
            "application/json; charset=\"utf-8",
            "application/json; charset=\"utf\\-8\"",
            "application/json; a=\"b;charset=utf-16\"",
            "application/json; a=\"b\\\"; charset=utf-8; c=\"\"",
            "application/json charset=utf-16",
            "multipart/form-data; boundary=x",
        ] {
            assert!(!taken(&[("content-type", kind)]), "{kind}");
        }
        let json = ("content-type", "application/json");
        assert!(taken(&[json, ("connection", "close")]));
        assert!(
            !taken(&[json, ("connection", "close, Content-Type")]),
            "it is dropped"
        );
    }

    #[test]
    fn it_is_said_once_and_not_encoded() {
        let kind = ("content-type", "application/json");
        assert!(!taken(&[]));
        assert!(!taken(&[kind, kind]));
        assert!(!taken(&[kind, ("content_type", "text/plain")]));
        assert!(!taken(&[("content_type", "application/json")]));
        for encoding in ["gzip", "identity", ""] {
            assert!(
                !taken(&[kind, ("content-encoding", encoding)]),
                "{encoding}"
            );
        }
        assert!(!taken(&[kind, ("content_encoding", "gzip")]));
    }
}
