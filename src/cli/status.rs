//! `fencepost status`: how one instance is doing, and what is stuck there, as tables.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::admin::{Admin, AdminArgs, read_token};
use super::tables::{columns, items, section, text};
use crate::printable;

/// The answers come from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many of the resources that are refused most are shown.
const REFUSED: u32 = 10;

/// Show how a running fencepost is doing, and what waits, is refused or is unknown there.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// File with a token of the admin port, where reads need one.
    #[arg(long, value_name = "FILE", env = "FENCEPOST_ADMIN_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let admin = args.admin.connect(TIMEOUT)?;
    let answers = ask(&admin, &args).await?;
    super::print(&if args.json {
        format!("{}\n", printable::json(&answers.to_string()))
    } else {
        render(&answers)
    })
}

/// What the admin port says, by path.
async fn ask(admin: &Admin, args: &StatusArgs) -> anyhow::Result<Value> {
    let mut answers = serde_json::Map::new();
    let rejections = format!("rejections?group=resource&limit={REFUSED}");
    for (name, target) in [
        ("status", "status"),
        ("instances", "instances"),
        ("waiting", "waiting"),
        ("unknown", "unknown"),
        ("rejections", &rejections),
    ] {
        let mut request = admin.request(Method::GET, &format!("/v1/{target}"))?;
        if let Some(file) = &args.token_file {
            request = request.bearer_auth(read_token(file)?);
        }
        let text = admin.send(request).await?;
        let value: Value = serde_json::from_str(&text).with_context(|| admin.not_fencepost())?;
        answers.insert(name.to_owned(), value);
    }
    Ok(json!(answers))
}

fn render(answers: &Value) -> String {
    let mut out = about(&answers["status"]);
    lists(&mut out, answers);
    for (name, more) in [("waiting", "waiting"), ("unknown", "unknown outcomes")] {
        if answers[name]["next"].is_string() {
            let _ = writeln!(out, "\nThere are more {more}: GET /v1/{name}?after=…");
        }
    }
    out
}

/// The lines at the top.
fn about(status: &Value) -> String {
    let mut out = String::new();
    let seconds = |name: &str| status[name].as_f64().map(|left| format!("{left:.1} s"));
    let ready = match items(status, "not_ready_because") {
        [] => "yes".to_owned(),
        why => {
            let why: Vec<_> = why
                .iter()
                .filter_map(Value::as_str)
                .map(printable::line)
                .collect();
            format!("no: {}", why.join("; "))
        }
    };
    let store = match status["store_error"].as_str() {
        Some(error) => format!("{}: {}", text(status, "store"), printable::line(error)),
        None => text(status, "store"),
    };
    for (label, value) in [
        ("instance", text(status, "instance")),
        ("version", text(status, "version")),
        ("started", text(status, "started")),
        ("ready", ready),
        (
            "store",
            format!(
                "{store} ({}, namespace {})",
                text(status, "store_kind"),
                text(status, "namespace")
            ),
        ),
        (
            "lease",
            seconds("lease_remaining_seconds").unwrap_or_else(|| "-".to_owned()),
        ),
        ("in flight", text(status, "in_flight")),
        ("waiting", text(status, "waiting")),
        ("unknown", text(status, "unknown")),
        ("log level", text(status, "log_level")),
        ("config read", text(status, "config_loaded")),
        ("config digest", text(status, "config_digest")),
    ] {
        let _ = writeln!(out, "{label:<11} {value}");
    }
    out
}

/// The tables.
fn lists(out: &mut String, answers: &Value) {
    let status = &answers["status"];
    section(
        out,
        "Routes",
        &["ROUTE", "PATH", "MODE", "KEY"],
        items(status, "routes")
            .iter()
            .map(|route| columns(route, &["route", "path", "mode", "resource"])),
    );
    let settles = |value: &Value| {
        let left = value["settles_in_seconds"].as_f64();
        left.map_or_else(|| "-".to_owned(), |left| format!("{left:.1} s"))
    };
    section(
        out,
        "Instances",
        &["ID", "STATE", "SETTLES IN"],
        items(&answers["instances"], "instances")
            .iter()
            .map(|instance| {
                vec![
                    text(instance, "id"),
                    text(instance, "state"),
                    settles(instance),
                ]
            }),
    );
    let waiting = items(&answers["waiting"], "waiting");
    section(
        out,
        "Waiting for older requests",
        &["RESOURCE", "WAITING", "IN FLIGHT", "UNKNOWN"],
        waiting.iter().map(|busy| {
            let unknown = items(busy, "unknown").len().to_string();
            [
                columns(busy, &["resource", "waiting", "in_flight"]),
                vec![unknown],
            ]
            .concat()
        }),
    );
    let refused = items(&answers["rejections"], "groups");
    section(
        out,
        &format!(
            "Refused most, of the latest {}",
            text(&answers["rejections"], "of")
        ),
        &[
            "RESOURCE", "TIMES", "CLIENTS", "LATEST", "OUTCOME", "TOKEN", "MARK", "CLIENT", "AGENT",
        ],
        refused.iter().map(|group| {
            let latest = ["at", "outcome", "token", "mark", "client", "user_agent"];
            [
                columns(group, &["resource", "refused", "clients"]),
                columns(&group["latest"], &latest),
            ]
            .concat()
        }),
    );
    let open = items(&answers["unknown"], "open");
    section(
        out,
        "Unknown outcomes",
        &["RESOURCE", "ID", "TOKEN", "SETTLES IN"],
        open.iter().flat_map(|busy| {
            items(busy, "unknown").iter().map(move |unknown| {
                vec![
                    text(busy, "resource"),
                    text(unknown, "id"),
                    text(unknown, "token"),
                    settles(unknown),
                ]
            })
        }),
    );
}
