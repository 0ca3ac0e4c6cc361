//! `marks export`, `import` and `prune`: many marks at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use reqwest::{RequestBuilder, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{MarksArgs, Why, change, key, list, write};
use crate::admin::api::{Acted, Advance, MarkList, PruneAnswer, PruneBody};
use crate::cli::admin::Admin;
use crate::json_values::rfc3339_ms;
use crate::printable;
use crate::routing::{ResourceKey, Token};

/// As many marks as the admin port lists at once.
const PAGE: u32 = 1000;

/// How many marks are raised at the same time. The store commits them together. It is half of what
/// the admin port handles at once, so that others are served meanwhile.
const AT_ONCE: usize = 8;

/// How often a mark is tried again at a port that has no room, and how long after.
const NO_ROOM: (u32, Duration) = (40, Duration::from_millis(250));

/// A line of an export.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct ExportedMark {
    resource: ResourceKey,
    mark: Token,
    /// The token of the mark may not be used again (`reuse: once`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    spent: bool,
    /// When it became the mark. An import does not need it.
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
    #[command(
        about = "Delete marks that have not changed for long: without its mark, a resource accepts \
                 any token, also that of a holder that was away for so long"
    )]
    Prune {
        #[arg(
            help = "Only marks that have not changed for this long: 720h; at least 1h, and longer than \
                    any holder of a token can be away",
            long,
            value_name = "TIME"
        )]
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
    Ok(match verb {
        BulkVerb::Export { prefix, output } => {
            match output {
                None => {
                    let mut out = std::io::stdout().lock();
                    let done = export(admin, prefix, &mut out).await;
                    match done {
                        // `| head`.
                        Err(error) if is_closed_pipe(&error) => {}
                        done => drop(done?),
                    }
                }
                Some(path) => {
                    let told = || format!("--output {}", path.display());
                    let file = File::create_new(path).with_context(told)?;
                    let mut out = BufWriter::new(&file);
                    export(admin, prefix, &mut out).await?;
                    drop(out);
                    file.sync_all().with_context(told)?;
                }
            }
            String::new()
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
            let (deleted, open) = prune(args, admin, step).await?;
            if args.access.json {
                let told = json!({ "deleted": deleted, "open": open, "dry_run": dry_run });
                format!("{told}\n")
            } else {
                let what = if *dry_run { "would be" } else { "were" };
                format!("{deleted} marks {what} deleted, {open} are in use\n")
            }
        }
        BulkVerb::Import { file, why } => {
            let done = if file.as_os_str() == "-" {
                import(args, admin, std::io::stdin().lock(), file, why).await?
            } else {
                let opened = File::open(file).with_context(|| file.display().to_string())?;
                import(args, admin, BufReader::new(opened), file, why).await?
            };
            if args.access.json {
                let told = json!({ "raised": done.raised, "kept": done.kept });
                format!("{told}\n")
            } else {
                format!(
                    "{} marks were raised, {} were as high or higher\n",
                    done.raised, done.kept
                )
            }
        }
    })
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes each mark as a line of JSON.
async fn export(admin: &Admin, prefix: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let request = list(admin, prefix, after.as_deref(), PAGE)?;
        let page: MarkList = admin.read(&admin.send(request).await?)?;
        for mark in page.marks {
            let line = ExportedMark {
                resource: mark.resource,
                mark: mark.token,
                spent: mark.spent,
                since: Some(rfc3339_ms(mark.since_ms)),
            };
            let line = serde_json::to_string(&line).context("it can be written as JSON")?;
            writeln!(out, "{}", printable::json(&line)).context("cannot write the export")?;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    out.flush().context("cannot write the export")
}

/// Takes every step of a prune. Returns how many marks were deleted, and how many have requests that
/// may be in flight.
async fn prune(args: &MarksArgs, admin: &Admin, mut step: PruneBody) -> anyhow::Result<(u64, u64)> {
    let mut sum = (0, 0);
    loop {
        let request = write(args, admin, "/v1/prune", &step)?;
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

/// What an import did.
#[derive(Debug, Default)]
struct Imported {
    raised: u64,
    /// Marks that were as high already, or higher.
    kept: u64,
}

/// Raises each mark to the one in the lines; none is lowered. All lines are read before the first
/// mark is raised, so that a file that was cut changes nothing.
async fn import(
    args: &MarksArgs,
    admin: &Admin,
    lines: impl BufRead,
    file: &Path,
    why: &Why,
) -> anyhow::Result<Imported> {
    let told = |line: usize| format!("{}:{line}", file.display());
    let mut marks = VecDeque::new();
    for (index, line) in lines.lines().enumerate() {
        let line = line.with_context(|| told(index + 1))?;
        if line.trim().is_empty() {
            continue;
        }
        let mark = mark_of(&line).with_context(|| told(index + 1))?;
        marks.push_back((index + 1, mark));
    }
    let mut done = Imported::default();
    let mut under_way = FuturesOrdered::new();
    loop {
        while under_way.len() < AT_ONCE
            && let Some((line, (resource, mark))) = marks.pop_front()
        {
            let body = why.body(Some(mark), None);
            let request = change(args, admin, &resource, "advance", &body)?;
            under_way.push_back(async move { (line, raise(admin, request).await) });
        }
        let Some((line, raised)) = under_way.next().await else {
            return Ok(done);
        };
        let raised = raised.with_context(|| {
            format!(
                "{}: {} marks were raised before, {} were as high; run it again to go on",
                told(line),
                done.raised,
                done.kept
            )
        })?;
        if raised {
            done.raised += 1;
        } else {
            done.kept += 1;
        }
    }
}

/// True if the mark was raised; false if it was as high.
async fn raise(admin: &Admin, request: RequestBuilder) -> anyhow::Result<bool> {
    let (tries, pause) = NO_ROOM;
    for _ in 0..tries {
        let again = request.try_clone().context("a request without a stream")?;
        let (status, text) = admin.ask(again).await?;
        match status {
            StatusCode::PRECONDITION_FAILED => return Ok(false),
            StatusCode::SERVICE_UNAVAILABLE => tokio::time::sleep(pause).await,
            _ => {
                let outcome = admin.read(&admin.accepted(status, text)?)?;
                let raised = Advance::Advanced;
                return Ok(matches!(outcome, Acted::Advanced { outcome, .. } if outcome == raised));
            }
        }
    }
    admin.send(request).await?;
    Ok(true)
}

fn mark_of(line: &str) -> anyhow::Result<(ResourceKey, Token)> {
    let mark: ExportedMark = serde_json::from_str(line).context("not a line of `marks export`")?;
    let resource = key(mark.resource.as_str()).map_err(anyhow::Error::msg)?;
    let number = mark.mark;
    // A spent token may not be used again. A mark above it says the same.
    let number = if mark.spent {
        number.get().checked_add(1)
    } else {
        Some(number.get())
    };
    let number = number.and_then(Token::new);
    Ok((
        resource,
        number.context("no token is above a spent mark of 2^63-1")?,
    ))
}
