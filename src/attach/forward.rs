//! [`Forwarder`]: sends each request with the holder's token to the fencepost, which checks it. The
//! answer says what follows a refusal:
//!
//! - `never` because the token is stale: the hold is lost, and nothing more is forwarded.
//! - `same-token`: the fencepost has sent nothing, so the same request is sent again with the same
//!   token. That needs the whole body, and ends with `retry_for`.
//! - `check-first`, and everything else: the client gets the answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, RETRY_AFTER, TRAILER, VIA};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Collected};
use hyper::body::Incoming;
use reqwest::{Body, Client, Url};
use rustls::RootCertStore;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::clients::OwnClients;
use super::hold::{Counts, Hold, Lost};
use crate::config::{UpstreamSettings, UpstreamUrl};
use crate::http1::Fields;
use crate::locked::locked;
use crate::metrics::Outcome;
use crate::proxy::headers::{OPERATION, OUTCOME, RETRY, TARGET, TOKEN, strip_hop_by_hop, text};
use crate::proxy::{AnswerStyle, Refusal, Retry};

/// The longest body that is kept, so that its request can be sent again.
const BUFFER: u64 = 1 << 20;
/// The pauses before attempts where the fencepost names no time: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long an idle connection is kept: less than a fencepost keeps it.
const IDLE: Duration = Duration::from_secs(4);
/// Own refusals look like those of a fencepost.
const STYLE: AnswerStyle<'_> = AnswerStyle {
    stale_status: 412,
    disclose: false,
    grpc: false,
    problems: None,
};

/// The way of each request.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub hold: watch::Sender<Hold>,
    /// Short sections, never across an await.
    pub counts: Mutex<Counts>,
    /// `X-Fencing-Operation` of requests without one.
    pub operation: Option<HeaderValue>,
    /// How long a request is sent again after a refusal with `same-token`.
    pub retry_for: Duration,
    pub clients: OwnClients,
    pub fencepost: Fencepost,
}

/// The client of the fencepost.
#[derive(Debug)]
pub(super) struct Fencepost {
    client: Client,
    /// `http://orders:7080`.
    base: String,
    host: HeaderValue,
}

impl Fencepost {
    /// A client that sends each request once: it follows no redirect, and uses no proxy of the
    /// environment. Its pool sends one again only where a connection closed before the first byte.
    pub(super) fn new(settings: &UpstreamSettings) -> anyhow::Result<Self> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(settings.connect_timeout.0)
            .pool_idle_timeout(IDLE);
        let (scheme, host) = match &settings.url {
            UpstreamUrl::Http(authority) => ("http", authority.as_str()),
            UpstreamUrl::Https(authority) => ("https", authority.as_str()),
            UpstreamUrl::Unix(path) => {
                builder = builder.unix_socket(path.as_path());
                ("http", "localhost")
            }
            UpstreamUrl::H2c(_) => anyhow::bail!("--to: write http://, attach speaks HTTP/1.1"),
        };
        let mut tls = settings.tls.clone();
        if scheme == "http" {
            // The system may have no CAs, and needs none.
            tls.roots = Some(Arc::new(RootCertStore::empty()));
        }
        let tls = tls.client_config().context("TLS to the fencepost")?;
        Ok(Self {
            client: builder.tls_backend_preconfigured(tls).build()?,
            base: format!("{scheme}://{host}"),
            host: HeaderValue::try_from(host)?,
        })
    }

    /// A request as the fencepost gets it, without the fencing fields.
    ///
    /// # Errors
    ///
    /// The target has no path, or one that reqwest would change: `/a/../b` names two resources.
    fn request(&self, head: Parts, body: Body) -> Result<reqwest::Request, Refusal> {
        let target = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
        let url = Url::parse(&format!("{}{target}", self.base)).ok();
        let unchanged = url.filter(|url| url.path() == head.uri.path());
        let url = unchanged.ok_or_else(|| {
            let why = "fencepost attach passes a path on as it is: send one that begins with /, \
                       without dot segments, and percent-encoded.";
            Refusal::Ambiguous(why.into())
        })?;
        let mut request = reqwest::Request::new(head.method, url);
        let mut fields = Fields::from(&head.headers);
        strip_hop_by_hop(&mut fields);
        let mut headers = fields.to_map();
        // hyper answers `Expect`, and sends no trailers that are not announced.
        headers.remove(EXPECT);
        headers.remove(TRAILER);
        headers.append(VIA, HeaderValue::from_static("1.1 fencepost-attach"));
        headers.insert(HOST, self.host.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body);
        Ok(request)
    }

    async fn send(&self, request: reqwest::Request) -> Result<Response<Body>, Refusal> {
        let answer = self.client.execute(request).await.map_err(|error| {
            let not_sent = error.is_connect();
            let why = format!("{:#}", anyhow::Error::from(error.without_url()));
            if not_sent {
                Refusal::unreachable(why)
            } else {
                Refusal::Broken(why)
            }
        })?;
        let mut answer = Response::from(answer);
        let mut fields = Fields::from(answer.headers());
        strip_hop_by_hop(&mut fields);
        *answer.headers_mut() = fields.to_map();
        Ok(answer)
    }
}

