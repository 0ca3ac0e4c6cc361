//! The block `log`: the log on standard error.

use schemars::JsonSchema;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use crate::config::settings::{LogFormat, LogSettings};
use crate::config::yaml::{Report, shown};

/// The log on standard error.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Log")]
pub struct LogFile {
    /// `json`, or `text` for reading. The default is text on a terminal, otherwise JSON.
    pub format: Option<LogFormat>,
    /// `error`, `warn`, `info`, `debug` or `trace`; also per module: `info,fencepost::store=debug`.
    pub level: String,
}

impl Default for LogFile {
    fn default() -> Self {
        Self {
            format: None,
            level: "info".to_owned(),
        }
    }
}

/// The checks of the block. `None` if it is wrong.
pub(super) fn settings(file: LogFile, report: &mut Report) -> Option<LogSettings> {
    let level = file.level;
    if level.trim().is_empty() || EnvFilter::builder().parse(&level).is_err() {
        report.error(
            "log.level",
            format!("{} is not a level", shown(&level)),
            "error, warn, info, debug or trace; also by module: info,fencepost::store=debug",
        );
        return None;
    }
    Some(LogSettings {
        // On a terminal, the command line puts text below the file.
        format: file.format.unwrap_or(LogFormat::Json),
        level,
    })
}
