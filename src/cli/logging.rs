//! Logs go to standard error: one JSON object per line, or readable text. A separate thread writes
//! them, so that a reader that has stopped delays no request. Lines that find no room are
//! dropped, counted (`fencepost_log_lines_dropped_total`) and reported once there is room again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::sync::Arc;

use anyhow::Context;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::app::{LogOutput, LogWriter};
use crate::config::{LogFormat, LogSettings};
use crate::log_filter::{self, LogFilter};
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
    let filter = log_filter::targets(&settings.level)
        .with_context(|| format!("log.level: {}", settings.level))?;
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
    std::panic::set_hook(Box::new(panicked));
    let filter = Arc::new(LogFilter::new(settings.level.clone(), Some(handle)));
    Ok(Logging {
        output: LogOutput { writer, filter },
    })
}

/// A line of the log like any other: the default hook writes to standard error itself, and would
/// wait for its reader.
fn panicked(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        location = panic.location().map(ToString::to_string),
        backtrace,
        "a thread panicked: {}",
        panic.payload_as_str().unwrap_or("without a message")
    );
}
