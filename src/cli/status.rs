//! `fencepost status`: how one instance is doing, and what is stuck there, as tables.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::admin::AccessArgs;
use super::tables::{cell, facts, optional, seconds, section};
use crate::admin::api::{InstanceList, RejectionGroups, StatusView, UnknownOutcomes, WaitingList};
use crate::fencing::failure_detector::InstanceState;
use crate::printable;

/// The answers come from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Names the resources that are refused most.
const REJECTIONS: &str = "/v1/rejections?group=resource&limit=10";

/// Show how a running fencepost is doing, and what waits, is refused or is unknown there.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    access: AccessArgs,
}

/// The answers of the admin port.
#[derive(Serialize)]
struct Answers {
    status: StatusView,
    instances: InstanceList,
    waiting: WaitingList,
    unknown: UnknownOutcomes,
    rejections: RejectionGroups,
}

/// Asks and prints.
pub async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let admin = args.access.connect(TIMEOUT)?;
    let answers = Answers {
        status: admin.get("/v1/status").await?,
        instances: admin.get("/v1/instances").await?,
        waiting: admin.get("/v1/waiting").await?,
        unknown: admin.get("/v1/unknown").await?,
        rejections: admin.get(REJECTIONS).await?,
    };
    super::print(&if args.access.json {
        let text = serde_json::to_string(&answers)?;
        format!("{}\n", printable::json(&text))
    } else {
        render(&answers)
    })
}

fn render(answers: &Answers) -> String {
    let mut out = about(&answers.status);
    lists(&mut out, answers);
    for (name, next, more) in [
        ("waiting", &answers.waiting.next, "waiting"),
        ("unknown", &answers.unknown.next, "unknown outcomes"),
    ] {
        if next.is_some() {
            let _ = writeln!(out, "\nThere are more {more}: GET /v1/{name}?after=…");
        }
    }
    out
}

/// The lines at the top.
fn about(status: &StatusView) -> String {
    let ready = match status.ready.not_ready_because.as_slice() {
        [] => "yes".to_owned(),
        why => format!("no: {}", cell(why.join("; "))),
    };
    let mut store = status.ready.store.clone();
    if let Some(error) = &status.ready.store_error {
        let _ = write!(store, ": {error}");
    }
    let (kind, namespace) = (&status.store_kind, &status.namespace);
    let lease = status.lease_remaining_seconds;
    facts([
        ("instance", cell(&status.ready.instance)),
        ("version", cell(&status.version)),
        ("started", cell(&status.started)),
        ("ready", ready),
        (
            "store",
            cell(format!("{store} ({kind}, namespace {namespace})")),
        ),
        (
            "lease",
            optional(lease.map(|left| format!("{left:.1} s")).as_ref()),
        ),
        ("in flight", cell(status.counts.in_flight)),
        ("waiting", cell(status.counts.waiting)),
        ("unknown", cell(status.counts.unknown)),
        ("log level", cell(&status.log_level)),
        ("config read", cell(&status.config_loaded)),
        ("config digest", cell(&status.config_digest)),
    ])
}

/// The tables.
fn lists(out: &mut String, answers: &Answers) {
    section(
        out,
        "Routes",
        ["ROUTE", "PATH", "MODE", "KEY"],
        answers.status.routes.iter().map(|route| {
            [
                cell(&route.route),
                cell(&route.path),
                cell(route.mode.as_str()),
                optional(route.resource.as_ref()),
            ]
        }),
    );
    section(
        out,
        "Instances",
        ["ID", "STATE", "SETTLES IN"],
        answers.instances.instances.iter().map(|instance| {
            let state = match instance.state {
                InstanceState::This => "this",
                InstanceState::Alive => "alive",
                InstanceState::Dead => "dead",
            };
            let settles = seconds(instance.settles_in);
            [cell(&instance.id), cell(state), optional(settles.as_ref())]
        }),
    );
    section(
        out,
        "Waiting for older requests",
        ["RESOURCE", "WAITING", "IN FLIGHT", "UNKNOWN"],
        answers.waiting.waiting.iter().map(|busy| {
            [
                cell(&busy.resource),
                cell(busy.waiting),
                cell(busy.in_flight),
                cell(busy.unknown.len()),
            ]
        }),
    );
    section(
        out,
        &format!("Refused most, of the latest {}", answers.rejections.of),
        [
            "RESOURCE", "TIMES", "CLIENTS", "LATEST", "OUTCOME", "TOKEN", "MARK", "CLIENT", "AGENT",
        ],
        answers.rejections.groups.iter().map(|group| {
            let latest = &group.latest;
            [
                cell(&group.resource),
                cell(group.refused),
                cell(group.clients),
                cell(&latest.at),
                cell(&latest.outcome),
                optional(latest.token.as_ref()),
                optional(latest.mark.as_ref()),
                cell(&latest.client),
                optional(latest.request.user_agent.as_ref()),
            ]
        }),
    );
    section(
        out,
        "Unknown outcomes",
        ["RESOURCE", "ID", "TOKEN", "SETTLES IN"],
        answers.unknown.open.iter().flat_map(|busy| {
            busy.unknown.iter().map(|unknown| {
                [
                    cell(&busy.resource),
                    cell(&unknown.id),
                    cell(unknown.token),
                    optional(seconds(unknown.settles_in).as_ref()),
                ]
            })
        }),
    );
}
