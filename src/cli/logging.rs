//! Logs go to standard error: one JSON object per line, or readable text. A separate thread writes
//! them, so that a reader that has stopped delays no request. Lines that find no room are
//! dropped, counted (`fencepost_log_lines_dropped_total`) and reported once there is room again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::reload::Handle;

use super::log_writer::{LineStyle, LogThread, LogWriter};
use crate::app::LogOutput;
use crate::config::{LogFormat, LogLevel, LogSettings};
use crate::log_filter::LogFilter;
use crate::store::InstanceId;

/// Writes the last lines when it is dropped.
#[derive(Debug)]
pub(super) struct Logging {
    pub output: LogOutput,
    _thread: LogThread,
}

/// Starts logging, for as long as what it returns is kept. Each line names `instance`, if there is
/// one.
pub(super) fn start(
    settings: &LogSettings,
    instance: Option<&InstanceId>,
) -> anyhow::Result<Logging> {
    let filter =
        filter_of(&settings.level).with_context(|| format!("log.level: {}", settings.level))?;
    let look = match settings.format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Text if coloured() => LineStyle::Coloured,
        LogFormat::Text => LineStyle::Text,
    };
    let (writer, thread) = LogWriter::start(
        std::io::stderr(),
        look,
        settings.severity,
        instance.map(InstanceId::name),
    )
    .context("the log's thread cannot be started")?;
    let (counts, last) = (writer.clone(), writer.clone());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    let level = settings.level.clone();
    let (started, filter) = match settings.format {
        LogFormat::Json => {
            let builder = builder
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .with_filter_reloading();
            let handle = builder.reload_handle();
            let filter = LogFilter::new(level, move |level| applied(&handle, level));
            (builder.try_init(), filter)
        }
        LogFormat::Text => {
            let builder = builder
                .with_ansi(look == LineStyle::Coloured)
                .with_filter_reloading();
            let handle = builder.reload_handle();
            let filter = LogFilter::new(level, move |level| applied(&handle, level));
            (builder.try_init(), filter)
        }
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot be started: {error}"))?;
    std::panic::set_hook(Box::new(panicked));
    Ok(Logging {
        output: LogOutput::new(move || counts.dropped(), move || last.written(), filter),
        _thread: thread,
    })
}

fn filter_of(level: &LogLevel) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().parse(level.as_str())
}

fn applied<S>(handle: &Handle<EnvFilter, S>, level: &LogLevel) -> Result<(), String> {
    let filter = filter_of(level).map_err(|error| error.to_string())?;
    handle.reload(filter).map_err(|error| error.to_string())
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
