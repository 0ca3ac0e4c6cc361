//! [`Forwarder`]: sends each request with the holder's token to the fencepost, which checks it. The
//! answer says what follows a refusal:
//!
//! - `never` because the token is stale: the hold is lost, and nothing more is forwarded.
//! - `same-token`: the fencepost has sent nothing, so the same request is sent again with the same
//!   token. That needs the whole body, and ends with `retry_for`.
//! - `check-first`, and everything else: the client gets the answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::header::{
    CONTENT_LENGTH, CONTENT_LOCATION, EXPECT, Entry, HOST, HeaderName, LOCATION, RETRY_AFTER,
    TRAILER, VIA,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Collected};
use hyper::body::Incoming;
use reqwest::{Body, Client, Url};
use rustls::RootCertStore;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::clients;
use crate::config::{UpstreamSettings, UpstreamUrl};
use crate::http1::Fields;
use crate::locked::locked;
use crate::metrics::Outcome;
use crate::proxy::headers::{OPERATION, OUTCOME, RETRY, TOKEN, strip_hop_by_hop};
use crate::proxy::{AnswerStyle, Refusal, Retry};

/// The longest body that is kept, so that its request can be sent again.
const BUFFER: u64 = 1 << 20;
/// The pauses before attempts where the fencepost names no time: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long an idle connection is kept: less than a fencepost keeps it.
const IDLE: Duration = Duration::from_secs(4);
/// Own refusals look like those of a fencepost.
const STYLE: AnswerStyle = AnswerStyle {
    stale_status: 412,
    disclose: false,
    grpc: false,
};

/// The way of each request.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub hold: watch::Sender<Hold>,
    /// Short sections, never across an await.
    pub counts: Mutex<Counts>,
    /// Warns once of answers that did not come through a fencepost.
    pub unchecked: Once,
    /// `X-Fencing-Operation` of requests without one.
    pub operation: Option<HeaderValue>,
    /// How long a request is sent again after a refusal with `same-token`.
    pub retry_for: Duration,
    /// The authorities of requests that may come here.
    pub hosts: Vec<String>,
    /// The client of the fencepost, and its origin: `http://orders:7080`.
    pub client: Client,
    pub base: String,
}

/// The token of requests that begin now.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub token: HeaderValue,
    /// Set once the lock has another holder: the fencepost's answer, which later requests get too.
    pub refusal: Option<Response<Bytes>>,
}

impl Hold {
    pub(super) fn of(token: HeaderValue) -> Self {
        let refusal = None;
        Self { token, refusal }
    }
}

/// A request of the client.
struct Asked {
    /// For people: `PUT /orders/7`. A query may have secrets.
    what: String,
    /// The token that it is sent with.
    token: HeaderValue,
}

/// The numbers of one run.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Times that SIGHUP had the token read again.
    pub renewals: u64,
    /// Requests of the client, each once.
    pub requests: u64,
    /// Attempts after the first one of a request.
    pub retries: u64,
    /// Requests refused as stale, here or by the fencepost.
    pub stale: u64,
    /// Other requests that were refused, or whose outcome is unknown, by their last outcome.
    pub refused: BTreeMap<String, u64>,
}

impl Counts {
    /// Whether the token was refused for itself, so that no request with it can succeed there.
    pub(super) fn token_refused(&self) -> bool {
        let of_token = [Outcome::MalformedToken, Outcome::ImplausibleToken];
        let mut of_token = of_token.iter().map(|outcome| outcome.as_str());
        of_token.any(|outcome| self.refused.contains_key(outcome))
    }
}

/// The client of the fencepost, and its origin. It sends each request once: it follows no redirect,
/// and uses no proxy of the environment. Its pool sends one again only where a connection closed
/// before the first byte.
pub(super) fn client(settings: &UpstreamSettings) -> anyhow::Result<(Client, String)> {
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
        UpstreamUrl::H2c(_) => bail!("--to: write http://, attach speaks HTTP/1.1"),
    };
    let mut tls = settings.tls.clone();
    if scheme == "http" {
        // The system may have no CAs, and needs none.
        tls.roots = Some(Arc::new(RootCertStore::empty()));
    }
    let tls = tls.client_config().context("TLS to the fencepost")?;
    let client = builder.tls_backend_preconfigured(tls).build()?;
    // As reqwest writes it in `Host`: without a port that is the default.
    let base = Url::parse(&format!("{scheme}://{host}"))?;
    Ok((client, base.origin().ascii_serialization()))
}

impl Forwarder {
    /// The lock has another holder.
    pub(super) fn is_lost(&self) -> bool {
        self.hold.borrow().refusal.is_some()
    }

