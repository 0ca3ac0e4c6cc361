//! `fencepost marks`: the admin API from a shell. It talks to a running proxy and never to the
//! store, so that an instance's memory and the store cannot drift apart.

mod bulk;
mod render;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::admin::{Admin, AdminArgs, read_token};
use crate::printable;
use crate::routing::{ResourceKey, Token, TokenError, TokenFormat};

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
    admin: AdminArgs,
    #[arg(
        help = "File with the token of admin.token_file, for writes. Reads from outside the \
                proxy's loopback need it too, or the token of admin.read_token_file",
        long,
        global = true,
        value_name = "FILE",
        env = "FENCEPOST_ADMIN_TOKEN_FILE"
    )]
    token_file: Option<PathBuf>,
    /// Print the JSON of the admin API
    #[arg(long, global = true)]
    json: bool,
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
    Advance {
        /// The resource key
        #[arg(value_parser = key)]
        resource: ResourceKey,
        /// The new mark
        #[arg(value_parser = token)]
        token: Token,
        /// Reason, for the audit table
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        who: Who,
    },
    /// Lower a mark; refused while requests of the resource may be in flight
    Override {
        /// The resource key
        #[arg(value_parser = key)]
        resource: ResourceKey,
        /// The new mark
        #[arg(value_parser = token)]
        token: Token,
        /// Reason, for the audit table
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        who: Who,
    },
    /// State that the outcome of a request is known, so that newer ones need not wait
    Resolve {
        /// The resource key
        #[arg(value_parser = key)]
        resource: ResourceKey,
        /// Id of the unknown outcome, from `get`
        id: String,
        /// Evidence, for the audit table
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        who: Who,
    },
}

#[derive(Debug, Args)]
struct Who {
    /// Your name, for the audit table
    #[arg(long, env = "USER", default_value = "")]
    actor: String,
}

fn token(text: &str) -> Result<Token, TokenError> {
    TokenFormat::Decimal.parse(text.as_bytes())
}

fn key(text: &str) -> Result<ResourceKey, String> {
    if text == "." || text == ".." {
        // URL libraries fold them away, escaped or not (RFC 3986, section 5.2.4; WHATWG URL).
        return Err(
            "a key of dots alone cannot be written in a URL; ask with `curl --path-as-is`".into(),
        );
    }
    ResourceKey::new(text).map_err(|error| error.to_string())
}

const MARKS: &str = "/v1/marks";

const NEEDS_TOKEN: &str = "a write needs --token-file (or FENCEPOST_ADMIN_TOKEN_FILE): the file that the proxy's \
     admin.token_file names";

/// Runs the command and prints to the standard output.
pub async fn run(args: MarksArgs) -> anyhow::Result<()> {
    super::print(&answer(&args).await?)
}

/// The text to print.
async fn answer(args: &MarksArgs) -> anyhow::Result<String> {
    let admin = args.admin.connect(TIMEOUT)?;
    let (request, render): (_, fn(&Value) -> String) = match &args.verb {
        Verb::List {
            prefix,
            after,
            limit,
        } => {
            let mut query = vec![("prefix", prefix.clone()), ("limit", limit.to_string())];
            query.extend(after.clone().map(|after| ("after", after)));
            let request = admin.request(Method::GET, MARKS)?.query(&query);
            (read(args, request)?, render::list)
        }
        Verb::Bulk(verb) => return bulk::answer(args, &admin, verb).await,
        Verb::Get { resource } => {
            let request = admin.request(Method::GET, &format!("{MARKS}/{}", escaped(resource)))?;
            (read(args, request)?, render::view)
        }
        Verb::Advance {
            resource,
            token,
            reason,
            who,
        } => {
            let body = json!({ "token": token.to_string(), "reason": reason, "actor": who.actor });
            (
                write(args, &admin, resource, "advance", &body)?,
                render::advanced,
            )
        }
        Verb::Override {
            resource,
            token,
            reason,
            who,
        } => {
            let body = json!({ "token": token.to_string(), "reason": reason, "actor": who.actor });
            (
                write(args, &admin, resource, "override", &body)?,
                render::overridden,
            )
        }
        Verb::Resolve {
            resource,
            id,
            reason,
            who,
        } => {
            let body = json!({ "id": id, "reason": reason, "actor": who.actor });
            (
                write(args, &admin, resource, "resolve", &body)?,
                render::resolved,
            )
        }
    };
    let text = admin.send(request).await?;
    if args.json {
        return Ok(format!("{}\n", printable::json(&text)));
    }
    let value = serde_json::from_str(&text).with_context(|| admin.not_fencepost())?;
    Ok(render(&value))
}

/// A read, with the token where one is given.
fn read(args: &MarksArgs, request: RequestBuilder) -> anyhow::Result<RequestBuilder> {
    Ok(match &args.token_file {
        Some(file) => request.bearer_auth(read_token(file)?),
        None => request,
    })
}

/// A write, with the token.
fn write(
    args: &MarksArgs,
    admin: &Admin,
    resource: &ResourceKey,
    verb: &str,
    body: &Value,
) -> anyhow::Result<RequestBuilder> {
    let file = args.token_file.as_deref().context(NEEDS_TOKEN)?;
    let request = admin.request(
        Method::POST,
        &format!("{MARKS}/{}/{verb}", escaped(resource)),
    )?;
    Ok(request.bearer_auth(read_token(file)?).json(body))
}

fn escaped(resource: &ResourceKey) -> String {
    utf8_percent_encode(resource.as_str(), SEGMENT).to_string()
}