impl Forwarder {
    /// Handles a request of the command.
    pub(super) async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let token = self.hold.borrow().token.clone();
        let body = match self.clients.check(&head, &token) {
            Ok(()) => read(body).await,
            Err(refusal) => Err(refusal),
        };
        self.forward(head, body, token).await
    }

    /// Sends a claim with the token. When it is granted, the older holder's work there has ended.
    pub(super) async fn claim(&self, claim: &Request<()>) -> anyhow::Result<()> {
        let (head, ()) = claim.clone().into_parts();
        let token = self.hold.borrow().token.clone();
        let answer = self.forward(head, Ok(Body::default()), token).await;
        let status = answer.status();
        let outcome = answer.headers().get(OUTCOME).cloned();
        let Some(outcome) = outcome.as_ref().and_then(|outcome| outcome.to_str().ok()) else {
            anyhow::bail!(
                "{status} came back, and not from a fencepost: --to must lead to one that takes \
                 claims"
            );
        };
        if outcome == "claimed" {
            return Ok(());
        }
        let problem: Value = reqwest::Response::from(answer)
            .json()
            .await
            .unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or("no detail");
        anyhow::bail!("{outcome} ({status}): {detail}");
    }

    /// Answers a request, with the fencepost's answer or with a refusal.
    async fn forward(
        &self,
        head: Parts,
        body: Result<Body, Refusal>,
        token: HeaderValue,
    ) -> Response<Body> {
        locked(&self.counts).requests += 1;
        let asked = described(&head);
        let request = body.and_then(|body| self.fencepost.request(head, body));
        let answered = match request {
            Ok(request) => self.stamped(request, &token, &asked).await,
            Err(refusal) => Err(refusal),
        };
        match answered {
            Ok(answer) => answer,
            Err(refusal) => {
                let why = refusal.detail(None, true).to_string();
                self.refused(&asked, refusal.outcome().as_str(), Some(&why));
                let (head, body) = Response::from(refusal.respond(STYLE, None)).into_parts();
                let body = body.collect().await.map(Collected::to_bytes);
                Response::from_parts(head, body.unwrap_or_default().into())
            }
        }
    }

    /// Sends a request with the token, and again where the answer allows that.
    async fn stamped(
        &self,
        mut request: reqwest::Request,
        token: &HeaderValue,
        asked: &str,
    ) -> Result<Response<Body>, Refusal> {
        let headers = request.headers_mut();
        headers.insert(TOKEN, token.clone());
        if let Some(operation) = &self.operation {
            let own = headers.entry(OPERATION);
            own.or_insert_with(|| operation.clone());
        }
        let until = Instant::now() + self.retry_for;
        let mut pause = PAUSES.0;
        let mut hold = self.hold.subscribe();
        loop {
            if let Some(lost) = &self.hold.borrow().lost {
                locked(&self.counts).stale += 1;
                return Ok(again(lost));
            }
            // `None`: the body passes piece by piece.
            let copy = request.try_clone();
            let sent = self.fencepost.send(request).await;
            let wait = wait(&sent, pause).filter(|wait| Instant::now() + *wait < until);
            let (Some(wait), Some(copy)) = (wait, copy) else {
                return Ok(self.noted(sent?, token, asked).await);
            };
            drop(sent);
            // Ends early once the hold is lost.
            let _ = timeout(wait, hold.wait_for(|hold| hold.lost.is_some())).await;
            pause = (pause * 2).min(PAUSES.1);
            locked(&self.counts).retries += 1;
            request = copy;
        }
    }

    /// Notes the last answer on its way to the client. One that is stale ends the hold.
    async fn noted(
        &self,
        answer: Response<Body>,
        token: &HeaderValue,
        asked: &str,
    ) -> Response<Body> {
        let headers = answer.headers();
        let outcome = headers.get(OUTCOME).and_then(|value| value.to_str().ok());
        if outcome != Some(Outcome::StaleToken.as_str()) {
            match outcome {
                Some(outcome) if headers.contains_key(RETRY) => self.refused(asked, outcome, None),
                None if !has_passed_a_fencepost(headers) => self.unchecked(asked),
                Some(_) | None => {}
            }
            return answer;
        }
        locked(&self.counts).stale += 1;
        let (mut head, body) = answer.into_parts();
        // The body may break off. The refusal itself matters more.
        let body = body
            .collect()
            .await
            .map(Collected::to_bytes)
            .unwrap_or_default();
        head.headers.remove(CONTENT_LENGTH);
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let newer = match problem["mark"].as_str() {
            Some(mark) => format!("the holder of token {mark} is newer"),
            None => "a newer holder has written there".to_owned(),
        };
        let number = String::from_utf8_lossy(token.as_bytes());
        let lost = Arc::new(Lost {
            why: format!("token {number} is stale: {asked} was refused, because {newer}"),
            answer: (head, body),
        });
        // A token that has come since is not blamed.
        self.hold.send_if_modified(|hold| {
            let first = hold.token == *token && hold.lost.is_none();
            if first {
                hold.lost = Some(Arc::clone(&lost));
            }
            first
        });
        again(&lost)
    }

    /// Warns once of an answer that did not come through a fencepost.
    fn unchecked(&self, asked: &str) {
        if !std::mem::replace(&mut locked(&self.counts).unchecked, true) {
            tracing::warn!(
                request = asked,
                "an answer did not come through a fencepost, so nothing checks the token there: \
                 --to must lead to one"
            );
        }
    }

    /// Counts a refusal that ends no hold, or an unknown outcome.
    fn refused(&self, asked: &str, outcome: &str, why: Option<&str>) {
        let mut counts = locked(&self.counts);
        let count = counts.refused.entry(outcome.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(
                request = asked,
                outcome,
                why,
                "a request was refused, or its outcome is unknown; further ones with this outcome \
                 are only counted"
            );
        }
    }
}

