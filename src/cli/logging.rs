//! Logs go to standard error: one JSON object per line, or readable text. A separate thread writes
//! them, so that a reader that has stopped delays no request. Lines that find no room are
//! dropped, counted (`fencepost_log_lines_dropped_total`) and reported once there is room again.

use anyhow::Context;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::app::{self, LogOutput, LogWriter};
use crate::config::{LogFormat, LogSettings};
use crate::store::InstanceId;

/// Writes the last lines when it is dropped.
#[derive(Debug)]
pub(super) struct Logging {
    pub output: LogOutput,
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.output.writer.flush();
    }
}

/// Starts logging, for as long as what it returns is kept. Each line names `instance`, if there is
/// one.
pub(super) fn start(
    settings: &LogSettings,
    instance: Option<InstanceId>,
) -> anyhow::Result<Logging> {
    let filter =
        app::targets(&settings.level).with_context(|| format!("log.level: {}", settings.level))?;
    let name = instance.map(InstanceId::name);
    let writer = LogWriter::start(std::io::stderr(), settings.format, name.as_deref())
        .context("the log's thread cannot be started")?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer.clone());
    let lines = match settings.format {
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
        LogFormat::Text => lines.with_ansi(false).boxed(),
    };
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
    started.map_err(|error| anyhow::anyhow!("logging cannot be started: {error}"))?;
    Ok(Logging {
        output: LogOutput {
            writer,
            filter: handle,
        },
    })
}
