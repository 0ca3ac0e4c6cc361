//! W3C Trace Context (Recommendation of 2021, level 1): a valid one is passed on untouched; where
//! there is none, one is made, so that the proxy's log and the upstream's can be laid side by side.

use http::{HeaderMap, HeaderName, HeaderValue};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Random ids for a request that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTrace {
    /// Zero is not an id (3.2.2.3), and is taken for 1.
    pub trace_id: u128,
    /// Likewise.
    pub parent_id: u64,
}

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

/// Leaves a valid context as it is; else puts a new one in its place, and drops the `tracestate`,
/// which means nothing without its parent (3.3.1.1, 4.3).
///
/// The new one is marked as sampled: to a sampler that follows its parent, as OpenTelemetry's does
/// by default, this is the same as no context at all, while "not sampled" would switch it off.
pub(super) fn ensure(headers: &mut HeaderMap, new: NewTrace) {
    if trace_id(headers).is_some() {
        return;
    }
    let text = format!(
        "00-{:032x}-{:016x}-01",
        new.trace_id.max(1),
        new.parent_id.max(1)
    );
    headers.remove(TRACESTATE);
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(TRACEPARENT, value);
    }
}

#[cfg(test)]
mod tests {
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
        headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
        headers
    }

    #[test]
    fn a_valid_context_is_left_alone() {
        for line in [
            GOOD,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later",
        ] {
            let before = headers(&[line]);
            assert_eq!(
                trace_id(&before),
                Some("0af7651916cd43dd8448eb211c80319c"),
                "{line}"
            );
            let mut after = before.clone();
            ensure(
                &mut after,
                NewTrace {
                    trace_id: 5,
                    parent_id: 6,
                },
            );
            assert_eq!(after, before);
        }
    }

    #[test]
    fn what_is_not_valid_is_replaced() {
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
            let mut headers = headers(lines);
            assert_eq!(trace_id(&headers), None, "{lines:?}");
            ensure(
                &mut headers,
                NewTrace {
                    trace_id: 0xab,
                    parent_id: 0,
                },
            );
            assert_eq!(
                headers.get_all(TRACEPARENT).iter().collect::<Vec<_>>(),
                ["00-000000000000000000000000000000ab-0000000000000001-01"]
            );
            assert!(!headers.contains_key(TRACESTATE));
            assert!(trace_id(&headers).is_some());
        }
    }
}
