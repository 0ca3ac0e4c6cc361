//! Logs go to standard error: one JSON object per line, or readable text. A separate thread writes
//! them, so that a reader that has stopped delays no request. Lines that find no room are
//! dropped, counted (`fencepost_log_lines_dropped_total`) and reported once there is room again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use anyhow::Context;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

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
    let (writer, thread) =
        LogWriter::start(std::io::stderr(), look, instance.map(InstanceId::name))
            .context("the log's thread cannot be started")?;
    let (counts, last) = (writer.clone(), writer.clone());
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match settings.format {
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
        LogFormat::Text => lines.with_ansi(look == LineStyle::Coloured).boxed(),
    };
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
    let filter = LogFilter::new(settings.level.clone(), move |level| {
        let filter = filter_of(level).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    });
    started.map_err(|error| anyhow::anyhow!("logging cannot be started: {error}"))?;
    std::panic::set_hook(Box::new(panicked));
    Ok(Logging {
        output: LogOutput::new(move || counts.dropped(), move || last.written(), filter),
        _thread: thread,
    })
}

fn filter_of(level: &LogLevel) -> Result<Targets, ParseError> {
    level.as_str().parse()
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
