//! [`LogFilter`]: changes what the log shows while the process runs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tracing::Level;

use crate::config::LogLevel;

type Apply = dyn Fn(&LogLevel) -> Result<(), String> + Send + Sync;

/// The level of the log, and the way to change it.
pub struct LogFilter {
    /// Held while a level is applied, never across an await.
    now: Mutex<LogLevel>,
    apply: Box<Apply>,
}

impl LogFilter {
    /// `apply` is how the subscriber takes another level.
    pub fn new(
        now: LogLevel,
        apply: impl Fn(&LogLevel) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            now: Mutex::new(now),
            apply: Box::new(apply),
        }
    }

    /// The current level.
    #[must_use]
    pub fn now(&self) -> LogLevel {
        self.now
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Has the log show this from now on, and returns what it showed before. A line says so, with the
    /// cause, as severe as it must be to be seen: with the new level, or with the one before if the
    /// new one is `off`.
    pub fn set(&self, level: LogLevel, cause: &str) -> Result<LogLevel, String> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (self.apply)(&level)?;
        if !tell(cause, &now, &level) {
            (self.apply)(&now)?;
            tell(cause, &now, &level);
            (self.apply)(&level)?;
        }
        Ok(std::mem::replace(&mut now, level))
    }
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

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
