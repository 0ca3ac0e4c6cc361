//! `fencepost explain`: what the request path would do with a request. It asks the classification
//! that serves, so there is no second opinion.

use std::sync::Arc;

use serde::Serialize;

use super::classify::{Class, Fenced, classify, json_members};
use super::client::Client;
use super::headers::{self, TOKEN};
use super::refusal::{Refusal, Subject};
use super::routing_table::RoutingTable;
use crate::config::{Mode, Settings};
use crate::http1::RequestHead;
use crate::metrics::Metrics;

/// What would be done with a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub method: String,
    pub target: String,
    pub verdict: PathVerdict,
    /// The path of its route. null: no route matches.
    pub route: Option<String>,
    pub mode: Option<Mode>,
    /// The resource key that its token is checked for.
    pub resource: Option<String>,
    /// The status of the refusal, and its outcome as in metrics and logs.
    pub status: Option<u16>,
    pub outcome: Option<&'static str>,
    pub reason: String,
}

/// What is done with a request before its token is compared with the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathVerdict {
    /// Its token is checked, and it goes upstream if that is not stale.
    Fenced,
    /// Its token is checked, and it goes upstream in any case.
    Observed,
    /// It goes upstream without a check.
    Passed,
    Refused,
    /// It is a claim, and goes nowhere.
    Claim,
}

/// Explains a request. `body`: its whole body, if a key is taken from it.
pub fn explain(settings: Arc<Settings>, mut head: RequestHead, body: Option<&[u8]>) -> Explanation {
    if settings.asks_clients() {
        headers::strip_identity(&mut head.fields);
    }
    let table = RoutingTable::new(settings, &Metrics::new(&[]));
    let client = Client::at(None, 1);
    let (route, class) = classify(&table, &head, &client);
    let route = route.as_ref().map(|route| &route.settings);
    let (verdict, judged) = match class {
        Class::Fenced(fenced) => (PathVerdict::Fenced, subject(&fenced, &head, body)),
        Class::Observed(_, judged) => {
            let judged = judged.and_then(|fenced| subject(&fenced, &head, body));
            (PathVerdict::Observed, judged)
        }
        Class::Refused(refusal) => (PathVerdict::Refused, Err(refusal)),
        Class::Pass { .. } => (PathVerdict::Passed, Ok(None)),
        Class::Claim => (PathVerdict::Claim, Ok(None)),
    };
    let mut explained = Explanation {
        method: head.method.to_string(),
        target: head.target.as_str().to_owned(),
        verdict,
        route: route.map(|route| route.path.clone()),
        mode: route.map(|route| route.mode),
        resource: None,
        status: None,
        outcome: None,
        reason: String::new(),
    };
    explained.reason = match judged {
        Ok(Some((key, token))) => {
            explained.resource = Some(key.to_string());
            format!("Token {token} is compared with the mark of {key}.")
        }
        Ok(None) => match (verdict, explained.mode) {
            (PathVerdict::Claim, _) => {
                "It is a claim: it raises the mark, waits for older requests, and goes nowhere."
            }
            (_, None) => "No route matches, and such paths pass: they are not fenced.",
            (_, Some(Mode::Bypass)) => "Its route is in mode bypass: nothing is checked.",
            _ => "It is a read without a token, and those are not fenced (safe_methods).",
        }
        .to_owned(),
        Err(refusal) => {
            explained.status = Some(refusal.status(table.style(false)).as_u16());
            explained.outcome = Some(refusal.outcome().as_str());
            if matches!(refusal, Refusal::TokenRequired) && !head.fields.contains(TOKEN) {
                // With a token it has a key, which is what the caller wants to know.
                head.fields.insert(TOKEN, "1");
                if let Class::Fenced(fenced) = classify(&table, &head, &client).1 {
                    let subject = subject(&fenced, &head, body).ok().flatten();
                    explained.resource = subject.map(|(key, _)| key.to_string());
                }
            }
            let why = refusal.detail(None, true).to_string();
            if verdict == PathVerdict::Observed {
                format!("Observed only; enforced, it would be refused: {why}")
            } else {
                explained.verdict = PathVerdict::Refused;
                why
            }
        }
    };
    explained
}

/// The key of a request that carries a token, and the token.
fn subject(
    fenced: &Fenced,
    head: &RequestHead,
    body: Option<&[u8]>,
) -> Result<Option<Subject>, Refusal> {
    let json = match body {
        Some(body) if fenced.route.template()?.uses_json() => json_members(body, &fenced.route)?,
        _ => Vec::new(),
    };
    Ok(Some((fenced.key(head, json)?, fenced.token)))
}
