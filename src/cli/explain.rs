//! `fencepost explain`: which route takes a request, by which key, and why. It asks the
//! classification that serves, so there is no second opinion.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use http::{HeaderName, HeaderValue, Method, Uri, Version};
use serde::Serialize;

use super::overrides::ConfigArgs;
use super::usage::{field, path_and_query};
use super::{loaded, shown};
use crate::config::{Mode, Settings};
use crate::http1::names::HOST;
use crate::http1::{Fields, RequestHead, Target};
use crate::metrics::Metrics;
use crate::proxy::headers::{self, TOKEN};
use crate::proxy::{Class, Client, Fenced, Refusal, RoutingTable, Subject, classify};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The method, such as PUT.
    #[arg(value_name = "METHOD")]
    method: Method,
    /// The path with its query, as it would be sent: /orders/7?dry=1.
    #[arg(value_name = "TARGET", value_parser = path_and_query)]
    target: Uri,
    /// A header field of the request. Can be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, for keys that are taken from it (`{json.…}`).
    #[arg(short = 'd', long, value_name = "TEXT")]
    data: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    configuration: ConfigArgs,
}

/// Explains the request by its configuration. Returns false if the configuration has errors, and the
/// text to print.
pub(super) fn run(args: ExplainArgs) -> anyhow::Result<(bool, String)> {
    let Some((settings, _)) = loaded(&args.configuration.without_upstream()) else {
        return Ok((false, String::new()));
    };
    let mut fields = Fields::default();
    for (name, value) in &args.headers {
        fields.append(name.as_str(), value);
    }
    if !fields.contains(HOST) {
        fields.append(HOST, "localhost");
    }
    let target = Target::parse(args.target.to_string().as_bytes(), None);
    let target = target.context("TARGET is not a path with its query")?;
    let head = RequestHead::new(args.method, target, Version::HTTP_11, fields);
    let body = args.data.as_deref().map(str::as_bytes);
    let explained = explain(Arc::new(settings), head, body);
    Ok((true, shown(args.json, &explained, text)?))
}

/// The verdict on a request, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Explanation {
    method: String,
    target: String,
    /// The treatment of a request, before its token is compared with the mark: `fenced`, its token
    /// is checked; `observed`, it goes upstream in any case; `passed` without a check; `refused`;
    /// `claim`, it goes nowhere.
    verdict: &'static str,
    /// The path of its route. null: no route matches.
    route: Option<String>,
    mode: Option<Mode>,
    /// The resource key that its token is checked for.
    resource: Option<String>,
    /// The status of the refusal, and its outcome as in metrics and logs.
    status: Option<u16>,
    outcome: Option<&'static str>,
    reason: String,
}

/// Explains a request. `body`: its whole body, if a key is taken from it.
fn explain(settings: Arc<Settings>, mut head: RequestHead, body: Option<&[u8]>) -> Explanation {
    if settings.asks_clients() {
        headers::strip_identity(&mut head.fields);
    }
    let table = RoutingTable::new(settings, &Metrics::new(&[]));
    let client = Client::at(None, 1);
    let (route, class) = classify(&table, &head, &client);
    let route = route.as_ref().map(|route| &route.settings);
    let (verdict, judged) = match class {
        Ok(Class::Fenced(fenced)) => ("fenced", subject(&fenced, &head, body)),
        Ok(Class::Observed(_, judged)) => {
            let judged = judged.and_then(|fenced| subject(&fenced, &head, body));
            ("observed", judged)
        }
        Ok(Class::Unlisted) => ("observed", Err(Refusal::NoRoute)),
        Err(refusal) => ("refused", Err(refusal)),
        Ok(Class::Pass { .. }) => ("passed", Ok(None)),
        Ok(Class::Claim) => ("claim", Ok(None)),
    };
    let mut explained = Explanation {
        method: head.method.to_string(),
        target: head.target.as_str().to_owned(),
        verdict,
        route: route.map(|route| route.path.to_string()),
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
            ("claim", _) => {
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
                let class = classify(&table, &head, &client).1;
                if let Ok(Class::Fenced(fenced) | Class::Observed(_, Ok(fenced))) = class {
                    let subject = subject(&fenced, &head, body).ok().flatten();
                    explained.resource = subject.map(|(key, _)| key.to_string());
                }
            }
            let why = refusal.detail(None, true).to_string();
            if verdict == "observed" {
                format!("Observed only; enforced, it would be refused: {why}")
            } else {
                explained.verdict = "refused";
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
    Ok(Some((fenced.key(head, body)?, fenced.token)))
}

fn text(explained: &Explanation) -> String {
    let (method, target, reason) = (&explained.method, &explained.target, &explained.reason);
    let route = match (&explained.route, explained.mode) {
        (Some(route), Some(mode)) => format!("{route} ({})", mode.as_str()),
        _ => "none".to_owned(),
    };
    let key = explained.resource.as_deref().unwrap_or("-");
    let result = match (explained.verdict, explained.status, explained.outcome) {
        ("passed", ..) => "passed without a check".to_owned(),
        (verdict, Some(status), Some(outcome)) => format!("{verdict}, {status} {outcome}"),
        (verdict, ..) => verdict.to_owned(),
    };
    format!("{method} {target}\n  route   {route}\n  key     {key}\n  result  {result}: {reason}\n")
}
