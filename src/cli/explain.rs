//! `fencepost explain`: which route takes a request, by which key, and why.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use http::{HeaderName, HeaderValue, Method, Uri, Version};

use super::arguments::{field, path_and_query};
use super::overrides::ConfigArgs;
use crate::config::Settings;
use crate::http1::Fields;
use crate::http1::names::HOST;
use crate::http1::{RequestHead, Target};
use crate::printable;
use crate::proxy::explain::{self, Explanation, PathVerdict};

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
    pub(super) configuration: ConfigArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Explains the request by this configuration, and prints.
pub(super) fn run(args: &ExplainArgs, settings: Settings) -> anyhow::Result<()> {
    write!(std::io::stdout(), "{}", explained(args, settings)?)?;
    Ok(())
}

/// The text to print.
fn explained(args: &ExplainArgs, settings: Settings) -> anyhow::Result<String> {
    let mut fields = Fields::default();
    for (name, value) in &args.headers {
        fields.append(name.as_str(), value);
    }
    if !fields.contains(HOST) {
        fields.append(HOST, "localhost");
    }
    let target = Target::parse(args.target.to_string().as_bytes(), None);
    let target = target.context("TARGET is not a path with its query")?;
    let head = RequestHead::new(args.method.clone(), target, Version::HTTP_11, fields);
    let body = args.data.as_deref().map(str::as_bytes);
    let explained = explain::explain(Arc::new(settings), head, body);
    if args.json {
        let json = serde_json::to_string_pretty(&explained).context("it can be written as JSON")?;
        return Ok(format!("{}\n", printable::json(&json)));
    }
    Ok(printable::lines(&text(&explained)) + "\n")
}

fn text(explained: &Explanation) -> String {
    let mut out = format!("{} {}\n", explained.method, explained.target);
    let _ = writeln!(out, "  route   {}", route(explained));
    let _ = writeln!(
        out,
        "  key     {}",
        explained.resource.as_deref().unwrap_or("-")
    );
    let _ = write!(out, "  result  {}", result(explained));
    out
}

fn route(explained: &Explanation) -> String {
    match (&explained.route, explained.mode) {
        (Some(route), Some(mode)) => format!("{route} ({})", mode.as_str()),
        _ => "none".to_owned(),
    }
}

fn result(explained: &Explanation) -> String {
    let what = match explained.verdict {
        PathVerdict::Fenced => "fenced",
        PathVerdict::Observed => "observed",
        PathVerdict::Passed => "passed without a check",
        PathVerdict::Refused => "refused",
        PathVerdict::Claim => "claim",
    };
    let code = match (explained.status, explained.outcome) {
        (Some(status), Some(outcome)) => format!(", {status} {outcome}"),
        _ => String::new(),
    };
    format!("{what}{code}: {}", explained.reason)
}