    /// Answers a request of the command, with the fencepost's answer or with a refusal.
    pub(super) async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        locked(&self.counts).requests += 1;
        let (head, body) = request.into_parts();
        let asked = Asked {
            what: format!("{} {}", head.method, head.uri.path()),
            token: self.hold.borrow().token.clone(),
        };
        let origin = origin(&head);
        let answered = async {
            clients::check(&self.hosts, &head, &asked.token)?;
            let request = self.request(head, read(body).await?, &origin)?;
            self.stamped(request, &asked).await
        };
        let refusal = match answered.await {
            Ok(mut answer) => {
                for name in [LOCATION, CONTENT_LOCATION] {
                    move_origin(answer.headers_mut(), name, &self.base, &origin);
                }
                return answer;
            }
            Err(refusal) => refusal,
        };
        let why = refusal.detail(None, true).to_string();
        self.refused(&asked, refusal.outcome().as_str(), Some(&why));
        let answer = whole(Response::from(refusal.respond(STYLE, None)));
        answer.await.map(Body::from)
    }

    /// Sends a request with the token, and again where the answer allows that.
    async fn stamped(
        &self,
        mut request: reqwest::Request,
        asked: &Asked,
    ) -> Result<Response<Body>, Refusal> {
        let headers = request.headers_mut();
        headers.insert(TOKEN, asked.token.clone());
        if let Some(operation) = &self.operation {
            let own = headers.entry(OPERATION);
            own.or_insert_with(|| operation.clone());
        }
        let until = Instant::now() + self.retry_for;
        let mut pause = PAUSES.0;
        let mut hold = self.hold.subscribe();
        loop {
            if let Some(refusal) = &self.hold.borrow().refusal {
                locked(&self.counts).stale += 1;
                return Ok(refusal.clone().map(Body::from));
            }
            // `None`: the body passes piece by piece.
            let copy = request.try_clone();
            let sent = self.send(request).await;
            let wait = wait(&sent, pause).filter(|wait| Instant::now() + *wait < until);
            let (Some(wait), Some(copy)) = (wait, copy) else {
                return Ok(self.noted(sent?, asked).await);
            };
            drop(sent);
            // Ends early once the hold is lost.
            let _ = timeout(wait, hold.wait_for(|hold| hold.refusal.is_some())).await;
            pause = (pause * 2).min(PAUSES.1);
            locked(&self.counts).retries += 1;
            request = copy;
        }
    }

    /// Notes the last answer on its way to the client. One that is stale ends the hold.
    async fn noted(&self, answer: Response<Body>, asked: &Asked) -> Response<Body> {
        match outcome(&answer) {
            Some(outcome) if outcome == Outcome::StaleToken.as_str() => {
                return self.lost(answer, asked).await;
            }
            Some(outcome) if answer.headers().contains_key(RETRY) => {
                self.refused(asked, outcome, None);
            }
            None if !has_passed_a_fencepost(answer.headers()) => self.unchecked.call_once(|| {
                tracing::warn!(
                    request = asked.what,
                    "an answer did not come through a fencepost, so nothing checks the token \
                     there: --to must lead to one"
                );
            }),
            _ => {}
        }
        answer
    }

    /// Ends the hold with an answer that is stale.
    async fn lost(&self, answer: Response<Body>, asked: &Asked) -> Response<Body> {
        locked(&self.counts).stale += 1;
        let mut answer = whole(answer).await;
        // The body may have broken off. The refusal itself matters more.
        answer.headers_mut().remove(CONTENT_LENGTH);
        let problem: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let newer = match problem["mark"].as_str() {
            Some(mark) => format!("the holder of token {mark} is newer"),
            None => "a newer holder has written there".to_owned(),
        };
        let (token, what) = (asked.token.to_str().unwrap_or_default(), &asked.what);
        self.hold.send_if_modified(|hold| {
            // A token that has come since is not blamed.
            let first = hold.token == asked.token && hold.refusal.is_none();
            if first {
                tracing::error!(
                    "token {token} is stale: {what} was refused, because {newer}; nothing more is \
                     forwarded"
                );
                hold.refusal = Some(answer.clone());
            }
            first
        });
        answer.map(Body::from)
    }

    /// Counts a refusal that ends no hold, or an unknown outcome.
    fn refused(&self, asked: &Asked, outcome: &str, why: Option<&str>) {
        let mut counts = locked(&self.counts);
        let count = counts.refused.entry(outcome.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(
                request = asked.what,
                outcome,
                why,
                "a request was refused, or its outcome is unknown; further ones with this outcome \
                 are only counted"
            );
        }
    }

    /// A request to this origin as the fencepost gets it, without the fencing fields.
    ///
    /// # Errors
    ///
    /// The target has no path, or one that reqwest would change: `/a/../b` names two resources.
    fn request(&self, head: Parts, body: Body, origin: &str) -> Result<reqwest::Request, Refusal> {
        let target = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
        let url = Url::parse(&format!("{}{target}", self.base)).ok();
        let unchanged = url.filter(|url| url.path() == head.uri.path());
        let url = unchanged.ok_or_else(|| {
            Refusal::ambiguous(
                "fencepost attach passes a path on as it is: send one that begins with /, without \
                 dot segments, and percent-encoded.",
            )
        })?;
        let mut request = reqwest::Request::new(head.method, url);
        let mut headers = end_to_end(&head.headers);
        // hyper writes `Host`, answers `Expect`, and sends no trailers that are not announced.
        for name in [HOST, EXPECT, TRAILER] {
            headers.remove(name);
        }
        let destination = HeaderName::from_static("destination");
        move_origin(&mut headers, destination, origin, &self.base);
        headers.append(VIA, HeaderValue::from_static("1.1 fencepost-attach"));
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body);
        Ok(request)
    }

    async fn send(&self, request: reqwest::Request) -> Result<Response<Body>, Refusal> {
        let answer = self.client.execute(request).await.map_err(|error| {
            let refusal: fn(String) -> Refusal = if error.is_connect() {
                Refusal::Unreachable
            } else {
                Refusal::Broken
            };
            refusal(format!("{:#}", anyhow::Error::from(error.without_url())))
        })?;
        let mut answer = Response::from(answer);
        *answer.headers_mut() = end_to_end(answer.headers());
        Ok(answer)
    }
}

