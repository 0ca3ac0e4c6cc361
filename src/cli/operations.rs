//! `fencepost operations`: the operations whose outcome is not known, through the admin port.

use clap::{Arg, Args, Subcommand};

use super::admin::AccessArgs;
use super::marks::{TIMEOUT, key};
use super::{shown, tables};
use crate::admin::api::{OperationList, OperationQuery, OperationVerdict, ResolvedOperation, Why};
use crate::printable::line;
use crate::routing::ResourceKey;

/// List operations whose outcome is unknown, and record what came of them.
#[derive(Debug, Args)]
#[command(mut_args(|flag: Arg| flag.global(true)))]
pub struct OperationsArgs {
    #[command(flatten)]
    access: AccessArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List operations whose outcome is not known, ordered by key
    List(OperationQuery),
    /// Record whether an operation took effect, so that its repetitions are answered or sent
    Resolve(Resolution),
}

#[derive(Debug, Args)]
struct Resolution {
    /// The resource key
    #[arg(value_parser = key)]
    resource: ResourceKey,
    /// The operation, as X-Fencing-Operation names it
    operation: String,
    /// It took effect: its repetitions get this status, without a body [default: 200]
    #[arg(long, value_name = "STATUS", num_args = 0..=1, require_equals = true, default_missing_value = "200")]
    done: Option<u16>,
    /// It did not take effect: the next request sends it
    #[arg(long, conflicts_with = "done", required_unless_present = "done")]
    not_done: bool,
    #[command(flatten)]
    why: Why,
}

/// Runs the command. Returns the text to print.
pub async fn run(args: OperationsArgs) -> anyhow::Result<String> {
    let admin = args.access.connect(TIMEOUT)?;
    let json = args.access.json;
    match args.verb {
        Verb::List(page) => {
            let list = admin.get(&["v1", "operations"], &page).await?;
            shown(json, &list, list_text)
        }
        Verb::Resolve(resolution) => {
            let body = OperationVerdict {
                resource: resolution.resource,
                operation: resolution.operation,
                done: !resolution.not_done,
                status: resolution.done,
                why: resolution.why,
            };
            let path = ["v1", "operations", "resolve"];
            shown(json, &admin.post(&path, &body).await?, resolved_text)
        }
    }
}

fn list_text(answer: &OperationList) -> String {
    if answer.operations.is_empty() {
        return "no operation has an unknown outcome\n".to_owned();
    }
    let columns = "resource operation token instance settled since";
    let mut out = tables::section("", columns, &answer.operations);
    if answer.more {
        out += "There are more: --limit, or --prefix\n";
    }
    out
}

fn resolved_text(answer: &ResolvedOperation) -> String {
    let (resource, operation) = (line(answer.resource.as_str()), line(&answer.operation));
    let outcome = match answer.status {
        Some(status) => format!("its repetitions get {status}"),
        None => "the next request sends it".to_owned(),
    };
    format!("{resource}, {operation}: {outcome}\n")
}
