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
    /// cause, as severe as it must be to be seen: with the new level, or with the one before if the
    /// new one is `off`.
    pub fn set(&self, level: LogLevel, cause: &str) -> Result<LogLevel, String> {
        let mut now = locked(&self.now);
        self.apply(&level)?;
        if !tell(cause, &now, &level) {
            self.apply(&now)?;
            tell(cause, &now, &level);
            self.apply(&level)?;
        }
        Ok(std::mem::replace(&mut now, level))
    }

    fn apply(&self, level: &LogLevel) -> Result<(), String> {
        let Some(layer) = &self.layer else {
            return Ok(());
        };
        let filter = targets(level).map_err(|error| error.to_string())?;
        layer.reload(filter).map_err(|error| error.to_string())
    }
}

/// The filter of a level.
pub fn targets(level: &LogLevel) -> Result<Targets, ParseError> {
    level.as_str().parse()
}

/// `false`: the log shows no line of this module now.
fn tell(cause: &str, before: &LogLevel, now: &LogLevel) -> bool {
    const WHAT: &str = "the log level was changed";
    if tracing::enabled!(Level::INFO) {
        tracing::info!(cause, %before, %now, "{WHAT}");
    } else if tracing::enabled!(Level::WARN) {
        tracing::warn!(cause, %before, %now, "{WHAT}");
    } else if tracing::enabled!(Level::ERROR) {
        tracing::error!(cause, %before, %now, "{WHAT}");
    } else {
        return false;
    }
    true
}
