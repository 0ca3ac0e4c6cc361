//! [`Context`]: the settings, the client and the properties of one request, which all of its phases,
//! its answer, log line and span need, and `X-Request-Id`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Version};
use opentelemetry::trace::TraceId;
use tokio::time::Instant;

use super::client::Client;
use super::headers::{self, FORWARDED_FOR};
use super::refusal::{AnswerStyle, Subject};
use super::routing_table::{Route, RoutingTable, Snapshot};
use crate::active_requests::{ActiveRequest, InProgress, Place, Progress, Stage};
use crate::config::{LogSettings, Mode};
use crate::fencing::Fencing;
use crate::http1::names::USER_AGENT;
use crate::http1::{Fields, RequestHead, Target};
use crate::metrics::{CLAIM, RouteMetrics, UNMATCHED};
use crate::rejections::RequestText;
use crate::routing::{ResourceKey, Token};
use crate::traces::{self, RequestTrace};

/// The name under which a client, this proxy and the upstream log one request.
const REQUEST_ID: &str = "x-request-id";

/// The most bytes of a header field in a log line.
const FIELD_SHOWN: usize = 256;
/// The most bytes of a path in a log line.
const PATH_SHOWN: usize = 2048;

/// The context of one request. Shared with what outlives its handler.
///
/// Every request has one, so nothing is formatted before there is a line, but three short fields are
/// copied. The parts of the head are `None` if it could not be read.
pub(crate) struct Context {
    /// The settings that hold for this request to its end.
    pub snapshot: Arc<Snapshot>,
    pub client: Arc<Client>,
    /// Its peer is one of `trusted_proxies`, or came over a Unix socket.
    pub by_proxy: bool,
    /// `None`: no route matches, or it is a claim.
    pub route: Option<Arc<Route>>,
    is_claim: bool,
    method: Option<Method>,
    target: Option<Target>,
    request_id: Bytes,
    forwarded_for: Option<Bytes>,
    user_agent: Option<Bytes>,
    trace_id: Option<TraceId>,
    /// `None`: it is not traced.
    pub trace: Option<Arc<RequestTrace>>,
    /// The caller reads a refusal as a gRPC status.
    grpc: bool,
    pub progress: Progress,
    /// From the first byte to the upstream to the head of its response.
    pub upstream: OnceLock<Duration>,
    /// The resource and the token. Set once the key is derived, so that any refusal of the request
    /// can be found by it.
    pub subject: OnceLock<Subject>,
}

impl Context {
    /// Makes a request id if the request has none, and begins its span if it is traced. `head`:
    /// `None` if it could not be read.
    pub(super) fn of(
        head: Option<&RequestHead>,
        snapshot: Arc<Snapshot>,
        client: Arc<Client>,
        by_proxy: bool,
        (route, is_claim): (Option<Arc<Route>>, bool),
    ) -> Arc<Self> {
        let copied = |name| head?.fields.get(name).map(Bytes::copy_from_slice);
        let parent = head.and_then(|head| traces::parent(&head.fields));
        let trace = head.zip(snapshot.traces.as_ref());
        let trace =
            trace.and_then(|(head, traces)| traces.request(parent.as_ref(), head, &client.text));
        let trace_id = trace.as_ref().map(|trace| trace.trace_id());
        let trace_id = trace_id.or(parent.map(|parent| parent.trace_id()));
        Arc::new(Self {
            method: head.map(|head| head.method.clone()),
            target: head.map(|head| head.target.clone()),
            request_id: copied(REQUEST_ID).unwrap_or_else(request_id),
            forwarded_for: copied(FORWARDED_FOR),
            user_agent: copied(USER_AGENT),
            trace_id,
            trace,
            grpc: head.is_some_and(reads_grpc),
            progress: Progress::new(Instant::now()),
            upstream: OnceLock::new(),
            subject: OnceLock::new(),
            snapshot,
            client,
            by_proxy,
            route,
            is_claim,
        })
    }

    /// The label of its route in log and metrics.
    pub(super) fn label(&self) -> &str {
        match &self.route {
            Some(route) => route.settings.label(),
            None if self.is_claim => CLAIM,
            None => UNMATCHED,
        }
    }

    /// The series of its route.
    pub(super) fn metrics(&self) -> &RouteMetrics {
        match &self.route {
            Some(route) => &route.metrics,
            None if self.is_claim => &self.table().claim_metrics,
            None => &self.table().unmatched_metrics,
        }
    }

    pub(super) fn table(&self) -> &RoutingTable {
        &self.snapshot.table
    }

    pub(super) fn log(&self) -> &LogSettings {
        &self.table().settings.log
    }

    pub(super) fn style(&self) -> AnswerStyle {
        self.table().style(self.grpc)
    }

    /// The resource and the token, once they are known.
    pub(super) fn key_and_token(&self) -> (Option<&ResourceKey>, Option<&Token>) {
        let subject = self.subject.get();
        subject.map(|(key, token)| (key, token)).unzip()
    }

    /// Adds the request id to fields that have none.
    pub(super) fn identify(&self, fields: &mut Fields) {
        if !fields.contains(REQUEST_ID) {
            fields.append(REQUEST_ID, &self.request_id);
        }
    }

    /// The check and the barrier begin.
    pub(super) fn enter_admission(&self, began: Instant, wait: Duration) {
        let limit = wait.max(self.table().settings.store.timeout.0);
        self.progress.enter(Stage::Store, Some(began + limit));
    }

