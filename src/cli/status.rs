//! `fencepost status`: how one instance is doing, and what is stuck there, as tables.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::admin::AccessArgs;
use super::{print, shown, tables};
use crate::admin::api::{InstanceList, RejectionList, StatusView, UnknownOutcomes, WaitingList};

/// The answers come from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

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
    rejections: RejectionList,
}

/// Asks and prints.
pub async fn run(args: StatusArgs) -> anyhow::Result<bool> {
    let admin = args.access.connect(TIMEOUT)?;
    // All that an instance keeps.
    let most = [("limit", 1000)];
    let answers = Answers {
        status: admin.get(&["v1", "status"], &()).await?,
        instances: admin.get(&["v1", "instances"], &()).await?,
        waiting: admin.get(&["v1", "waiting"], &()).await?,
        unknown: admin.get(&["v1", "unknown"], &()).await?,
        rejections: admin.get(&["v1", "rejections"], &most).await?,
    };
    print(&shown(args.access.json, &answers, render)?)?;
    Ok(true)
}

fn render(answers: &Answers) -> String {
    let Answers {
        status,
        waiting,
        unknown,
        ..
    } = answers;
    let mut out = tables::facts(&about(status))
        + &tables::routes(&status.routes)
        + &tables::instances(&answers.instances.instances)
        + &tables::waiting(&waiting.waiting)
        + &tables::refused_most(&answers.rejections.rejections)
        + &tables::all_unknown(&unknown.open);
    for (name, next, more) in [
        ("waiting", &waiting.next, "waiting"),
        ("unknown", &unknown.next, "unknown outcomes"),
    ] {
        if next.is_some() {
            let _ = writeln!(out, "\nThere are more {more}: GET /v1/{name}?after=…");
        }
    }
    out
}

/// The lines at the top.
fn about(status: &StatusView) -> [(&'static str, String); 12] {
    let ready = &status.ready;
    let is_ready = match ready.not_ready_because.as_slice() {
        [] => "yes".to_owned(),
        reasons => format!("no: {}", reasons.join("; ")),
    };
    let error = ready.store_error.iter().map(|error| format!(": {error}"));
    let (kind, namespace) = (&status.store_kind, &status.namespace);
    let store = format!(
        "{}{} ({kind}, namespace {namespace})",
        ready.store,
        error.collect::<String>()
    );
    let lease = status.lease_remaining_seconds;
    [
        ("instance", ready.instance.clone()),
        ("version", status.version.clone()),
        ("started", status.started.clone()),
        ("ready", is_ready),
        ("store", store),
        (
            "lease",
            lease.map_or("-".to_owned(), |left| format!("{left:.1} s")),
        ),
        ("in flight", status.counts.in_flight.to_string()),
        ("waiting", status.counts.waiting.to_string()),
        ("unknown", status.counts.unknown.to_string()),
        ("log level", status.log_level.clone()),
        ("config read", status.config_loaded.clone()),
        ("config digest", status.config_digest.clone()),
    ]
}
