//! `fencepost health`: a probe for environments that can run a command but have no curl, such as
//! the image's health check.

use std::io::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::admin::AdminArgs;
use super::print;
use crate::admin::ReadyReport;
use crate::admin::api::Live;
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

/// Returns true if it is ready or alive; prints the reason if not.
pub async fn run(args: HealthArgs) -> anyhow::Result<bool> {
    let admin = args.admin.connect_for_a_probe(TIMEOUT)?;
    if args.probe == Probe::Live {
        admin.get::<Live>(&["livez"], &()).await?;
        return print("live\n").map(|_| true);
    }
    let ready: ReadyReport = admin.get(&["readyz"], &()).await?;
    let why = ready.not_ready_because;
    if why.is_empty() {
        return print("ready\n").map(|_| true);
    }
    writeln!(std::io::stderr(), "not ready: {}", line(&why.join("; ")))?;
    Ok(false)
}
