//! The admin API's errors: problem details (RFC 9457), like the data port's.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::api::{Json, Problem};
use crate::fencing::operators::OperatorError;
use crate::store::StoreError;

/// A status, the last word of a problem's type, and its title.
#[derive(Clone, Copy)]
pub struct ProblemKind(StatusCode, &'static str, &'static str);

/// Each line: the name, its status, its word, its title.
macro_rules! kinds {
    ($($name:ident $status:ident $word:literal $title:literal)+) => {
        $(pub const $name: ProblemKind = ProblemKind(StatusCode::$status, $word, $title);)+
    };
}

kinds! {
    MALFORMED BAD_REQUEST "malformed-request" "The request is malformed"
    UNAUTHORIZED UNAUTHORIZED "unauthorized" "This needs the admin token"
    WRITES_OFF FORBIDDEN "writes-off" "Writes over the admin API are off"
    READS_OFF FORBIDDEN "reads-off" "Reads of marks are off from here"
    NOT_FOUND NOT_FOUND "not-found" "Nothing is here"
    NO_MARK NOT_FOUND "no-mark" "The resource has no mark"
    NO_SUCH_UNKNOWN NOT_FOUND "no-such-unknown" "No such unknown outcome"
    METHOD METHOD_NOT_ALLOWED "method-not-allowed" "The method is not allowed here"
    EPOCHS_OPEN CONFLICT "epochs-open" "Requests may be in flight"
    REFUSED CONFLICT "refused" "The proxy will not do that"
    STALE PRECONDITION_FAILED "stale-token" "The token is stale"
    TOO_LARGE PAYLOAD_TOO_LARGE "content-too-large" "The body is too large"
    UNKNOWN_HOST MISDIRECTED_REQUEST "unknown-host" "The Host header names another server"
    INTERNAL INTERNAL_SERVER_ERROR "internal-error" "The proxy failed"
    STORE SERVICE_UNAVAILABLE "store-unavailable" "The store cannot answer"
    NOT_DRAINING SERVICE_UNAVAILABLE "not-draining" "The proxy is not draining"
}

impl ProblemKind {
    /// The problem with the part that differs: what went wrong, where, and what to do.
    pub fn detail(self, detail: impl Into<String>) -> AdminProblem {
        self.with(detail, [])
    }

    /// The problem with further members.
    pub fn with<const N: usize>(
        self,
        detail: impl Into<String>,
        members: [(&str, Value); N],
    ) -> AdminProblem {
        let Self(status, word, title) = self;
        let members = members.map(|(name, value)| (name.to_owned(), value));
        let problem = Problem {
            kind: format!("urn:fencepost:problem:{word}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            members: Map::from_iter(members),
        };
        let json = [(header::CONTENT_TYPE, "application/problem+json")];
        AdminProblem(Box::new((status, json, Json(problem)).into_response()))
    }
}

/// An error for the client.
#[derive(Debug)]
pub struct AdminProblem(Box<Response>);

impl AdminProblem {
    /// The problem with a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        let value = HeaderValue::from_static(value);
        self.0.headers_mut().insert(name, value);
        self
    }
}

/// The answer of a handler.
pub(super) type Answer<T> = Result<Json<T>, AdminProblem>;

impl IntoResponse for AdminProblem {
    fn into_response(self) -> Response {
        *self.0
    }
}

impl From<StoreError> for AdminProblem {
    fn from(error: StoreError) -> Self {
        let problem = STORE.detail(format!("{error}. Try again after 1 s."));
        problem.with_header(header::RETRY_AFTER, "1")
    }
}

impl From<OperatorError> for AdminProblem {
    fn from(error: OperatorError) -> Self {
        match error {
            OperatorError::Refused(why) => REFUSED.detail(why),
            OperatorError::Store(error) => {
                let doubt = "The write may still take effect: read the mark before trying again.";
                let problem = STORE.detail(format!("{error}. {doubt}"));
                problem.with_header(header::RETRY_AFTER, "1")
            }
        }
    }
}
