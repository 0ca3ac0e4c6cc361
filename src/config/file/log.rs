//! The block `log`: the log on standard error.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::log_level::LogLevel;
use crate::config::settings::{AccessLog, LogFormat, LogSettings};
use crate::config::yaml::Report;

/// The log on standard error.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Log")]
pub struct LogFile {
    /// `json`, or `text` for reading. The default is text on a terminal, otherwise JSON.
    pub format: Option<LogFormat>,
    /// `error`, `warn`, `info`, `debug`, `trace` or `off`; also per module:
    /// `info,fencepost::store=debug`. Follows a reload.
    pub level: String,
    /// Paths are logged with their queries, which may hold secrets.
    pub query: bool,
    /// Which requests get a line: `off`, `refusals` (with unknown outcomes), `fenced` (these, and
    /// each fenced, observed or claiming request), or `all`. The lines of answered requests are at
    /// `info`.
    pub access: AccessLog,
}

impl Default for LogFile {
    fn default() -> Self {
        Self {
            format: None,
            level: "info".to_owned(),
            query: false,
            access: AccessLog::default(),
        }
    }
}

/// The checks of the block. `None` if it is wrong.
pub(super) fn settings(file: &LogFile, report: &mut Report) -> Option<LogSettings> {
    let level = LogLevel::parse(&file.level)
        .map_err(|error| report.error("log.level", error.message, &error.hint))
        .ok()?;
    Some(LogSettings {
        // On a terminal, the command line puts text below the file.
        format: file.format.unwrap_or(LogFormat::Json),
        level,
        query: file.query,
        access: file.access,
    })
}
