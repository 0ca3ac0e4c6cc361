//! `fencepost explain`: what the request path would do with a request. It asks the classification
//! that serves, so there is no second opinion.

use std::sync::Arc;

use serde::Serialize;

use super::classify::{Class, Fenced, classify};
use super::client::Client;
use super::headers::{self, TOKEN};
use super::refusal::Refusal;
use super::refusal::problem::AnswerStyle;
use super::routing_table::{Route, RoutingTable};
use crate::config::{Mode, Settings};
use crate::http1::RequestHead;
use crate::metrics::Metrics;
use crate::routing::RouteConflict;

/// What would be done with a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub method: String,
    pub target: String,
    #[serde(flatten)]
    pub verdict: RequestVerdict,
}

/// The route of a request and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestVerdict {
    #[serde(rename = "verdict")]
    pub kind: PathVerdict,
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
pub fn explain(
    settings: Arc<Settings>,
    mut head: RequestHead,
    body: Option<&[u8]>,
) -> Result<Explanation, Vec<RouteConflict>> {
    let asks_clients = settings.asks_clients();
    let table = RoutingTable::new(settings, &Metrics::new(&[]))?;
    if asks_clients {
        headers::strip_identity(&mut head.fields);
    }
    Ok(Explanation {
        method: head.method.to_string(),
        target: head.target.as_str().to_owned(),
        verdict: judge(&table, &head, body),
    })
}

fn judge(table: &RoutingTable, head: &RequestHead, body: Option<&[u8]>) -> RequestVerdict {
    let refused = |route: Option<&Arc<Route>>, refusal: &Refusal| {
        verdict_of(PathVerdict::Refused, route, String::new()).refused(table, refusal)
    };
    let (scope, class) = classify(table, head, &Client::of_this_process("explain"));
    match class {
        Class::Fenced(fenced) => keyed(table, PathVerdict::Fenced, &fenced, head, body),
        Class::Observed(_, Ok(fenced)) => keyed(table, PathVerdict::Observed, &fenced, head, body),
        Class::Observed(route, Err(refusal)) => {
            let judged = refused(Some(&route), &refusal);
            let reason = format!(
                "Observed only; enforced, it would be refused: {}",
                judged.reason
            );
            RequestVerdict {
                kind: PathVerdict::Observed,
                reason,
                ..judged
            }
        }
        Class::Refused(refusal) => {
            let judged = refused(scope.route(), &refusal);
            if !matches!(refusal, Refusal::TokenRequired) || head.fields.contains(TOKEN) {
                return judged;
            }
            // With a token it has a key, which is what the caller wants to know.
            let mut with_token = head.clone();
            with_token.fields.insert(TOKEN, "1");
            match classify(table, &with_token, &Client::of_this_process("explain")).1 {
                Class::Fenced(fenced) => RequestVerdict {
                    resource: fenced.key(head, body).ok().map(|key| key.to_string()),
                    ..judged
                },
                _ => judged,
            }
        }
        Class::Pass { .. } => {
            let reason = match scope.route() {
                None => "No route matches, and such paths pass: they are not fenced.",
                Some(route) if route.settings.mode == Mode::Bypass => {
                    "Its route is in mode bypass: nothing is checked."
                }
                Some(_) => "It is a read without a token, and those are not fenced (safe_methods).",
            };
            verdict_of(PathVerdict::Passed, scope.route(), reason.to_owned())
        }
        Class::Claim => {
            let reason =
                "It is a claim: it raises the mark, waits for older requests, and goes nowhere.";
            verdict_of(PathVerdict::Claim, None, reason.to_owned())
        }
    }
}

fn verdict_of(kind: PathVerdict, route: Option<&Arc<Route>>, reason: String) -> RequestVerdict {
    RequestVerdict {
        kind,
        route: route.map(|route| route.settings.path.clone()),
        mode: route.map(|route| route.settings.mode),
        resource: None,
        status: None,
        outcome: None,
        reason,
    }
}

impl RequestVerdict {
    fn refused(self, table: &RoutingTable, refusal: &Refusal) -> Self {
        let style = AnswerStyle {
            stale_status: table.stale_status,
            disclose: table.disclose,
            grpc: false,
            problems: None,
        };
        Self {
            status: Some(refusal.status(style).as_u16()),
            outcome: Some(refusal.outcome().as_str()),
            reason: refusal.detail(None, true).to_string(),
            ..self
        }
    }
}

/// The verdict on a request that carries a token.
fn keyed(
    table: &RoutingTable,
    verdict: PathVerdict,
    fenced: &Fenced,
    head: &RequestHead,
    body: Option<&[u8]>,
) -> RequestVerdict {
    let route = Some(&fenced.route);
    match fenced.key(head, body) {
        Ok(key) => {
            let reason = format!("Token {} is compared with the mark of {key}.", fenced.token);
            RequestVerdict {
                resource: Some(key.to_string()),
                ..verdict_of(verdict, route, reason)
            }
        }
        Err(refusal) => {
            verdict_of(PathVerdict::Refused, route, String::new()).refused(table, &refusal)
        }
    }
}
