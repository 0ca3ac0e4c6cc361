//! The media types that decide something: gRPC calls, and content that is JSON to every reader,
//! that is declared once, in UTF-8, not encoded. A reader that takes `text/plain` for a form, or
//! inflates deflated content, finds other members than those that the key was made of.

use super::fields::{FieldError, pair, text};
use crate::http1::Fields;
use crate::http1::head::is_token;
use crate::http1::names::{CONTENT_ENCODING, CONTENT_TYPE};

const WANTED: &str = "application/json or a type that ends in +json, in UTF-8; the resource key of \
                      this route is taken from the body";

/// Refuses a header that does not announce plain JSON.
pub fn json(fields: &Fields) -> Result<(), FieldError> {
    if text(fields, CONTENT_ENCODING)?.is_some() {
        return Err(FieldError::Malformed {
            name: CONTENT_ENCODING.into(),
            wanted: "taken on this route, whose resource key is taken from the body; send it plain",
        });
    }
    if text(fields, CONTENT_TYPE)?.is_some_and(is_json) {
        return Ok(());
    }
    Err(FieldError::Malformed {
        name: CONTENT_TYPE.into(),
        wanted: WANTED,
    })
}

/// Says if a message is one of a gRPC call. gRPC-Web does not count: its trailers are in the body.
pub(crate) fn is_grpc(fields: &Fields) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let content = fields.get(CONTENT_TYPE).unwrap_or_default();
    let (start, rest) = content.split_at(TYPE.len().min(content.len()));
    start.eq_ignore_ascii_case(TYPE) && matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..])
}

fn is_json(line: &str) -> bool {
    let (kind, parameters) = line.split_at(line.find(';').unwrap_or(line.len()));
    let Some((kind, subtype)) = kind.trim_matches(BLANK).split_once('/') else {
        return false;
    };
    let subtype = subtype.to_ascii_lowercase();
    let plain = kind.eq_ignore_ascii_case("application") && subtype == "json";
    let suffixed = is_token(kind.as_bytes())
        && is_token(subtype.as_bytes())
        && subtype
            .strip_suffix("+json")
            .is_some_and(|name| !name.is_empty());
    (plain || suffixed) && is_utf_8(parameters)
}

/// Says if parameters name no other charset than UTF-8 (RFC 8259, 8.1), and can be read at all.
fn is_utf_8(parameters: &str) -> bool {
    let mut charsets = 0;
    let mut rest = parameters;
    while let Some(behind) = rest.strip_prefix(';') {
        rest = behind.trim_start_matches(BLANK);
        // Empty ones may be there (RFC 9110, 5.6.6).
        if rest.is_empty() || rest.starts_with(';') {
            continue;
        }
        let Some((name, value, behind)) = pair(rest) else {
            return false;
        };
        if name.eq_ignore_ascii_case("charset") {
            charsets += 1;
            let is_utf_8 = ["utf-8", "utf8"].contains(&&*value.to_ascii_lowercase());
            if charsets > 1 || !is_utf_8 {
                return false;
            }
        }
        rest = behind.trim_start_matches(BLANK);
    }
    rest.is_empty()
}

const BLANK: [char; 2] = [' ', '\t'];

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
            "application/vnd.api+json; profile=\"a;b, c\"",
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
            "application/json, text/plain",
            "application/json; charset=utf-16",
            "application/json; charset=",
            "application/json; charset",
            "application/json; charset = utf-8",
            "application/json; charset=utf-8; charset=utf-8",
            "application/json; charset=utf-8, text/plain",
            "application/json; charset=\"utf-8",
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
