//! [`LoadedConfig`]: the configuration that is served, as operators see it.

use std::sync::Arc;
use std::time::SystemTime;

use crate::config::Settings;
use crate::json_values::wall_clock;

/// The configuration in force, and when it was read.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub settings: Arc<Settings>,
    pub at: SystemTime,
    /// Fields whose new values need a restart.
    pub kept: Vec<String>,
    /// The first error of the reload that has failed since, and when that was.
    pub failed: Option<(String, SystemTime)>,
}

impl LoadedConfig {
    /// Read just now.
    #[must_use]
    pub fn now(settings: Arc<Settings>, kept: Vec<String>) -> Self {
        Self {
            settings,
            at: wall_clock(),
            kept,
            failed: None,
        }
    }

    /// A reload has failed just now. Its reason becomes one line.
    pub fn fail(&mut self, reason: Option<&String>) {
        let line = |reason: &String| reason.split_whitespace().collect::<Vec<_>>().join(" ");
        self.failed = reason.map(|reason| (line(reason), wall_clock()));
    }
}
