//! Logs go to standard error: one JSON object per line, or text for people.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogSettings};

/// Starts logging, for the rest of the process.
pub(super) fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .parse(&settings.level)
        .with_context(|| format!("log.level: {}", settings.level))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match settings.format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colour).try_init()
        }
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot be started: {error}"))
}
