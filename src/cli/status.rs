//! `fencepost status`: how one instance is doing, and what is stuck there, as tables.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::admin::AccessArgs;
use super::{shown, tables};
use crate::admin::api::{
    InstanceList, RejectionList, RequestList, StatusView, UnknownOutcomes, WaitingList,
};

/// The answers come from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Show how a running fencepost is doing, and what waits, is refused or is unknown there.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    access: AccessArgs,
}

const ABOUT: &str = "hints state instance version started ready not_ready_because store store_error \
     store_kind namespace lease_remaining_seconds in_flight waiting unknown operations_unknown \
     operations_unknown_since log_level \
     config_loaded config_digest reload_failed reload_error";
const ROUTE: &str = "route path mode resource";
const REFUSAL: &str = "resource times at outcome token mark client user_agent";
const INSTANCE: &str = "id state silent_seconds settles_in_seconds";

/// The answers of the admin port.
#[derive(Serialize)]
struct Answers {
    status: StatusView,
    requests: RequestList,
    instances: InstanceList,
    waiting: WaitingList,
    unknown: UnknownOutcomes,
    rejections: RejectionList,
}

/// Asks. Returns the text to print.
pub async fn run(args: StatusArgs) -> anyhow::Result<String> {
    let admin = args.access.connect(TIMEOUT)?;
    let answers = Answers {
        status: admin.get(&["v1", "status"], &()).await?,
        requests: admin.get(&["v1", "requests"], &()).await?,
        instances: admin.get(&["v1", "instances"], &()).await?,
        waiting: admin.get(&["v1", "waiting"], &()).await?,
        unknown: admin.get(&["v1", "unknown"], &()).await?,
        rejections: admin.get(&["v1", "rejections"], &[("limit", 20)]).await?,
    };
    shown(args.access.json, &answers, render)
}

fn render(answers: &Answers) -> String {
    let (status, waiting, unknown) = (&answers.status, &answers.waiting, &answers.unknown);
    let mut out = tables::facts(ABOUT, status)
        + &tables::section("\nRoutes\n", ROUTE, &status.routes)
        + &tables::section("\nInstances\n", INSTANCE, &answers.instances.instances)
        + &tables::outcomes(status)
        + &tables::in_progress(&answers.requests)
        + &tables::waiting(&waiting.waiting)
        + &tables::section(
            "\nLatest refusals\n",
            REFUSAL,
            &answers.rejections.rejections,
        )
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
