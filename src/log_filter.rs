//! [`LogFilter`]: changes what the log shows while the process runs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::config::LogLevel;

type Apply = dyn Fn(&LogLevel) -> Result<(), String> + Send + Sync;

/// What the log shows now, and the way to change it.
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

    /// What the log shows now.
    #[must_use]
    pub fn now(&self) -> LogLevel {
        self.now
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Has the log show this from now on, and returns what it showed before. A line tells of it,
    /// with the cause, if either level shows such lines.
    pub fn set(&self, level: LogLevel, cause: &str) -> Result<LogLevel, String> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let tell =
            || tracing::info!(cause, before = %now, now = %level, "the log level was changed");
        let told = tracing::enabled!(tracing::Level::INFO);
        if told {
            tell();
        }
        (self.apply)(&level)?;
        if !told {
            tell();
        }
        Ok(std::mem::replace(&mut now, level))
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
