//! The trace context that a request comes with (W3C Trace Context, Recommendation of 2021, level 1).

use std::str::FromStr;

use crate::http1::Fields;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

pub(super) const TRACEPARENT: &str = "traceparent";
pub(super) const TRACESTATE: &str = "tracestate";

/// The context in `traceparent`. `None`: the request has no valid one, or more than one.
pub fn parent(fields: &Fields) -> Option<SpanContext> {
    let mut lines = fields.get_all(TRACEPARENT);
    let line = std::str::from_utf8(lines.next()?).ok()?;
    let (head, later) = line.split_at_checked(55)?;
    let well_formed = head.bytes().enumerate().all(|(at, byte)| match at {
        2 | 35 | 52 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    });
    if !well_formed || lines.next().is_some() {
        return None;
    }
    // Version 00 ends here; a later one may go on behind a dash (4.3); ff is forbidden (3.2.2.1).
    let ends = match &head[..2] {
        "00" => later.is_empty(),
        "ff" => false,
        _ => later.is_empty() || later.starts_with('-'),
    };
    let context = SpanContext::new(
        TraceId::from_hex(&head[3..35]).ok()?,
        SpanId::from_hex(&head[36..52]).ok()?,
        TraceFlags::new(u8::from_str_radix(&head[53..], 16).ok()?) & TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    (ends && context.is_valid()).then_some(context)
}

/// The state of the caller's trace, which the SDK repeats in the span.
pub(super) fn state(fields: &Fields) -> TraceState {
    let lines = fields.get_all(TRACESTATE);
    let lines: Vec<_> = lines
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    TraceState::from_str(&lines.join(",")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(lines: &[&str]) -> Fields {
        let mut fields = Fields::default();
        for line in lines {
            fields.append(TRACEPARENT, line);
        }
        fields
    }

    #[test]
    fn a_valid_context_has_ids_and_a_flag() {
        for (line, sampled) in [
            (GOOD, true),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
                false,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02",
                false,
            ),
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
                true,
            ),
            (
                "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                true,
            ),
            (
                "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later",
                true,
            ),
        ] {
            let context = parent(&headers(&[line])).expect(line);
            assert!(context.is_valid() && context.is_remote());
            let ids = (
                context.trace_id().to_string(),
                context.span_id().to_string(),
            );
            assert_eq!(ids, (GOOD[3..35].to_owned(), GOOD[36..52].to_owned()));
            assert_eq!(context.is_sampled(), sampled, "{line}");
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
            assert_eq!(parent(&headers(lines)), None, "{lines:?}");
        }
    }

    #[test]
    fn its_state_is_read_for_the_sdk() {
        let mut headers = headers(&[GOOD]);
        assert_eq!(state(&headers), TraceState::NONE);
        headers.insert(TRACESTATE, "a=1,b=2");
        assert_eq!(state(&headers).get("b"), Some("2"));
    }
}