/// Reads a body that is known to be short. Any other passes piece by piece.
async fn read(body: Incoming) -> Result<Body, Refusal> {
    if body
        .size_hint()
        .exact()
        .is_none_or(|length| length > BUFFER)
    {
        return Ok(Body::wrap(body));
    }
    let gone = |error| Refusal::ClientGone(format!("The body of the request: {error}"));
    let body = body.collect().await.map_err(gone)?;
    Ok(body.to_bytes().into())
}

/// The answer that ended the hold.
fn again(lost: &Lost) -> Response<Body> {
    let (head, body) = lost.answer.clone();
    Response::from_parts(head, body.into())
}

/// For people: `PUT /orders/7`. A query may have secrets.
fn described(head: &Parts) -> String {
    match text(&Fields::from(&head.headers), TARGET) {
        Ok(Some(target)) => format!("the claim of {target}"),
        Ok(None) | Err(_) => format!("{} {}", head.method, head.uri.path()),
    }
}

fn has_passed_a_fencepost(headers: &HeaderMap) -> bool {
    let mut passed = headers.get_all(VIA).iter();
    passed.any(|line| String::from_utf8_lossy(line.as_bytes()).contains(" fencepost-"))
}

/// How long to wait until the same request is sent again; `None`: it must not be. `pause`: where
/// the refusal names no time.
fn wait(sent: &Result<Response<Body>, Refusal>, pause: Duration) -> Option<Duration> {
    match sent {
        Ok(answer) => {
            let headers = answer.headers();
            let again = headers
                .get(RETRY)
                .is_some_and(|retry| retry == Retry::SameToken.as_str());
            again.then(|| retry_after(headers).unwrap_or(pause))
        }
        Err(refusal) => (refusal.retry() == Retry::SameToken).then_some(pause),
    }
}

/// In seconds (RFC 9110, 10.2.3), as a fencepost writes it.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(fields: &[(&'static str, &'static str)], pause: Duration) -> Option<Duration> {
        let mut answer = Response::new(Body::default());
        for (name, value) in fields {
            let value = HeaderValue::from_static(value);
            answer.headers_mut().insert(*name, value);
        }
        wait(&Ok(answer), pause)
    }

    #[test]
    fn only_what_was_not_sent_is_sent_again() {
        let pause = Duration::from_millis(7);
        let says = |retry| waits(&[("x-fencing-retry", retry)], pause);
        assert_eq!(says("same-token"), Some(pause));
        assert_eq!(says("never"), None);
        assert_eq!(says("check-first"), None);
        let services_own = [("retry-after", "1")];
        assert_eq!(waits(&services_own, pause), None);
        let after = [("x-fencing-retry", "same-token"), ("retry-after", "3")];
        assert_eq!(waits(&after, pause), Some(Duration::from_secs(3)));
        let broken = Refusal::TooSlow(Duration::from_secs(1));
        assert_eq!(wait(&Err(broken), pause), None, "it may have been sent");
    }
}
