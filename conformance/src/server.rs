//! The server: it answers the requests of runs, and keeps what the verdicts need. The oldest runs
//! are forgotten, and the first requests of a run are kept, so memory is bounded.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fencepost::proxy::headers::{self, RESOURCE, TARGET};
use fencepost::proxy::{ClientBody, Refusal, Retry, Subject, claimed, full};
use fencepost::routing::{ResourceKey, Token, TokenFormat};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, VIA};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lru::LruCache;
use serde_json::json;
use tokio::net::TcpListener;

use crate::judge::{RequestKind, RunRequest, verdict};
use crate::scenarios::{self, Answer, Scenario};

/// The most runs that are kept.
const MAX_RUNS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// The most requests of a run that are kept.
const MAX_REQUESTS: usize = 64;
/// The most letters of a run's name.
const MAX_NAME: usize = 64;
/// The most bytes of a head.
const MAX_HEAD: usize = 16 << 10;
/// The most bytes of a body.
const MAX_BODY: usize = 64 << 10;
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The path of claims, below the base URL.
const CLAIM: &str = "/.well-known/fencing/claim";

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The end of a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection ends without an answer")]
struct ConnectionEnd;

/// The bound server.
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    state: Arc<State>,
}

/// The state that all connections share.
struct State {
    scenarios: Vec<Scenario>,
    /// By scenario and name. Short sections, never across an await.
    runs: Mutex<LruCache<(&'static str, String), Run>>,
}

struct Run {
    began: Instant,
    requests: Vec<RunRequest>,
    /// Requests that came after those that are kept.
    more: usize,
    /// How often the scenario's own answer was given.
    planned: usize,
    /// The target, the content type and the content of the last write that took effect.
    document: Option<(String, Option<HeaderValue>, Bytes)>,
}

impl Server {
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(listen: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {listen}"))?;
        Ok(Self {
            addr: listener.local_addr()?,
            listener,
            state: Arc::new(State {
                scenarios: scenarios::all(),
                runs: Mutex::new(LruCache::new(MAX_RUNS)),
            }),
        })
    }

    /// The URL, the usage, and the scenarios.
    pub fn overview(&self) -> String {
        self.state.overview(&format!("http://{}", self.addr))
    }

    pub async fn serve(&self) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let state = Arc::clone(&self.state);
            tokio::spawn(async move {
                let service = service_fn(|request| state.answer(request));
                // An error is the end that a scenario plans, or a client that has left.
                let _ = http1::Builder::new()
                    .max_buf_size(MAX_HEAD)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }
}

impl State {
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ClientBody>, ConnectionEnd> {
        let uri = request.uri().clone();
        let path = uri.path().strip_prefix('/').unwrap_or_default();
        let mut parts = path.splitn(3, '/');
        let [first, second, third] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let get = request.method() == Method::GET;
        let scenario = |name| self.scenarios.iter().find(|one| one.name == name);
        match (first, second, third) {
            ("", ..) if get => return Ok(self.list(request.headers())),
            ("verdict", name, run) if get => {
                if let Some(scenario) = scenario(name).filter(|_| is_name(run)) {
                    return Ok(self.verdict(scenario, run));
                }
            }
            (name, run, rest) => {
                if let Some(scenario) = scenario(name).filter(|_| is_name(run)) {
                    let query = uri.query().map(|query| format!("?{query}"));
                    let target = format!("/{rest}{}", query.unwrap_or_default());
                    return self.exchange(scenario, run, target, request).await;
                }
            }
        }
        let text = format!(
            "There is nothing here. The base URL of a client is /SCENARIO/RUN, where RUN has up to \
             {MAX_NAME} letters, digits and -_.~ and GET / lists the scenarios.\n"
        );
        Ok(reply(StatusCode::NOT_FOUND, TEXT, text))
    }

    fn runs(&self) -> MutexGuard<'_, LruCache<(&'static str, String), Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The verdict about a run. A run without requests has not passed.
    fn verdict(&self, scenario: &Scenario, name: &str) -> Response<ClientBody> {
        let mut runs = self.runs();
        let run = runs.get(&(scenario.name, name.to_owned()));
        let (requests, more) = run.map_or((&[][..], 0), |run| (&run.requests[..], run.more));
        let verdict = verdict(scenario, name, requests, more);
        // Plain data can always be written.
        let text = serde_json::to_string(&verdict).unwrap_or_default();
        reply(StatusCode::OK, JSON, format!("{text}\n"))
    }

