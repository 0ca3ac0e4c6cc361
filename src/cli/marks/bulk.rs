//! `marks export`, `import` and `prune`: many marks at once.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use reqwest::{RequestBuilder, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{MarksArgs, Why, change, key, list};
use crate::admin::api::{ActOutcome, Acted, MarkList, PruneAnswer, PruneBody};
use crate::cli::admin::Admin;
use crate::json_values::rfc3339_ms;
use crate::printable;
use crate::routing::{ResourceKey, Token};

/// As many marks as the admin port lists at once.
const PAGE: u32 = 1000;

/// A line of an export.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct ExportedMark {
    resource: ResourceKey,
    mark: Token,
    /// The token of the mark may not be used again (`reuse: once`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    spent: bool,
    /// The moment of its last rise. An import does not need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum BulkVerb {
    /// Print all marks, a line of JSON each, for `import`
    Export {
        /// Only keys with this prefix
        #[arg(long, default_value = "")]
        prefix: String,
        /// The file to write, which must not exist [default: the standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Raise marks to those of an export; none is lowered, and each rise is audited
    Import {
        /// The file of `export`; -: the standard input
        file: PathBuf,
        #[command(flatten)]
        why: Why,
    },
    /// Delete marks that have not changed for long: without its mark, a resource accepts any token,
    /// also that of a holder that was away for so long
    Prune {
        /// Only marks that have not changed for this long: 720h; at least 1h, and longer than any
        /// holder of a token can be away
        #[arg(long, value_name = "TIME")]
        unchanged_for: String,
        /// Only keys with this prefix
        #[arg(long, default_value = "")]
        prefix: String,
        /// Only count them
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        why: Why,
    },
}

/// Does it. Returns the text to print; an export to the standard output is written as it comes.
pub(super) async fn answer(
    args: &MarksArgs,
    admin: &Admin,
    verb: &BulkVerb,
) -> anyhow::Result<String> {
    let (json, text) = match verb {
        BulkVerb::Export { prefix, output } => {
            return export_to(admin, prefix, output.as_deref()).await;
        }
        BulkVerb::Prune {
            unchanged_for,
            prefix,
            dry_run,
            why,
        } => {
            let step = PruneBody {
                unchanged_for: unchanged_for.clone(),
                prefix: prefix.clone(),
                after: None,
                dry_run: *dry_run,
                reason: why.reason.clone(),
                actor: why.actor.clone(),
            };
            let (deleted, open) = prune(admin, step).await?;
            let what = if *dry_run { "would be" } else { "were" };
            (
                json!({ "deleted": deleted, "open": open, "dry_run": dry_run }),
                format!("{deleted} marks {what} deleted, {open} are in use"),
            )
        }
        BulkVerb::Import { file, why } => {
            let at = file.display().to_string();
            let lines = if file.as_os_str() == "-" {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(file)
            };
            let lines = lines.with_context(|| at.clone())?;
            let Imported { raised, kept } = import(admin, &lines, &at, why).await?;
            (
                json!({ "raised": raised, "kept": kept }),
                format!("{raised} marks were raised, {kept} were as high or higher"),
            )
        }
    };
    let json = args.access.json.then(|| json.to_string());
    Ok(json.unwrap_or(text) + "\n")
}

/// Exports to a new file, or to the standard output, which may be closed (`| head`).
async fn export_to(admin: &Admin, prefix: &str, file: Option<&Path>) -> anyhow::Result<String> {
    if let Some(path) = file {
        let at = || format!("--output {}", path.display());
        let file = File::create_new(path).with_context(at)?;
        export(admin, prefix, &file).await?;
        file.sync_all().with_context(at)?;
    } else if let Err(error) = export(admin, prefix, std::io::stdout().lock()).await
        && !is_closed_pipe(&error)
    {
        return Err(error);
    }
    Ok(String::new())
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes each mark as a line of JSON.
async fn export(admin: &Admin, prefix: &str, mut out: impl Write) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let request = list(admin, prefix, after.as_deref(), PAGE)?;
        let page: MarkList = admin.read(&admin.send(request).await?)?;
        let mut lines = String::new();
        for mark in page.marks {
            let line = ExportedMark {
                resource: mark.resource,
                mark: mark.token,
                spent: mark.spent,
                since: Some(rfc3339_ms(mark.since_ms)),
            };
            let line = serde_json::to_string(&line).context("it can be written as JSON")?;
            lines += &printable::json(&line);
            lines.push('\n');
        }
        let written = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
        written.context("cannot write the export")?;
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Takes every step of a prune. Returns how many marks were deleted, and how many have requests
/// that may be in flight.
async fn prune(admin: &Admin, mut step: PruneBody) -> anyhow::Result<(u64, u64)> {
    let mut sum = (0, 0);
    loop {
        let request = admin.write("/v1/prune", &step)?;
        let text = admin.send(request).await.with_context(|| {
            format!("{} marks were deleted before; run it again to go on", sum.0)
        })?;
        match admin.read(&text)? {
            PruneAnswer::Announced {
                again_in_seconds: seconds,
                ..
            } => {
                eprintln!("announced to the other instances: waiting for {seconds} s");
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            PruneAnswer::Step {
                deleted,
                open,
                next,
                ..
            } => {
                sum = (sum.0 + deleted, sum.1 + open);
                if next.is_none() {
                    return Ok(sum);
                }
                step.after = next;
            }
        }
    }
}

/// The result of an import.
#[derive(Clone, Copy, Debug, Default)]
struct Imported {
    raised: u64,
    /// Marks that were as high already, or higher.
    kept: u64,
}

/// Raises each mark to the one in the lines; none is lowered. All lines are read before the first
/// mark is raised, so that a file that was cut changes nothing.
async fn import(admin: &Admin, lines: &str, file: &str, why: &Why) -> anyhow::Result<Imported> {
    let mut marks = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        let at = format!("{file}:{}", index + 1);
        if !line.trim().is_empty() {
            let mark = mark_of(line).with_context(|| at.clone())?;
            marks.push((at, mark));
        }
    }
    let mut done = Imported::default();
    for (at, (resource, mark)) in marks {
        let request = change(admin, &resource, "advance", &why.body(Some(mark), None))?;
        let raised = raise(admin, request).await.with_context(|| {
            let Imported { raised, kept } = done;
            format!(
                "{at}: {raised} marks were raised before, {kept} were as high; run it again to go on"
            )
        })?;
        done.raised += u64::from(raised);
        done.kept += u64::from(!raised);
    }
    Ok(done)
}

/// True if the mark was raised; false if it was as high.
async fn raise(admin: &Admin, request: RequestBuilder) -> anyhow::Result<bool> {
    let (status, text) = admin.ask(request).await?;
    if status == StatusCode::PRECONDITION_FAILED {
        return Ok(false);
    }
    let acted: Acted = admin.read(&admin.accepted(status, text)?)?;
    Ok(matches!(acted.outcome, ActOutcome::Advanced { .. }))
}

fn mark_of(line: &str) -> anyhow::Result<(ResourceKey, Token)> {
    let mark: ExportedMark = serde_json::from_str(line).context("not a line of `marks export`")?;
    let resource = key(mark.resource.as_str()).map_err(anyhow::Error::msg)?;
    // A spent token may not be used again. A mark above it says the same.
    let above = mark.mark.get().checked_add(mark.spent.into());
    let number = above.and_then(Token::new);
    let number = number.context("no token is above a spent mark of 2^63-1")?;
    Ok((resource, number))
}
