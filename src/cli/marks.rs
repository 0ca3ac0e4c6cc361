//! `fencepost marks`: the admin API from a shell. It talks to a running proxy and never to the
//! store, so that an instance's memory and the store cannot drift apart.

mod bulk;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder};
use serde::de::DeserializeOwned;

use super::admin::{AccessArgs, Admin};
use super::tables;
use crate::admin::api::{ActBody, ActOutcome, Acted, MarkList};
use crate::printable::{self, line};
use crate::routing::{ResourceKey, Token, TokenFormat};

/// Longer than the admin port's own timeout, so that its answer arrives.
const TIMEOUT: Duration = Duration::from_secs(35);

/// The characters that are not escaped in a path segment, besides letters and digits.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b':');

/// Show and correct the marks of a running proxy.
#[derive(Debug, Args)]
pub struct MarksArgs {
    #[command(flatten)]
    access: AccessArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List marks, ordered by key
    List {
        /// Only keys with this prefix
        #[arg(long, default_value = "")]
        prefix: String,
        /// Only keys after this one: the next page
        #[arg(long)]
        after: Option<String>,
        /// Maximum number of marks
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    #[command(flatten)]
    Bulk(bulk::BulkVerb),
    /// Show one mark: requests in flight and waiting, and the latest refusals
    Get {
        /// The resource key
        #[arg(value_parser = key)]
        resource: ResourceKey,
    },
    /// Raise a mark, as a request of a newer holder does
    #[command(mut_arg("reason", |reason| reason.required(false).default_value("")))]
    Advance(NewMark),
    /// Lower a mark; refused while requests of the resource may be in flight
    Override(NewMark),
    /// State that the outcome of a request is known, so that newer ones need not wait
    Resolve {
        /// The resource key
        #[arg(value_parser = key)]
        resource: ResourceKey,
        /// Id of the unknown outcome, from `get`
        id: String,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, Args)]
struct NewMark {
    /// The resource key
    #[arg(value_parser = key)]
    resource: ResourceKey,
    /// The new mark
    #[arg(value_parser = token)]
    token: Token,
    #[command(flatten)]
    why: Why,
}

impl NewMark {
    fn body(&self) -> ActBody {
        self.why.body(Some(self.token), None)
    }
}

/// For the audit table.
#[derive(Clone, Debug, Args)]
struct Why {
    /// Reason or evidence, for the audit table
    #[arg(long)]
    reason: String,
    /// Your name, for the audit table
    #[arg(long, env = "USER", default_value = "")]
    actor: String,
}

impl Why {
    fn body(&self, token: Option<Token>, id: Option<String>) -> ActBody {
        ActBody {
            token,
            id,
            reason: self.reason.clone(),
            actor: self.actor.clone(),
        }
    }
}

fn token(text: &str) -> Result<Token, String> {
    TokenFormat::Decimal.parse(text.as_bytes())
}

fn key(text: &str) -> Result<ResourceKey, String> {
    if text == "." || text == ".." {
        // URL libraries fold them away, escaped or not (RFC 3986, section 5.2.4; WHATWG URL).
        return Err(
            "a key of dots alone cannot be written in a URL; ask with `curl --path-as-is`".into(),
        );
    }
    ResourceKey::new(text)
}

const MARKS: &str = "/v1/marks";

/// Runs the command and prints to the standard output.
pub async fn run(args: MarksArgs) -> anyhow::Result<()> {
    super::print(&answer(&args).await?)
}

/// The text to print.
async fn answer(args: &MarksArgs) -> anyhow::Result<String> {
    let admin = args.access.connect(TIMEOUT)?;
    let act = async |resource: &ResourceKey, verb, body| {
        let request = change(&admin, resource, verb, &body)?;
        shown(args, &admin, request, acted_text).await
    };
    match &args.verb {
        Verb::List {
            prefix,
            after,
            limit,
        } => {
            let request = list(&admin, prefix, after.as_deref(), *limit)?;
            shown(args, &admin, request, list_text).await
        }
        Verb::Bulk(verb) => bulk::answer(args, &admin, verb).await,
        Verb::Get { resource } => {
            let request = admin.request(Method::GET, &format!("{MARKS}/{}", escaped(resource)))?;
            shown(args, &admin, request, tables::mark).await
        }
        Verb::Advance(new) => act(&new.resource, "advance", new.body()).await,
        Verb::Override(new) => act(&new.resource, "override", new.body()).await,
        Verb::Resolve { resource, id, why } => {
            act(resource, "resolve", why.body(None, Some(id.clone()))).await
        }
    }
}

/// The answer to a request as it was asked for: as text, or as the JSON that has come.
async fn shown<T: DeserializeOwned>(
    args: &MarksArgs,
    admin: &Admin,
    request: RequestBuilder,
    render: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    let text = admin.send(request).await?;
    if args.access.json {
        return Ok(format!("{}\n", printable::json(&text)));
    }
    Ok(render(&admin.read(&text)?))
}

/// Asks for a page of the marks.
fn list(
    admin: &Admin,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> anyhow::Result<RequestBuilder> {
    let request = admin.request(Method::GET, MARKS)?;
    let request = request.query(&[("prefix", prefix), ("limit", &limit.to_string())]);
    Ok(request.query(&[("after", after)]))
}

/// Asks for a change of one mark.
fn change(
    admin: &Admin,
    resource: &ResourceKey,
    verb: &str,
    body: &ActBody,
) -> anyhow::Result<RequestBuilder> {
    admin.write(&format!("{MARKS}/{}/{verb}", escaped(resource)), body)
}

fn escaped(resource: &ResourceKey) -> String {
    utf8_percent_encode(resource.as_str(), SEGMENT).to_string()
}

/// `marks list`.
fn list_text(answer: &MarkList) -> String {
    if answer.marks.is_empty() {
        return "no marks\n".to_owned();
    }
    let mut out = tables::marks(answer);
    if let Some(next) = &answer.next {
        let next = line(next).replace('\'', "'\\''");
        let _ = writeln!(out, "There are more: --after '{next}'");
    }
    out
}

/// `marks advance`, `override` and `resolve`.
fn acted_text(answer: &Acted) -> String {
    let outcome = match &answer.outcome {
        ActOutcome::Advanced { mark } => format!("the mark is {mark} now"),
        ActOutcome::Current { mark } => format!("the mark was {mark} already"),
        ActOutcome::Overridden { before, mark, era } => {
            format!("the mark was {before} and is {mark} now, in era {era}")
        }
        ActOutcome::Resolved { id } => format!("{} no longer counts as in flight", line(id)),
    };
    format!("{}: {outcome}\n", line(answer.resource.as_str()))
}
