//! [`LoggedHead`]: the parts of a request's head that its log line names, and `X-Request-Id`.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use super::headers::FORWARDED_FOR;
use crate::http1::Fields;
use crate::http1::names::USER_AGENT;
use crate::http1::{RequestHead, Target};
use crate::rejections::RequestText;
use crate::traces::{RequestTrace, TraceParent};

/// The name under which a client, this proxy and the upstream log one request.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The most bytes of a header field in a log line.
const FIELD_SHOWN: usize = 256;
/// The most bytes of a path in a log line.
const PATH_SHOWN: usize = 2048;

/// What a log line names of a request's head. Every request has one, so nothing is formatted before
/// there is a line: the parts share the memory of the head.
#[derive(Clone, Debug)]
pub(super) struct LoggedHead {
    method: Method,
    target: Target,
    request_id: RequestId,
    forwarded_for: Option<Bytes>,
    user_agent: Option<Bytes>,
    trace_id: Option<String>,
    /// `None`: it is not traced.
    pub(super) trace: Option<Arc<RequestTrace>>,
}

impl LoggedHead {
    /// Makes a request id if the request has none.
    pub(super) fn of(
        head: &RequestHead,
        parent: Option<&TraceParent<'_>>,
        trace: Option<Arc<RequestTrace>>,
    ) -> Self {
        let first = |name| head.fields.shared(name);
        Self {
            method: head.method.clone(),
            target: head.target.clone(),
            request_id: first(REQUEST_ID).map_or_else(RequestId::new, RequestId::Given),
            forwarded_for: first(FORWARDED_FOR),
            user_agent: first(USER_AGENT),
            trace_id: match &trace {
                Some(trace) => Some(trace.trace_id().to_string()),
                None => parent.map(|parent| parent.trace_id.to_owned()),
            },
            trace,
        }
    }

    /// Adds the request id where there is none.
    pub(super) fn identify(&self, fields: &mut Fields) {
        if fields.contains(REQUEST_ID) {
            return;
        }
        match &self.request_id {
            RequestId::Made(id) => fields.append(REQUEST_ID, id),
            RequestId::Given(id) => fields.append(REQUEST_ID, id),
        }
    }

    /// In words. `query`: with the query.
    pub(super) fn text(&self, query: bool) -> RequestText {
        let field = |value: &Bytes| cut(&String::from_utf8_lossy(value), FIELD_SHOWN);
        let path = if query {
            self.target.as_str()
        } else {
            self.target.path()
        };
        RequestText {
            method: Some(self.method.to_string()),
            path: Some(cut(path, PATH_SHOWN)),
            request_id: Some(match &self.request_id {
                RequestId::Made(id) => String::from_utf8_lossy(id).into_owned(),
                RequestId::Given(id) => field(id),
            }),
            forwarded_for: self.forwarded_for.as_ref().map(field),
            user_agent: self.user_agent.as_ref().map(field),
            trace_id: self.trace_id.clone(),
        }
    }
}

/// The name of one request.
#[derive(Clone, Debug)]
enum RequestId {
    /// The client's own.
    Given(Bytes),
    /// 32 hex digits, as nginx makes its `$request_id`.
    Made([u8; 32]),
}

thread_local! {
    /// Where the made ids of a thread stand. They need to differ, not to be secret, so a random
    /// beginning is enough.
    static NEXT_ID: Cell<u128> = Cell::new(rand::random());
}

impl RequestId {
    fn new() -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // An odd step visits every number once (Weyl); this one spreads its bits, so that ids which
        // follow each other do not look alike.
        const STEP: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        let bits = NEXT_ID.get();
        NEXT_ID.set(bits.wrapping_add(STEP));
        let mut digits = [0; 32];
        for (digit, at) in digits.iter_mut().zip((0..32).rev()) {
            *digit = DIGITS[(bits >> (4 * at)) as usize & 15];
        }
        Self::Made(digits)
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn request(lines: &[(&str, &str)]) -> RequestHead {
        let mut fields = Fields::default();
        for (name, value) in lines {
            fields.append(name, value);
        }
        let target = Target::new(Bytes::from_static(b"/orders/7?secret=1"), None);
        RequestHead::new(Method::PUT, target, http::Version::HTTP_11, fields)
    }

    #[test]
    fn a_request_keeps_its_id_and_gets_one_otherwise() {
        let id = |head: &LoggedHead| {
            let mut fields = Fields::default();
            head.identify(&mut fields);
            fields.get_str(REQUEST_ID).expect("text").to_owned()
        };
        let given = LoggedHead::of(&request(&[("X-Request-Id", "a-1")]), None, None);
        assert_eq!(id(&given), "a-1");
        assert_eq!(given.text(false).request_id.as_deref(), Some("a-1"));
        let heads: Vec<_> = (0..100)
            .map(|_| LoggedHead::of(&request(&[]), None, None))
            .collect();
        let made: BTreeSet<String> = heads.iter().map(id).collect();
        assert_eq!(made.len(), 100, "each is another one");
        for (one, head) in made.iter().zip(&heads) {
            assert!(
                one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{one}"
            );
            assert_eq!(head.text(false).request_id, Some(id(head)));
        }
        let mut fields = Fields::default();
        given.identify(&mut fields);
        heads[0].identify(&mut fields);
        assert_eq!(
            fields.get_str(REQUEST_ID),
            Some("a-1"),
            "it has one already"
        );
    }

    #[test]
    fn a_query_is_shown_where_it_is_wanted() {
        let head = LoggedHead::of(&request(&[]), None, None);
        assert_eq!(head.text(false).path.as_deref(), Some("/orders/7"));
        assert_eq!(head.text(true).path.as_deref(), Some("/orders/7?secret=1"));
    }

    #[test]
    fn long_fields_are_cut() {
        let long = "ü".repeat(FIELD_SHOWN);
        let text = LoggedHead::of(&request(&[("User-Agent", &long)]), None, None).text(false);
        let shown = text.user_agent.expect("there is one");
        assert!(
            shown.len() <= FIELD_SHOWN + "…".len() && shown.ends_with("ü…"),
            "{shown}"
        );
    }
}
