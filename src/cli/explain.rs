//! `fencepost explain`: which route takes a request, by which key, and why. It asks the
//! classification that serves, so there is no second opinion.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use http::{HeaderName, HeaderValue, Method, Uri, Version};

use super::loaded;
use super::overrides::ConfigArgs;
use super::usage::{field, path_and_query};
use crate::config::{Mode, Settings};
use crate::http1::names::HOST;
use crate::http1::{Fields, RequestHead, Target};
use crate::metrics::Metrics;
use crate::printable;
use crate::proxy::headers::{self, TOKEN};
use crate::proxy::{Class, Client, Fenced, Refusal, RoutingTable, Subject, classify};
use crate::routing::ResourceKey;

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
    #[command(flatten)]
    configuration: ConfigArgs,
}

/// Explains the request by its configuration. Returns false if the configuration has errors, and the
/// text to print.
pub(super) fn run(args: ExplainArgs) -> anyhow::Result<(bool, String)> {
    let mut explained = String::new();
    if args.configuration.0.file.is_none() {
        explained +=
            "No file is given (--config): explained by defaults, flags and variables alone.\n";
    }
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
    explained += &explain(Arc::new(settings), head, body);
    Ok((true, printable::lines(&explained)))
}

/// The route of a request, the resource key that its token is checked for, and its treatment before
/// the token is compared with the mark: `fenced`, its token is checked; `observed`, it goes upstream
/// in any case; `passed` without a check; `refused`, with the status and the outcome as in metrics
/// and logs; `claim`, it goes nowhere. `body`: its whole body, if a key is taken from it.
fn explain(settings: Arc<Settings>, mut head: RequestHead, body: Option<&[u8]>) -> String {
    if settings.client_auth().is_some() {
        headers::strip_identity(&mut head.fields);
    }
    let table = RoutingTable::new(settings, &Metrics::new(&[]));
    let client = Client::at(None, 1);
    let mut route = None;
    let class = classify(&table, &head, &client, &mut route);
    let route = route.as_ref().map(|route| &route.settings);
    let (verdict, judged) = match class {
        Ok(Class::Fenced(fenced)) => ("fenced", subject(&fenced, &head, body)),
        Ok(Class::Observed(_, judged)) => {
            let judged = judged.and_then(|fenced| subject(&fenced, &head, body));
            ("observed", judged)
        }
        Ok(Class::Unlisted) => ("observed", Err(Refusal::NoRoute)),
        Err(refusal) => ("refused", Err(refusal)),
        Ok(Class::Pass { .. }) => ("passed without a check", Ok(None)),
        Ok(Class::Claim) => ("claim", Ok(None)),
    };
    let mut resource = None;
    let result = match judged {
        Ok(Some((key, token))) => {
            let result = format!("{verdict}: Token {token} is compared with the mark of {key}.");
            resource = Some(key);
            result
        }
        Ok(None) => {
            let reason = match (verdict, route.map(|route| route.mode)) {
                ("claim", _) => {
                    "It is a claim: it raises the mark, waits for older requests, and goes nowhere."
                }
                (_, None) => "No route matches, and such paths pass: they are not fenced.",
                (_, Some(Mode::Bypass)) => "Its route is in mode bypass: nothing is checked.",
                _ => "It is a read without a token, and those are not fenced (safe_methods).",
            };
            format!("{verdict}: {reason}")
        }
        Err(refusal) => {
            if matches!(refusal, Refusal::TokenRequired) && !head.fields.contains(TOKEN) {
                // With a token it has a key, which is what the caller wants to know.
                head.fields.insert(TOKEN, "1");
                let class = classify(&table, &head, &client, &mut None);
                if let Ok(Class::Fenced(fenced) | Class::Observed(_, Ok(fenced))) = class {
                    let subject = subject(&fenced, &head, body).ok().flatten();
                    resource = subject.map(|(key, _)| key);
                }
            }
            let status = refusal.status(table.style(false)).as_u16();
            let (outcome, why) = (refusal.outcome().as_str(), refusal.detail(None, true));
            if verdict == "observed" {
                let only = "Observed only; enforced, it would be refused";
                format!("observed, {status} {outcome}: {only}: {why}")
            } else {
                format!("refused, {status} {outcome}: {why}")
            }
        }
    };
    let route = route.map(|route| format!("{} ({})", route.path, route.mode.as_str()));
    let route = route.as_deref().unwrap_or("none");
    let key = resource.as_ref().map_or("-", ResourceKey::as_str);
    let (method, target) = (&head.method, head.target.as_str());
    format!("{method} {target}\n  route   {route}\n  key     {key}\n  result  {result}\n")
}

/// The key of a request that carries a token, and the token.
fn subject(
    fenced: &Fenced,
    head: &RequestHead,
    body: Option<&[u8]>,
) -> Result<Option<Subject>, Refusal> {
    Ok(Some((fenced.key(head, body)?, fenced.token)))
}
