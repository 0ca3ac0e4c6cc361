//! `fencepost health`: a probe for environments that can run a command but have no curl, such as
//! the image's health check.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::admin::AdminArgs;
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
    let (path, word) = match args.probe {
        Probe::Live => ("/livez", "live"),
        Probe::Ready => ("/readyz", "ready"),
    };
    let (status, text) = admin.ask(admin.request(Method::GET, path)?).await?;
    let report: Value = serde_json::from_str(&text)
        .ok()
        .filter(|value: &Value| value.get(word).is_some_and(Value::is_boolean))
        .with_context(|| admin.not_fencepost())?;
    if status == StatusCode::OK {
        writeln!(std::io::stdout(), "{word}")?;
        return Ok(true);
    }
    let why: Vec<_> = report["not_ready_because"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(line)
        .collect();
    writeln!(std::io::stderr(), "not {word}: {}", why.join("; "))?;
    Ok(false)
}