    fn list(&self, headers: &HeaderMap) -> Response<ClientBody> {
        let field = |name: HeaderName| headers.get(name)?.to_str().ok();
        if field(ACCEPT).is_some_and(|accept| accept.contains(JSON)) {
            let row = |one: &Scenario| {
                let (answers, expected) = (one.answers(), one.expected());
                json!({ "name": one.name, "answers": answers, "expected": expected })
            };
            let rows = json!(self.scenarios.iter().map(row).collect::<Vec<_>>());
            return reply(StatusCode::OK, JSON, format!("{rows}\n"));
        }
        let url = format!("http://{}", field(HOST).unwrap_or("HOST"));
        reply(StatusCode::OK, TEXT, self.overview(&url))
    }

    fn overview(&self, url: &str) -> String {
        let mut text = format!(
            "fencepost's conformance server: {url}\n\n  \
             your client's base URL  {url}/SCENARIO/RUN  (RUN: any new word)\n  \
             then ask                {url}/verdict/SCENARIO/RUN\n\n\
             Unless a scenario says otherwise, claims and reads pass. A correct client sends one token.\n"
        );
        for scenario in &self.scenarios {
            let (answers, expected) = (scenario.answers(), scenario.expected());
            let name = scenario.name;
            let _ = write!(
                text,
                "\n{name}\n  {answers}\n  a correct client {expected}\n"
            );
        }
        text
    }

    /// Answers a request to `target`, the part below the base URL. The request is read to its end
    /// first.
    async fn exchange(
        &self,
        scenario: &Scenario,
        run: &str,
        target: String,
        request: Request<Incoming>,
    ) -> Result<Response<ClientBody>, ConnectionEnd> {
        let came = Instant::now();
        let (head, body) = request.into_parts();
        let token = token(&head.headers);
        let (kind, mut subject) = subject(&head, &target, token.clone());
        let content = match Limited::new(body, MAX_BODY).collect().await {
            Ok(content) => content.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let why = format!("This server takes bodies up to {MAX_BODY} bytes.");
                subject = Err(Refusal::TooLarge(why));
                Bytes::new()
            }
            // The client has left.
            Err(_) => return Err(ConnectionEnd),
        };
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);

        let mut runs = self.runs();
        let key = (scenario.name, run.to_owned());
        let run = runs.get_or_insert_mut(key, || Run::new(came));
        let is_claim = matches!(kind, RequestKind::Claim(_));
        let of_the_plan = is_claim == scenario.claims && run.planned < scenario.times;
        let (answer, planned) = match (&kind, &subject) {
            (RequestKind::Read, _) => (Answer::Accepted, false),
            (_, Err(refusal)) => (Answer::refused(refusal.clone()), false),
            (_, Ok((_, token))) if of_the_plan => (scenario.answer(*token), true),
            (RequestKind::Claim(_), _) => (Answer::Claimed, false),
            (RequestKind::Write, _) => (Answer::Accepted, false),
        };
        let takes_effect =
            matches!(answer, Answer::Accepted) || answer.retry() == Some(Retry::CheckFirst);
        if takes_effect && kind == RequestKind::Write {
            let media_type = head.headers.get(CONTENT_TYPE).cloned();
            run.document = Some((target.clone(), media_type, content));
        }
        let response = match kind {
            RequestKind::Read => Ok(run.read(&target)),
            _ => respond(&answer, subject.as_ref().ok()),
        };
        run.record(RunRequest {
            number: run.requests.len() + 1,
            kind,
            method: head.method.to_string(),
            target,
            token: token.map_err(|refusal| match refusal {
                Refusal::MalformedToken(error) => format!("X-Fencing-Token: {error}"),
                _ => "it has no X-Fencing-Token".to_owned(),
            }),
            content: hasher.finish(),
            came: came.saturating_duration_since(run.began),
            answered: run.began.elapsed(),
            answer,
            planned,
        });
        response
    }
}

