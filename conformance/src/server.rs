//! The server: it answers the requests of runs, and keeps what the verdicts need. The oldest runs
//! are forgotten, and the first requests of a run are kept, so memory is bounded.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencepost::http1::Fields;
use fencepost::proxy::headers::{self, RESOURCE, TARGET};
use fencepost::proxy::{ClientBody, Refusal, Retry, Subject, claimed, full};
use fencepost::routing::{ResourceKey, Token, TokenFormat};
use http::header::{CONTENT_TYPE, HOST, HeaderValue, VIA};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lru::LruCache;
use tokio::net::TcpListener;

use crate::judge::{MAX_REQUESTS, RequestKind, RunRequest, verdict};
use crate::scenarios::{self, Answer, EARLY, Scenario};

/// The most runs that are kept.
const MAX_RUNS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// The most bytes of a body.
const MAX_BODY: usize = 64 << 10;
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The path of claims, below the base URL.
const CLAIM: &str = "/.well-known/fencing/claim";

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The state that all connections share.
pub struct State {
    scenarios: Vec<Scenario>,
    /// By scenario and name. Short sections, never across an await.
    runs: Mutex<LruCache<(&'static str, String), Run>>,
}

struct Run {
    began: Instant,
    requests: Vec<RunRequest>,
    /// How often the scenario's own answer was given.
    planned: usize,
    /// The target, the content type and the content of the last write that took effect.
    document: Option<(String, HeaderValue, Bytes)>,
}

/// An error ends the connection without an answer.
type Answered = io::Result<Response<ClientBody>>;

/// Answers every request that comes to `listener`.
pub async fn serve(listener: TcpListener, state: Arc<State>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(|request| state.answer(request));
            // An error is the end that a scenario plans, or a client that has left.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl State {
    pub fn new() -> Self {
        Self {
            scenarios: scenarios::all(),
            runs: Mutex::new(LruCache::new(MAX_RUNS)),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answered {
        let uri = request.uri().clone();
        let path = uri.path().strip_prefix('/').unwrap_or_default();
        let get = request.method() == Method::GET;
        if get && path.is_empty() {
            let host = request
                .headers()
                .get(HOST)
                .and_then(|host| host.to_str().ok());
            let overview = self.overview(&format!("http://{}", host.unwrap_or("HOST")));
            return Ok(reply(StatusCode::OK, TEXT, overview));
        }
        let verdict = path.strip_prefix("verdict/").filter(|_| get);
        let mut parts = verdict.unwrap_or(path).splitn(3, '/');
        let [name, run, rest] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let scenario = self.scenarios.iter().find(|one| one.name == name);
        let Some(scenario) = scenario.filter(|_| !run.is_empty()) else {
            let text = "There is nothing here. The base URL of a client is /SCENARIO/RUN, and GET / \
                        lists the scenarios.\n";
            return Ok(reply(StatusCode::NOT_FOUND, TEXT, text));
        };
        if verdict.is_some() {
            return Ok(self.verdict(scenario, run));
        }
        let query = uri.query().map(|query| format!("?{query}"));
        let target = format!("/{rest}{}", query.unwrap_or_default());
        self.exchange(scenario, run, target, request).await
    }

    /// The verdict about a run. A run without requests has not passed.
    fn verdict(&self, scenario: &Scenario, name: &str) -> Response<ClientBody> {
        let mut runs = self.runs.lock().expect("not poisoned");
        let run = runs.get(&(scenario.name, name.to_owned()));
        let requests = run.map_or(&[][..], |run| &run.requests[..]);
        let verdict = verdict(scenario, name, requests);
        reply(StatusCode::OK, JSON, format!("{verdict}\n"))
    }

    /// The URL, the usage, and the scenarios.
    pub fn overview(&self, url: &str) -> String {
        let mut text = format!(
            "fencepost's conformance server: {url}\n\n  \
             your client's base URL  {url}/SCENARIO/RUN  (RUN: any new word)\n  \
             then ask                {url}/verdict/SCENARIO/RUN\n\n\
             Unless a scenario says otherwise, claims and reads pass. A correct client sends one token.\n"
        );
        for one in &self.scenarios {
            let (name, answers, expected) = (one.name, one.answers(), one.expected());
            let _ = writeln!(text, "\n{name}\n  {answers}\n  a correct client {expected}");
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
    ) -> Answered {
        let came = Instant::now();
        let (head, body) = request.into_parts();
        let fields = Fields::from(&head.headers);
        let path = target.split('?').next().unwrap_or_default();
        let (kind, named) = match head.method {
            _ if path == CLAIM => (RequestKind::Claim, claim(&head.method, &fields)),
            Method::GET | Method::HEAD | Method::OPTIONS => (RequestKind::Read, Ok(path)),
            _ => (RequestKind::Write, Ok(path)),
        };
        let repeated = match kind {
            RequestKind::Claim => format!("the claim of {}", named.as_ref().unwrap_or(&"nothing")),
            RequestKind::Read | RequestKind::Write => format!("{} {target}", head.method),
        };
        let token = token(&fields);
        let mut subject = named.and_then(|named| Ok((key(named)?, token.clone()?)));
        let content = match Limited::new(body, MAX_BODY).collect().await {
            Ok(content) => content.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let why = format!("This server takes bodies up to {MAX_BODY} bytes.");
                subject = Err(Refusal::TooLarge(why));
                Bytes::new()
            }
            // The client has left.
            Err(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&content);

        let mut runs = self.runs.lock().expect("not poisoned");
        let key = (scenario.name, run.to_owned());
        let run = runs.get_or_insert_mut(key, || Run {
            began: came,
            requests: Vec::new(),
            planned: 0,
            document: None,
        });
        let claims = kind == RequestKind::Claim;
        let planned = kind != RequestKind::Read
            && subject.is_ok()
            && claims == scenario.claims
            && run.planned < scenario.times;
        let answer = match &subject {
            _ if kind == RequestKind::Read => Answer::Accepted,
            Err(refusal) => Answer::Refused(refusal.clone(), EARLY),
            Ok((_, token)) if planned => scenario.answer(*token),
            Ok(_) if claims => Answer::Claimed,
            Ok(_) => Answer::Accepted,
        };
        let takes_effect =
            matches!(answer, Answer::Accepted) || answer.retry() == Some(Retry::CheckFirst);
        if takes_effect && kind == RequestKind::Write {
            let media_type = head.headers.get(CONTENT_TYPE).cloned();
            let media_type = media_type.unwrap_or(HeaderValue::from_static(JSON));
            run.document = Some((target.clone(), media_type, content));
        }
        let response = match kind {
            RequestKind::Read => Ok(run.read(&target)),
            _ => respond(&answer, subject.as_ref().ok()),
        };
        run.planned += usize::from(planned);
        if run.requests.len() <= MAX_REQUESTS {
            run.requests.push(RunRequest {
                number: run.requests.len() + 1,
                kind,
                method: head.method.to_string(),
                target,
                subject: repeated,
                token: token.map_err(|refusal| match refusal {
                    Refusal::MalformedToken(error) => format!("X-Fencing-Token: {error}"),
                    _ => "it has no X-Fencing-Token".to_owned(),
                }),
                content: hash,
                came: came.saturating_duration_since(run.began),
                answered: run.began.elapsed(),
                answer,
                planned,
            });
        }
        response
    }
}

impl Run {
    /// The upstream's answer to a read.
    fn read(&self, target: &str) -> Response<ClientBody> {
        let document = self.document.as_ref().filter(|one| one.0 == target);
        let Some((_, media_type, content)) = document else {
            return reply(StatusCode::OK, JSON, "{}\n");
        };
        let mut response = reply(StatusCode::OK, JSON, content.clone());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, media_type.clone());
        response
    }
}

fn ambiguous(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::Ambiguous(error.to_string())
}

/// The resource key of a path, of a method and a path, or of a key.
fn key(named: &str) -> Result<ResourceKey, Refusal> {
    let key = named.split_once(' ').map_or(named, |(_, path)| path);
    ResourceKey::new(key).map_err(|error| ambiguous(&error))
}

fn token(fields: &Fields) -> Result<Token, Refusal> {
    let value = headers::fencing_token(fields)
        .map_err(|error| Refusal::MalformedToken(error.to_string()))?
        .ok_or(Refusal::TokenRequired)?;
    let token = TokenFormat::Decimal.parse(value);
    token.map_err(Refusal::MalformedToken)
}

/// The target or resource that a claim names.
fn claim<'a>(method: &Method, fields: &'a Fields) -> Result<&'a str, Refusal> {
    if *method != Method::POST {
        return Err(Refusal::MethodNotAllowed("POST".into()));
    }
    let field = |name| headers::text(fields, name).map_err(|error| ambiguous(&error));
    match (field(TARGET)?, field(RESOURCE)?) {
        (Some(of), None) if of.contains(" /") => Ok(of),
        (None, Some(of)) => Ok(of),
        _ => Err(Refusal::Ambiguous(
            "Say what is claimed: X-Fencing-Target: PUT /orders/7, or X-Fencing-Resource: <key>."
                .into(),
        )),
    }
}

fn respond(answer: &Answer, subject: Option<&Subject>) -> Answered {
    Ok(match answer {
        Answer::Accepted => reply(StatusCode::OK, JSON, "{\"accepted\":true}\n"),
        Answer::Claimed => claimed().into(),
        Answer::Refused(refusal, form) => {
            let subject = subject.filter(|_| form.has_subject);
            refusal.respond(form.style, subject).into()
        }
        Answer::UpstreamError => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            reply(status, TEXT, "The API itself is down for a while.\n")
        }
        Answer::ConnectionLost => return Err(io::ErrorKind::ConnectionAborted.into()),
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