    /// The request in words. `query`: with its query.
    pub(super) fn text(&self, query: bool) -> RequestText {
        let field = |value: &Bytes| cut(&String::from_utf8_lossy(value), FIELD_SHOWN);
        let shown: fn(&Target) -> &str = if query { Target::as_str } else { Target::path };
        let path = |target| cut(shown(target), PATH_SHOWN);
        RequestText {
            method: self.method.as_ref().map(Method::to_string),
            path: self.target.as_ref().map(path),
            request_id: Some(field(&self.request_id)),
            forwarded_for: self.forwarded_for.as_ref().map(field),
            user_agent: self.user_agent.as_ref().map(field),
            trace_id: self.trace_id.map(|id| id.to_string()),
        }
    }
}

impl InProgress for Context {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn describe(&self, fencing: &Fencing) -> ActiveRequest {
        let now = Instant::now();
        let (key, token) = self.key_and_token();
        let (mut stage, mut ends) = self.progress.now();
        let subject = key.zip(token).filter(|_| stage == Stage::Store);
        let older = subject.map_or_else(Vec::new, |(key, token)| fencing.older(key, *token));
        if !older.is_empty() {
            stage = Stage::OlderInFlight;
        }
        let mut route = self.route.iter();
        let enforces = route.any(|route| route.settings.mode == Mode::Enforce);
        if enforces && key.is_some() && matches!(stage, Stage::Upstream | Stage::Response) {
            let cut = fencing.lease().cuts_in();
            let cut = cut.and_then(|left| now.checked_add(left));
            ends = ends.into_iter().chain(cut).min();
        }
        ActiveRequest {
            age_seconds: self.progress.began.elapsed().as_secs_f64(),
            waits_for: stage,
            older,
            ends_in_seconds: ends
                .and_then(|ends| ends.checked_duration_since(now))
                .map(|left| left.as_secs_f64()),
            route: self.label().to_owned(),
            resource: key.cloned(),
            token: token.copied(),
            client: self.client.text.to_string(),
            request: self.text(self.log().query),
        }
    }
}

/// Lists a request as in progress until this is dropped.
#[must_use = "the request is listed until this is dropped"]
pub(super) struct Listed {
    context: Arc<Context>,
    place: Place,
}

impl Listed {
    /// Lists a request in its first stage, which ends then at the latest.
    pub(super) fn new(context: &Arc<Context>, stage: Stage, ends: Instant) -> Self {
        context.progress.enter(stage, Some(ends));
        let context = Arc::clone(context);
        let place = context.snapshot.notes.active.add(Arc::clone(&context) as _);
        Self { context, place }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.context.snapshot.notes.active.remove(self.place);
    }
}

/// Whether the caller is a gRPC library, which reads a refusal as a gRPC status in a 200 response.
/// Any other client would take that for a success. gRPC is HTTP/2 with `te: trailers`; a content
/// type can stand on any request (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>,
/// Requests).
fn reads_grpc(head: &RequestHead) -> bool {
    let fields = &head.fields;
    headers::is_grpc(fields) && head.version == Version::HTTP_2 && headers::takes_trailers(fields)
}

/// A new request id: 32 hex digits, as nginx makes its `$request_id`.
fn request_id() -> Bytes {
    format!("{:032x}", rand::random::<u128>()).into()
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

    use http::uri::PathAndQuery;

    use super::*;
    use crate::boot_clock::BootClock;
    use crate::config::{Overrides, parse};
    use crate::fencing::lease::Lease;
    use crate::metrics::Metrics;
    use crate::store::InstanceId;

    fn request(lines: &[(&str, &str)]) -> RequestHead {
        let mut fields = Fields::default();
        for (name, value) in lines {
            fields.append(name, value);
        }
        let target = Target::new(PathAndQuery::from_static("/orders/7?secret=1"), None);
        RequestHead::new(Method::PUT, target, http::Version::HTTP_11, fields)
    }

    fn context(lines: &[(&str, &str)]) -> Arc<Context> {
        let parsed = parse(
            "upstream: { url: 'http://127.0.0.1:3000' }",
            &Overrides::default(),
        );
        let (settings, _) = parsed.expect("a configuration");
        let lease = Lease::new(
            BootClock::boottime(),
            Duration::MAX,
            InstanceId::from_bits(0),
        );
        let snapshot = Snapshot::of(settings, &Arc::new(lease), &Arc::new(Metrics::new(&[])));
        let client = Arc::new(Client::at(None, 1));
        Context::of(
            Some(&request(lines)),
            snapshot,
            client,
            false,
            (None, false),
        )
    }

    #[tokio::test]
    async fn a_request_keeps_its_id_and_gets_one_otherwise() {
        let id = |head: &Arc<Context>| {
            let mut fields = Fields::default();
            head.identify(&mut fields);
            fields.get_str(REQUEST_ID).expect("text").to_owned()
        };
        let given = context(&[("X-Request-Id", "a-1")]);
        assert_eq!(id(&given), "a-1");
        assert_eq!(given.text(false).request_id.as_deref(), Some("a-1"));
        let heads: Vec<_> = (0..100).map(|_| context(&[])).collect();
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

    #[tokio::test]
    async fn a_query_is_shown_where_it_is_wanted() {
        let head = context(&[]);
        assert_eq!(head.text(false).path.as_deref(), Some("/orders/7"));
        assert_eq!(head.text(true).path.as_deref(), Some("/orders/7?secret=1"));
    }

    #[tokio::test]
    async fn long_fields_are_cut() {
        let long = "ü".repeat(FIELD_SHOWN);
        let text = context(&[("User-Agent", &long)]).text(false);
        let shown = text.user_agent.expect("there is one");
        assert!(
            shown.len() <= FIELD_SHOWN + "…".len() && shown.ends_with("ü…"),
            "{shown}"
        );
    }
}
