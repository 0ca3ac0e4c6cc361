//! [`LoggedHead`]: the parts of a request's head that its log line names, and `X-Request-Id`.

use http::header::{AsHeaderName, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};

use super::headers::{FORWARDED_FOR, trace};
use crate::rejections::RequestText;

/// The name under which a client, this proxy and the upstream log one request.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most bytes of a header field in a log line.
const FIELD_SHOWN: usize = 256;
/// The most bytes of a path in a log line.
const PATH_SHOWN: usize = 2048;

/// What a log line names of a request's head. Every request has one, so nothing is formatted before
/// there is a line: the parts share the memory of the head.
#[derive(Clone, Debug)]
pub(super) struct LoggedHead {
    method: Method,
    target: Option<PathAndQuery>,
    request_id: HeaderValue,
    forwarded_for: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    trace_id: Option<String>,
}

impl LoggedHead {
    /// Makes a request id if the request has none.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        Self {
            method: request.method().clone(),
            target: request.uri().path_and_query().cloned(),
            request_id: first(headers, REQUEST_ID).unwrap_or_else(new_id),
            forwarded_for: first(headers, FORWARDED_FOR),
            user_agent: first(headers, USER_AGENT),
            trace_id: trace::trace_id(headers).map(str::to_owned),
        }
    }

    pub(super) fn request_id(&self) -> &HeaderValue {
        &self.request_id
    }

    /// In words. `query`: with the query.
    pub(super) fn text(&self, query: bool) -> RequestText {
        let field = |value: &HeaderValue| {
            let text = String::from_utf8_lossy(value.as_bytes());
            cut(&text, FIELD_SHOWN)
        };
        let target = self.target.as_ref();
        let path = target.map(|target| {
            if query {
                target.as_str()
            } else {
                target.path()
            }
        });
        RequestText {
            method: Some(self.method.to_string()),
            path: path.map(|path| cut(path, PATH_SHOWN)),
            request_id: Some(field(&self.request_id)),
            forwarded_for: self.forwarded_for.as_ref().map(field),
            user_agent: self.user_agent.as_ref().map(field),
            trace_id: self.trace_id.clone(),
        }
    }
}

/// Adds the request id where the request has none.
pub(super) fn identify(headers: &mut HeaderMap, id: &HeaderValue) {
    headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
}

fn first(headers: &HeaderMap, name: impl AsHeaderName) -> Option<HeaderValue> {
    headers.get(name).cloned()
}

/// 128 random bits in hex, as nginx makes its `$request_id`.
fn new_id() -> HeaderValue {
    let id = format!("{:032x}", rand::random::<u128>());
    HeaderValue::try_from(id).unwrap_or_else(|_| unreachable!("hex digits are visible ASCII"))
}

fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method("PUT").uri("/orders/7?secret=1");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    #[test]
    fn a_request_keeps_its_id_and_gets_one_otherwise() {
        let given = LoggedHead::of(&request(&[("X-Request-Id", "a-1")]));
        assert_eq!(given.request_id(), "a-1");
        let (one, other) = (request(&[]), request(&[]));
        let (one, other) = (LoggedHead::of(&one), LoggedHead::of(&other));
        assert_eq!(one.request_id().len(), 32);
        assert_ne!(one.request_id(), other.request_id());
        let mut headers = HeaderMap::new();
        identify(&mut headers, one.request_id());
        identify(&mut headers, other.request_id());
        assert_eq!(headers.get(REQUEST_ID), Some(one.request_id()));
    }

    #[test]
    fn a_query_is_shown_where_it_is_wanted() {
        let head = LoggedHead::of(&request(&[]));
        assert_eq!(head.text(false).path.as_deref(), Some("/orders/7"));
        assert_eq!(head.text(true).path.as_deref(), Some("/orders/7?secret=1"));
    }

    #[test]
    fn long_fields_are_cut() {
        let long = "ü".repeat(FIELD_SHOWN);
        let text = LoggedHead::of(&request(&[("User-Agent", &long)])).text(false);
        let shown = text.user_agent.expect("there is one");
        assert!(
            shown.len() <= FIELD_SHOWN + "…".len() && shown.ends_with("ü…"),
            "{shown}"
        );
    }
}