impl Run {
    fn new(began: Instant) -> Self {
        Self {
            began,
            requests: Vec::new(),
            more: 0,
            planned: 0,
            document: None,
        }
    }

    /// The upstream's answer to a read.
    fn read(&self, target: &str) -> Response<ClientBody> {
        let mut response = reply(StatusCode::OK, JSON, "{}\n");
        if let Some((_, media_type, content)) = self.document.as_ref().filter(|one| one.0 == target)
        {
            *response.body_mut() = full(content.clone());
            let headers = response.headers_mut();
            headers.remove(CONTENT_TYPE);
            headers.extend(
                media_type
                    .clone()
                    .map(|media_type| (CONTENT_TYPE, media_type)),
            );
        }
        response
    }

    fn record(&mut self, request: RunRequest) {
        self.planned += usize::from(request.planned);
        if self.requests.len() < MAX_REQUESTS {
            self.requests.push(request);
        } else {
            self.more += 1;
        }
    }
}

/// The kind of a request, and its resource key and token. A refusal says what is wrong with the
/// request, whatever the scenario.
fn subject(
    head: &Parts,
    target: &str,
    token: Result<Token, Refusal>,
) -> (RequestKind, Result<Subject, Refusal>) {
    let path = target.split('?').next().unwrap_or_default();
    let (kind, key) = if path == CLAIM {
        let claim = claim(head);
        let of = claim.as_deref().unwrap_or("nothing").to_owned();
        // A resource key, or a method and a path.
        let key = claim.map(|of| of.split_once(' ').map_or(of, |(_, path)| path));
        (RequestKind::Claim(of), key)
    } else {
        let safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let kind = if safe {
            RequestKind::Read
        } else {
            RequestKind::Write
        };
        (kind, Ok(path))
    };
    let ambiguous = |error: fencepost::routing::KeyError| Refusal::Ambiguous(error.to_string());
    let key = key.and_then(|key| ResourceKey::new(key).map_err(ambiguous));
    (kind, key.and_then(|key| Ok((key, token?))))
}

fn token(headers: &HeaderMap) -> Result<Token, Refusal> {
    let value = headers::fencing_token(headers)
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?
        .ok_or(Refusal::TokenRequired)?;
    let token = TokenFormat::Decimal.parse(value.as_bytes());
    token.map_err(|error| Refusal::MalformedToken(error.to_string()))
}

/// The target or resource that a claim names.
fn claim(head: &Parts) -> Result<&str, Refusal> {
    if head.method != Method::POST {
        return Err(Refusal::MethodNotAllowed("POST".into()));
    }
    let field = |name| {
        headers::text(&head.headers, name).map_err(|error| Refusal::Ambiguous(error.to_string()))
    };
    match (field(&TARGET)?, field(&RESOURCE)?) {
        (Some(of), None) if of.contains(" /") => Ok(of),
        (None, Some(of)) => Ok(of),
        _ => Err(Refusal::Ambiguous(
            "Say what is claimed: X-Fencing-Target: PUT /orders/7, or X-Fencing-Resource: <key>."
                .into(),
        )),
    }
}

fn respond(
    answer: &Answer,
    subject: Option<&Subject>,
) -> Result<Response<ClientBody>, ConnectionEnd> {
    Ok(match answer {
        Answer::Accepted => reply(StatusCode::OK, JSON, "{\"accepted\":true}\n"),
        Answer::Claimed => claimed(),
        Answer::Refused {
            refusal,
            style,
            has_subject,
        } => refusal.respond(*style, subject.filter(|_| *has_subject)),
        Answer::UpstreamError => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            reply(status, TEXT, "The API itself is down for a while.\n")
        }
        Answer::ConnectionLost => return Err(ConnectionEnd),
    })
}

/// An answer of the upstream, or of this server itself.
fn reply(
    status: StatusCode,
    media_type: &'static str,
    content: impl Into<Bytes>,
) -> Response<ClientBody> {
    let mut response = Response::new(full(content));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(VIA, HeaderValue::from_static("1.1 fencepost-conformance"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Whether this can name a run.
fn is_name(run: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
    !run.is_empty() && run.len() <= MAX_NAME && run.chars().all(plain)
}
