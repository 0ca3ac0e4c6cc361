//! [`TraceParent`]: the trace context of a request (W3C Trace Context, Recommendation of 2021,
//! level 1).

use std::str::FromStr;

use crate::http1::Fields;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

pub(super) const TRACEPARENT: &str = "traceparent";
pub(super) const TRACESTATE: &str = "tracestate";

/// The context that a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent<'a> {
    /// 32 lower-case hexadecimal digits.
    pub trace_id: &'a str,
    /// 16 lower-case hexadecimal digits.
    pub parent_id: &'a str,
    /// The caller may have recorded the trace.
    pub sampled: bool,
}

impl<'a> TraceParent<'a> {
    /// `None` if the request has no valid `traceparent`, or more than one.
    #[must_use]
    pub fn of(fields: &'a Fields) -> Option<Self> {
        let mut lines = fields.get_all(TRACEPARENT);
        let line = std::str::from_utf8(lines.next()?).ok()?;
        if lines.next().is_some() {
            return None;
        }
        let (head, later) = line.split_at_checked(55)?;
        let well_formed = head.bytes().enumerate().all(|(at, byte)| match at {
            2 | 35 | 52 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        });
        if !well_formed {
            return None;
        }
        let (version, trace_id, parent_id) = (&head[..2], &head[3..35], &head[36..52]);
        let flags = u8::from_str_radix(&head[53..], 16).ok()?;
        let not_zero = |id: &str| id.bytes().any(|byte| byte != b'0');
        // Version 00 ends here; a later one may go on behind a dash (4.3); ff is forbidden
        // (3.2.2.1).
        let ends = match version {
            "00" => later.is_empty(),
            "ff" => false,
            _ => later.is_empty() || later.starts_with('-'),
        };
        (ends && not_zero(trace_id) && not_zero(parent_id)).then_some(Self {
            trace_id,
            parent_id,
            sampled: flags & 1 == 1,
        })
    }

    /// For the SDK, with the `tracestate` beside it, which it repeats in the span.
    pub(super) fn context(&self, fields: &Fields) -> SpanContext {
        let lines = fields.get_all(TRACESTATE);
        let state: Vec<_> = lines
            .filter_map(|line| std::str::from_utf8(line).ok())
            .collect();
        SpanContext::new(
            TraceId::from_hex(self.trace_id).unwrap_or(TraceId::INVALID),
            SpanId::from_hex(self.parent_id).unwrap_or(SpanId::INVALID),
            TraceFlags::SAMPLED,
            true,
            TraceState::from_str(&state.join(",")).unwrap_or_default(),
        )
    }
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
            let expected = TraceParent {
                trace_id: "0af7651916cd43dd8448eb211c80319c",
                parent_id: "b7ad6b7169203331",
                sampled,
            };
            assert_eq!(TraceParent::of(&headers(&[line])), Some(expected), "{line}");
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
            assert_eq!(TraceParent::of(&headers(lines)), None, "{lines:?}");
        }
    }

    #[test]
    fn its_context_for_the_sdk_has_the_state_beside_it() {
        let mut headers = headers(&[GOOD]);
        headers.insert(TRACESTATE, "a=1,b=2");
        let parent = TraceParent::of(&headers).expect("a context");
        let context = parent.context(&headers);
        assert!(context.is_valid() && context.is_remote() && context.is_sampled());
        assert_eq!(context.trace_id().to_string(), parent.trace_id);
        assert_eq!(context.span_id().to_string(), parent.parent_id);
        assert_eq!(context.trace_state().get("b"), Some("2"));
    }
}