/// The origin that the client sends a request to.
fn origin(head: &Parts) -> String {
    let proxied = head.uri.authority().map(Authority::as_str);
    let host = || head.headers.get(HOST)?.to_str().ok();
    format!("http://{}", proxied.or_else(host).unwrap_or_default())
}

/// Moves the URLs in a field to another origin. The fencepost sees a request with the host of
/// `--to`, and compares it with `Destination` (RFC 4918, 10.3); the service writes it in `Location`.
fn move_origin(headers: &mut HeaderMap, name: HeaderName, from: &str, to: &str) {
    let Entry::Occupied(mut lines) = headers.entry(name) else {
        return;
    };
    for line in lines.iter_mut() {
        let url = line.to_str().unwrap_or_default();
        let Some((origin, path)) = url.split_at_checked(from.len()) else {
            continue;
        };
        if origin.eq_ignore_ascii_case(from) && path.starts_with('/') {
            *line = HeaderValue::try_from(format!("{to}{path}")).expect("both are of a header");
        }
    }
}

/// Without the fields of one connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut fields = Fields::from(headers);
    strip_hop_by_hop(&mut fields);
    fields.to_map()
}

/// Reads a body that is known to be short. Any other passes piece by piece.
async fn read(body: Incoming) -> Result<Body, Refusal> {
    let length = body.size_hint().exact();
    if length.is_none_or(|length| length > BUFFER) {
        return Ok(Body::wrap(body));
    }
    let gone = |error| Refusal::ClientGone(format!("The body of the request: {error}"));
    let body = body.collect().await.map_err(gone)?;
    Ok(body.to_bytes().into())
}

/// An answer with its body, as far as it comes.
async fn whole<B: http_body::Body>(answer: Response<B>) -> Response<Bytes> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map(Collected::to_bytes);
    Response::from_parts(head, body.unwrap_or_default())
}

fn outcome(answer: &Response<Body>) -> Option<&str> {
    answer.headers().get(OUTCOME)?.to_str().ok()
}

fn has_passed_a_fencepost(headers: &HeaderMap) -> bool {
    let mut passed = headers.get_all(VIA).iter();
    passed.any(|line| String::from_utf8_lossy(line.as_bytes()).contains(" fencepost-"))
}

/// How long to wait until the same request is sent again; `None`: it must not be. `pause`: where
/// the refusal names no time.
fn wait(sent: &Result<Response<Body>, Refusal>, pause: Duration) -> Option<Duration> {
    let headers = match sent {
        Ok(answer) => answer.headers(),
        Err(refusal) => return (refusal.retry() == Retry::SameToken).then_some(pause),
    };
    if *headers.get(RETRY)? != Retry::SameToken.as_str() {
        return None;
    }
    // In seconds (RFC 9110, 10.2.3), as a fencepost writes it.
    let after = headers.get(RETRY_AFTER);
    let after = after.and_then(|after| after.to_str().ok()?.parse().ok());
    Some(after.map_or(pause, Duration::from_secs))
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
