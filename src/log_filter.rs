//! [`LogFilter`]: changes what the log shows while the process runs.

use std::sync::Mutex;

use tracing::Level;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::reload::Handle;

use crate::config::LogLevel;
use crate::locked::locked;

/// The level of the log, and the way to change it.
#[derive(Debug)]
pub struct LogFilter {
    /// Held while a level is applied, never across an await.
    now: Mutex<LogLevel>,
    /// `None`: the level is only kept.
    layer: Option<Handle<Targets, Registry>>,
}

impl LogFilter {
    #[must_use]
    pub fn new(now: LogLevel, layer: Option<Handle<Targets, Registry>>) -> Self {
        Self {
            now: Mutex::new(now),
            layer,
        }
    }

    /// The current level.
    #[must_use]
    pub fn now(&self) -> LogLevel {
        locked(&self.now).clone()
    }

    /// Has the log show this from now on, and returns what it showed before. A line says so, with the
    /// cause.
    pub fn set(&self, level: LogLevel, cause: &str) -> Result<LogLevel, String> {
        let mut now = locked(&self.now);
        if let Some(layer) = &self.layer {
            let filter = targets(&level).map_err(|error| error.to_string())?;
            layer.reload(filter).map_err(|error| error.to_string())?;
        }
        let before = std::mem::replace(&mut *now, level);
        tracing::info!(cause, %before, now = %*now, "the log level was changed");
        Ok(before)
    }
}

/// The filter of a level. At each level, `off` included, the log shows that it was changed.
pub fn targets(level: &LogLevel) -> Result<Targets, ParseError> {
    let targets: Targets = level.as_str().parse()?;
    Ok(targets.with_target(module_path!(), Level::INFO))
}
