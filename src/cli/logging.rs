//! Logs go to standard error: one JSON object per line, or readable text. A separate thread writes
//! them, so that a reader that has stopped delays no request. Lines that find no room are
//! dropped, counted (`fencepost_log_lines_dropped_total`) and reported once there is room again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use super::log_writer::{LineStyle, LogThread, LogWriter};
use crate::app::LogOutput;
use crate::config::{LogFormat, LogSettings};

/// Writes the last lines when it is dropped.
#[derive(Debug)]
pub(super) struct Logging {
    pub output: LogOutput,
    _thread: LogThread,
}

/// Starts logging, for as long as what it returns is kept.
pub(super) fn start(settings: &LogSettings) -> anyhow::Result<Logging> {
    let filter = EnvFilter::builder()
        .parse(&settings.level)
        .with_context(|| format!("log.level: {}", settings.level))?;
    let look = match settings.format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Text if coloured() => LineStyle::Coloured,
        LogFormat::Text => LineStyle::Text,
    };
    let (writer, thread) =
        LogWriter::start(std::io::stderr(), look).context("the log's thread cannot be started")?;
    let (counts, last) = (writer.clone(), writer.clone());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    let started = match settings.format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
        LogFormat::Text => builder.with_ansi(look == LineStyle::Coloured).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot be started: {error}"))?;
    std::panic::set_hook(Box::new(panicked));
    Ok(Logging {
        output: LogOutput::new(move || counts.dropped(), move || last.written()),
        _thread: thread,
    })
}

fn coloured() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
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
