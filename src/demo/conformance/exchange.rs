//! One request of a run: how it is answered, and what is kept of it.

use http::header::{CONTENT_TYPE, HeaderValue, VIA};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::judge::{RequestKind, RunAnswer, RunRequest};
use super::runs::{ConformanceRuns, Document, RunLog};
use super::scenarios::{RefusalScript, Scenario, Script};
use crate::proxy::headers::{self, RESOURCE, TARGET};
use crate::proxy::{AnswerStyle, ClientBody, Refusal, Retry, Subject, claimed, full};
use crate::routing::{ResourceKey, Token, TokenFormat};

/// The most bytes of a body.
const MOST_BODY: usize = 64 << 10;
/// The most bytes of a target below the base URL, of a method, and of what is claimed.
const MOST_TEXT: usize = 1024;
/// The most bytes of a content type that reads show.
const MOST_TYPE: usize = 128;
/// The path of claims, below the base URL.
const CLAIM: &str = "/.well-known/fencing/claim";

/// The end of a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection ends without an answer")]
pub(super) struct ConnectionEnd;

/// A request, as its path below the base URL and its fields say.
struct Asked {
    kind: RequestKind,
    target: String,
    /// A refusal of its own says what is wrong with the request, whatever the scenario.
    fenced: Result<Subject, Refusal>,
    /// As [`RunRequest::token`].
    token: Result<String, String>,
}

/// The answer before it is written.
enum Reply {
    Read,
    Accepted,
    Claimed,
    UpstreamError,
    NoAnswer,
    /// As the scenario plans it; with the subject that it names.
    Planned(Refusal, AnswerStyle<'static>, Option<Subject>),
    /// For a fault of the request itself.
    Unplanned(Refusal),
}

/// Answers a request to `target`, the part below the base URL. The request is read to its end first.
pub(super) async fn exchange(
    scenario: &Scenario,
    run: &str,
    target: &str,
    request: Request<Incoming>,
    runs: &ConformanceRuns,
) -> Result<Response<ClientBody>, ConnectionEnd> {
    let came = Instant::now();
    let (head, body) = request.into_parts();
    let mut asked = Asked::by(&head, target);
    let content = match Limited::new(body, MOST_BODY).collect().await {
        Ok(content) => content.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let why = format!("This server takes bodies up to {MOST_BODY} bytes.");
            asked.fenced = Err(Refusal::TooLarge(why));
            Bytes::new()
        }
        // The client has left.
        Err(_) => return Err(ConnectionEnd),
    };
    runs.with(scenario.name, run, came, |log| {
        let reply = reply(&scenario.script, log.planned, &asked);
        if reply.takes_effect() {
            log.document = Some(document(&asked.target, &head.headers, content.clone()));
        }
        let response = reply.respond(&asked, log);
        log.record(RunRequest {
            kind: asked.kind,
            method: short(head.method.as_str()).to_owned(),
            target: asked.target,
            token: asked.token,
            content: Sha256::digest(&content).into(),
            came: came.saturating_duration_since(log.began()),
            answered: log.began().elapsed(),
            answer: reply.kept(),
        });
        response
    })
}

impl Asked {
    fn by(head: &Parts, target: &str) -> Self {
        let (token, own) = token(&head.headers);
        let path = target.split('?').next().unwrap_or_default();
        let mut asked = Self {
            kind: RequestKind::Write,
            target: short(target).to_owned(),
            fenced: Err(Refusal::TokenRequired),
            token,
        };
        let key = match (path, &head.method) {
            (CLAIM, &Method::POST) => {
                let of = claim_of(&head.headers);
                let text = of.as_deref().unwrap_or("nothing");
                asked.kind = RequestKind::Claim(short(text).to_owned());
                of.map(|of| of.split_once(' ').map_or(of, |(_, path)| path))
            }
            (CLAIM, _) => Err(Refusal::MethodNotAllowed("POST".into())),
            (path, method) => {
                if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
                    asked.kind = RequestKind::Read;
                }
                Ok(path)
            }
        };
        asked.fenced = key.and_then(|key| {
            if target.len() > MOST_TEXT {
                let why = format!("This server takes targets up to {MOST_TEXT} bytes.");
                return Err(Refusal::TargetTooLong(why));
            }
            let key = ResourceKey::new(key).map_err(|error| Refusal::Ambiguous(error.to_string()));
            Ok((key?, own?))
        });
        asked
    }
}

/// The token for people, and for the answer.
fn token(headers: &HeaderMap) -> (Result<String, String>, Result<Token, Refusal>) {
    let malformed = |error: String| {
        let text = format!("X-Fencing-Token: {error}");
        (Err(text), Err(Refusal::MalformedToken(error)))
    };
    match headers::fencing_token(headers) {
        Err(error) => malformed(error.to_string()),
        Ok(None) => (
            Err("it has no X-Fencing-Token".into()),
            Err(Refusal::TokenRequired),
        ),
        Ok(Some(value)) => match TokenFormat::Decimal.parse(value.as_bytes()) {
            Ok(token) => (Ok(token.to_string()), Ok(token)),
            Err(error) => malformed(error.to_string()),
        },
    }
}

