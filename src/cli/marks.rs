//! `fencepost marks`: the admin API from a shell. It talks to a running proxy and never to the
//! store, so that an instance's memory and the store cannot drift apart.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{Arg, Args, Subcommand};
use reqwest::StatusCode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::admin::{AccessArgs, Admin, Refused};
use super::{print, read_input, shown, tables};
use crate::admin::api::{
    ActOutcome, Acted, ListQuery, MarkList, NewMark, PruneAnswer, PruneBody, Resolution, Why,
};
use crate::printable::{self, line};
use crate::progress::Progress;
use crate::routing::{ResourceKey, Token};

/// Longer than the store's timeouts by default, so that the answer arrives.
pub(super) const TIMEOUT: Duration = Duration::from_secs(35);

/// Show and correct the marks of a running proxy.
#[derive(Debug, Args)]
#[command(mut_args(|flag: Arg| flag.global(true)))]
pub struct MarksArgs {
    #[command(flatten)]
    access: AccessArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List marks, ordered by key
    List(ListQuery),
    /// Print all marks, a line of JSON each, for `import`
    Export {
        /// Only keys with this prefix
        #[arg(long, default_value = "")]
        prefix: String,
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
    #[command(mut_arg("reason", |reason| reason.required(false).default_value("")))]
    Prune(PruneBody),
    /// Show one mark: requests in flight and waiting, and the latest refusals
    Get {
        /// The resource key
        #[arg(value_parser = key)]
        resource: ResourceKey,
    },
    /// Raise a mark, as a request of a newer holder does
    #[command(mut_arg("reason", |reason| reason.required(false).default_value("")))]
    Advance(On<NewMark>),
    /// Lower a mark; refused while requests of the resource may be in flight
    Override(On<NewMark>),
    /// State that the outcome of a request is known, so that newer ones need not wait
    Resolve(On<Resolution>),
}

/// A resource, and the body of the request about it.
#[derive(Debug, Args)]
struct On<B: Args> {
    /// The resource key
    #[arg(value_parser = key)]
    resource: ResourceKey,
    #[command(flatten)]
    body: B,
}

pub(super) fn key(text: &str) -> Result<ResourceKey, String> {
    if text == "." || text == ".." {
        // URL libraries fold them away, escaped or not (RFC 3986, section 5.2.4; WHATWG URL).
        return Err(
            "a key of dots alone cannot be written in a URL; ask with `curl --path-as-is`".into(),
        );
    }
    ResourceKey::new(text)
}

/// Runs the command. Returns the text to print; an export is printed as it comes.
pub async fn run(args: MarksArgs) -> anyhow::Result<String> {
    let admin = args.access.connect(TIMEOUT)?;
    let json = args.access.json;
    let acted = match args.verb {
        Verb::List(page) => {
            let list = admin.get(&["v1", "marks"], &page).await?;
            return shown(json, &list, list_text);
        }
        Verb::Export { prefix } => return export(&admin, prefix).await,
        Verb::Import { file, why } => {
            let (raised, kept) = import(&admin, &file, &why).await?;
            return shown(json, &json!({ "raised": raised, "kept": kept }), |_| {
                format!("{raised} marks were raised, {kept} were as high or higher\n")
            });
        }
        Verb::Prune(step) => {
            let dry_run = step.dry_run;
            let (deleted, open) = prune(&admin, step).await?;
            let sum = json!({ "deleted": deleted, "open": open, "dry_run": dry_run });
            return shown(json, &sum, |_| {
                let what = if dry_run { "would be" } else { "were" };
                format!("{deleted} marks {what} deleted, {open} are in use\n")
            });
        }
        Verb::Get { resource } => {
            let path = ["v1", "marks", resource.as_str()];
            return shown(json, &admin.get(&path, &()).await?, tables::mark);
        }
        Verb::Advance(new) => act(&admin, "advance", &new).await?,
        Verb::Override(new) => act(&admin, "override", &new).await?,
        Verb::Resolve(known) => act(&admin, "resolve", &known).await?,
    };
    shown(json, &acted, acted_text)
}

/// Changes one mark.
async fn act<B>(admin: &Admin, verb: &str, on: &On<B>) -> anyhow::Result<Acted>
where
    B: Args + Serialize,
{
    let path = ["v1", "marks", on.resource.as_str(), verb];
    admin.post(&path, &on.body).await
}

/// `marks list`.
fn list_text(answer: &MarkList) -> String {
    if answer.marks.is_empty() {
        return "no marks\n".to_owned();
    }
    let mut out = tables::section("", "resource mark since spent", &answer.marks);
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

/// Prints each mark as a line of JSON, as the admin API lists it.
async fn export(admin: &Admin, prefix: String) -> anyhow::Result<String> {
    let mut page = ListQuery {
        prefix,
        after: None,
        limit: Some(1000),
    };
    let progress = Progress::start("exporting marks", None)?;
    let mut exported = 0;
    loop {
        let list = progress.or_interrupted(admin.get(&["v1", "marks"], &page));
        let list: Option<MarkList> = list.await.transpose()?;
        let Some(list) = list else {
            // `import` refuses this line, and so the file.
            print(&format!("{}\n", json!({ "partial": exported })))?;
            bail!("interrupted: the export is partial, with {exported} marks; run it again");
        };
        let mut lines = String::new();
        for mark in &list.marks {
            lines += &printable::json(&serde_json::to_string(mark)?);
            lines.push('\n');
        }
        let is_open = progress.bar.suspend(|| print(&lines))?;
        exported += list.marks.len();
        progress.add(list.marks.len() as u64);
        page.after = list.next;
        if page.after.is_none() || !is_open {
            return Ok(String::new());
        }
    }
}

/// Takes every step of a prune. Returns how many marks were deleted, and how many have requests
/// that may be in flight.
async fn prune(admin: &Admin, mut step: PruneBody) -> anyhow::Result<(u64, u64)> {
    let progress = Progress::start("pruning marks", None)?;
    let mut sum = (0, 0);
    loop {
        let answer = admin.post(&["v1", "prune"], &step).await;
        let answer = answer.map_err(|error: anyhow::Error| match sum.0 {
            0 => error,
            gone => error.context(format!(
                "{gone} marks were deleted before; run it again to go on"
            )),
        });
        match answer? {
            PruneAnswer::Announced {
                again_in_seconds: seconds,
                ..
            } => {
                progress.bar.suspend(|| {
                    eprintln!("announced to the other instances: waiting for {seconds} s");
                });
                let wait = tokio::time::sleep(Duration::from_secs(seconds));
                progress.or_interrupted(wait).await;
            }
            PruneAnswer::Step {
                deleted,
                open,
                next,
                ..
            } => {
                sum = (sum.0 + deleted, sum.1 + open);
                progress.add(deleted);
                if next.is_none() {
                    return Ok(sum);
                }
                step.after = next;
            }
        }
        ensure!(
            !progress.interrupted(),
            "interrupted between two steps: {} marks were deleted before; run it again to go on",
            if step.dry_run { 0 } else { sum.0 }
        );
    }
}

/// The members of a line of an export, of which an import needs three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedMark {
    resource: ResourceKey,
    mark: Token,
    /// The token of the mark may not be used again (`reuse: once`).
    #[serde(default)]
    spent: bool,
    #[serde(default, rename = "since")]
    _since: IgnoredAny,
    #[serde(default, rename = "era")]
    _era: IgnoredAny,
}

/// Raises each mark to the one in the file; none is lowered. All lines are read before the first
/// mark is raised, so that a file that was cut changes nothing. Returns how many marks were raised,
/// and how many were as high already, or higher.
async fn import(admin: &Admin, file: &Path, why: &Why) -> anyhow::Result<(u64, u64)> {
    let file_name = file.display();
    let lines = read_input(file).with_context(|| file_name.to_string())?;
    let mut marks = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        let at = format!("{file_name}:{}", index + 1);
        if !line.trim().is_empty() {
            let mark = new_mark(line, why).with_context(|| at.clone())?;
            marks.push((at, mark));
        }
    }
    let (mut raised, mut kept) = (0, 0);
    let progress = Progress::start("importing marks", Some(marks.len() as u64))?;
    for (at, mark) in marks {
        let acted = if progress.interrupted() {
            Err(anyhow!("interrupted"))
        } else {
            act(admin, "advance", &mark).await
        };
        match acted.map(|acted| acted.outcome) {
            Ok(ActOutcome::Advanced { .. }) => raised += 1,
            Ok(_) => kept += 1,
            Err(error) if is_stale(&error) => kept += 1,
            Err(error) => {
                return Err(error.context(format!(
                    "{at}: {raised} marks were raised before, {kept} were as high; run it again \
                     to go on"
                )));
            }
        }
        progress.add(1);
    }
    Ok((raised, kept))
}

fn is_stale(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|refused| refused.status == StatusCode::PRECONDITION_FAILED)
}

fn new_mark(line: &str, why: &Why) -> anyhow::Result<On<NewMark>> {
    let mark: ExportedMark = serde_json::from_str(line).context("not a line of `marks export`")?;
    // A spent token may not be used again. A mark above it says the same.
    let above = mark.mark.get().checked_add(mark.spent.into());
    let number = above.and_then(Token::new);
    Ok(On {
        resource: key(mark.resource.as_str()).map_err(anyhow::Error::msg)?,
        body: NewMark {
            token: number.context("no token is above a spent mark of 2^63-1")?,
            why: why.clone(),
        },
    })
}
