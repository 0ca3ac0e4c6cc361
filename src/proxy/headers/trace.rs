//! W3C Trace Context (Recommendation of 2021, level 1). A context goes on as it came, and without
//! one nothing is invented: the proxy takes no part in a trace.

use http::{HeaderMap, HeaderName};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace id of a request: 32 lower-case hexadecimal digits. `None` if the request has no valid
/// `traceparent`, or more than one.
#[must_use]
pub fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let (fields, later) = line.split_at_checked(55)?;
    let lower_hex = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut fields = fields.split('-');
    let (version, trace, parent, flags) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    let good = [(version, 2), (trace, 32), (parent, 16), (flags, 2)]
        .iter()
        .all(|(field, length)| field.len() == *length && lower_hex(field));
    let not_zero = |id: &str| id.bytes().any(|byte| byte != b'0');
    // Version 00 ends here; a later one may go on behind a dash (4.3); ff is forbidden (3.2.2.1).
    let ends = match version {
        "00" => later.is_empty(),
        "ff" => false,
        _ => later.is_empty() || later.starts_with('-'),
    };
    (good && ends && not_zero(trace) && not_zero(parent)).then_some(trace)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(
                TRACEPARENT,
                HeaderValue::from_bytes(line.as_bytes()).unwrap(),
            );
        }
        headers
    }

    #[test]
    fn a_valid_context_has_an_id() {
        for line in [
            GOOD,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later",
        ] {
            let id = Some("0af7651916cd43dd8448eb211c80319c");
            assert_eq!(trace_id(&headers(&[line])), id, "{line}");
        }
    }

    #[test]
    fn another_one_has_none() {
        for lines in [
            &[] as &[&str],
            &[""],
            &["x"],
            &[GOOD, GOOD],
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"],
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"],
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0é"],
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x"],
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011"],
            &["00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"],
            &["00-00000000000000000000000000000000-b7ad6b7169203331-01"],
            &["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"],
            &["ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
            &["01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x"],
            &["00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01"],
            &["0--0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        ] {
            assert_eq!(trace_id(&headers(lines)), None, "{lines:?}");
        }
    }
}