/// The target or resource that a claim names.
fn claim_of(headers: &HeaderMap) -> Result<&str, Refusal> {
    let field =
        |name| headers::text(headers, name).map_err(|error| Refusal::Ambiguous(error.to_string()));
    match (field(&TARGET)?, field(&RESOURCE)?) {
        (Some(of), None) if of.contains(" /") => Ok(of),
        (None, Some(of)) => Ok(of),
        _ => Err(Refusal::Ambiguous(
            "Say what is claimed: X-Fencing-Target: PUT /orders/7, or X-Fencing-Resource: <key>."
                .into(),
        )),
    }
}

/// The answer, after `planned` answers that are what the scenario is about.
fn reply(script: &Script, planned: usize, asked: &Asked) -> Reply {
    if asked.kind == RequestKind::Read {
        return Reply::Read;
    }
    let subject = match &asked.fenced {
        Ok(subject) => subject,
        Err(refusal) => return Reply::Unplanned(refusal.clone()),
    };
    let claim = asked.kind != RequestKind::Write;
    let refused = |script: &RefusalScript| {
        let refusal = script.refusal(planned, subject.1)?;
        let subject = script.knows_the_token().then(|| subject.clone());
        Some(Reply::Planned(refusal, script.style(), subject))
    };
    match script {
        Script::Refuse(script) if script.claims == claim => refused(script),
        Script::UpstreamError if !claim => Some(Reply::UpstreamError),
        Script::ConnectionLost if !claim && planned == 0 => Some(Reply::NoAnswer),
        _ => None,
    }
    .unwrap_or(if claim {
        Reply::Claimed
    } else {
        Reply::Accepted
    })
}

impl Reply {
    /// The upstream has done it, whether or not its client learns that.
    fn takes_effect(&self) -> bool {
        match self {
            Self::Accepted | Self::NoAnswer => true,
            Self::Planned(refusal, ..) => refusal.retry() == Retry::CheckFirst,
            _ => false,
        }
    }

    fn respond(&self, asked: &Asked, log: &RunLog) -> Result<Response<ClientBody>, ConnectionEnd> {
        Ok(match self {
            Self::Read => {
                let shown = log.document.as_ref();
                match shown.filter(|document| document.target == asked.target) {
                    Some(Document { kind, content, .. }) => {
                        upstream(StatusCode::OK, kind.clone(), content.clone())
                    }
                    None => upstream(StatusCode::OK, JSON, "{}\n"),
                }
            }
            Self::Accepted => upstream(StatusCode::OK, JSON, "{\"accepted\":true}\n"),
            Self::Claimed => claimed(),
            Self::UpstreamError => {
                let kind = HeaderValue::from_static("text/plain");
                let text = "The API itself is down for a while.\n";
                upstream(StatusCode::SERVICE_UNAVAILABLE, Some(kind), text)
            }
            Self::NoAnswer => return Err(ConnectionEnd),
            Self::Planned(refusal, style, subject) => refusal.respond(*style, subject.as_ref()),
            Self::Unplanned(refusal) => refusal.respond(PLAIN, None),
        })
    }

    fn kept(&self) -> RunAnswer {
        let refused = |refusal: &Refusal, style, planned| RunAnswer::Refused {
            status: refusal.status(style).as_u16(),
            outcome: refusal.outcome().as_str(),
            retry: refusal.retry(),
            after: refusal.retry_after(),
            planned,
        };
        match self {
            Self::Read | Self::Accepted => RunAnswer::Accepted,
            Self::Claimed => RunAnswer::Claimed,
            Self::UpstreamError => RunAnswer::UpstreamError,
            Self::NoAnswer => RunAnswer::NoAnswer,
            Self::Planned(refusal, style, _) => refused(refusal, *style, true),
            Self::Unplanned(refusal) => refused(refusal, PLAIN, false),
        }
    }
}

/// As a route without options answers.
const PLAIN: AnswerStyle<'_> = AnswerStyle {
    stale_status: 412,
    disclose: true,
    grpc: false,
    problems: None,
};

const JSON: Option<HeaderValue> = Some(HeaderValue::from_static("application/json"));

/// An answer of the upstream, as a fencepost passes it on.
fn upstream(
    status: StatusCode,
    kind: Option<HeaderValue>,
    content: impl Into<Bytes>,
) -> Response<ClientBody> {
    let mut response = Response::new(full(content));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(VIA, HeaderValue::from_static("1.1 fencepost-conformance"));
    if let Some(kind) = kind {
        headers.insert(CONTENT_TYPE, kind);
    }
    response
}

fn document(target: &str, headers: &HeaderMap, content: Bytes) -> Document {
    let kind = headers.get(CONTENT_TYPE);
    Document {
        target: target.to_owned(),
        kind: kind.filter(|kind| kind.len() <= MOST_TYPE).cloned(),
        content,
    }
}

/// As much of a text as is kept.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT)]
}
