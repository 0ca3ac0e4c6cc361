//! `fencepost health`: a probe for environments that can run a command but have no curl, such as
//! the image's health check.

use std::io::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::admin::AdminArgs;
use crate::admin::api::{Live, ReadyReport};
use crate::printable::line;

/// A probe answers at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Ask a running fencepost whether it is ready or alive.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The probe
    #[arg(value_enum, default_value_t = Probe::Ready)]
    probe: Probe,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Probe {
    /// The process is running
    Live,
    /// Configured, has reached its store, not draining
    Ready,
}

/// Returns true if it is ready or alive, and the text to print: which, with the reason where the
/// store is down.
pub async fn run(args: HealthArgs) -> anyhow::Result<(bool, String)> {
    let admin = args.admin.connect_for_a_probe(TIMEOUT)?;
    if args.probe == Probe::Live {
        admin.get::<Live>(&["livez"], &()).await?;
        return Ok((true, "alive\n".to_owned()));
    }
    let ready: ReadyReport = admin.get(&["readyz"], &()).await?;
    let error = ready.store_error.map(|error| format!(" ({error})"));
    let error = error.unwrap_or_default();
    if ready.ready && ready.state == "ready" {
        return Ok((true, "ready\n".to_owned()));
    }
    if ready.ready {
        let what = "the store is down, and fenced requests are refused meanwhile";
        return Ok((true, format!("alive: {what}{}\n", line(&error))));
    }
    let state = if ready.state == "alive" {
        "alive, "
    } else {
        ""
    };
    let why = ready.not_ready_because.join("; ") + &error;
    writeln!(std::io::stderr(), "{state}not ready: {}", line(&why))?;
    Ok((false, String::new()))
}
