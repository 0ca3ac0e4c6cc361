//! [`LogLevel`]: what the log shows, each word of it checked. tracing's own parser takes an unknown
//! word such as `warning` for the name of a module, and then shows nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::yaml::nearest;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
const KNOWN_LEVELS: &str = "error, warn, info, debug, trace or off; also by module: \
                            info,fencepost::store=debug";

/// The level of the log, and those of single modules.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct LogLevel(String);

/// A text that is no [`LogLevel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevelError {
    pub message: String,
    pub hint: String,
}

impl LogLevel {
    /// Reads `info` or `info,fencepost::store=debug`. Without a level for the rest, that is `info`.
    pub fn parse(text: &str) -> Result<Self, LogLevelError> {
        let (mut rest, mut modules) = (None, Vec::new());
        for word in text.split(',').map(str::trim) {
            if let Some((module, level)) = word.split_once('=') {
                let (module, level) = (module.trim(), level.trim());
                check_module(module)?;
                modules.push(format!("{module}={}", check_level(level)?));
            } else if rest.replace(check_level(word)?).is_some() {
                return Err(LogLevelError {
                    message: format!("`{text}` names more than one level for the same"),
                    hint: KNOWN_LEVELS.to_owned(),
                });
            }
        }
        let mut words = vec![rest.unwrap_or("info").to_owned()];
        words.append(&mut modules);
        Ok(Self(words.join(",")))
    }

    /// The text in the form that tracing reads.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).map_err(|error| format!("{}\n{}", error.message, error.hint))
    }
}

impl Default for LogLevel {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for LogLevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}

fn check_level(word: &str) -> Result<&'static str, LogLevelError> {
    let lower = word.to_ascii_lowercase();
    if let Some(level) = LEVELS.into_iter().find(|level| *level == lower) {
        return Ok(level);
    }
    // `warning`, `information`.
    let longer = LEVELS.into_iter().find(|level| lower.starts_with(level));
    Err(LogLevelError {
        message: format!("`{word}` is not a level"),
        hint: match longer.or_else(|| nearest(&lower, LEVELS)) {
            Some(level) => format!("did you mean `{level}`?"),
            None => KNOWN_LEVELS.to_owned(),
        },
    })
}

fn check_module(name: &str) -> Result<(), LogLevelError> {
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    if name.split("::").all(is_name) {
        return Ok(());
    }
    Err(LogLevelError {
        message: format!("`{name}` is not the name of a module"),
        hint: KNOWN_LEVELS.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_levels_and_modules() {
        for (text, read) in [
            ("warn", "warn"),
            ("INFO", "info"),
            ("off", "off"),
            (
                " info , fencepost::store = debug",
                "info,fencepost::store=debug",
            ),
            ("fencepost::store=trace", "info,fencepost::store=trace"),
            (
                "error,sqlx::query=debug,h2=off",
                "error,sqlx::query=debug,h2=off",
            ),
        ] {
            assert_eq!(
                LogLevel::parse(text).map(|level| level.0),
                Ok(read.to_owned())
            );
        }
    }

    #[test]
    fn refuses_what_tracing_would_take_for_a_module() {
        for (text, message, hint) in [
            (
                "warning",
                "`warning` is not a level",
                "did you mean `warn`?",
            ),
            ("critical", "`critical` is not a level", KNOWN_LEVELS),
            ("degub", "`degub` is not a level", "did you mean `debug`?"),
            ("", "`` is not a level", KNOWN_LEVELS),
            ("info,", "`` is not a level", KNOWN_LEVELS),
            ("3", "`3` is not a level", KNOWN_LEVELS),
            ("info,fencepost=loud", "`loud` is not a level", KNOWN_LEVELS),
            (
                "fencepost:store=debug",
                "`fencepost:store` is not the name of a module",
                KNOWN_LEVELS,
            ),
            (
                "info,warn",
                "`info,warn` names more than one level for the same",
                KNOWN_LEVELS,
            ),
        ] {
            let error = LogLevel::parse(text).expect_err(text);
            assert_eq!((&*error.message, &*error.hint), (message, hint));
        }
    }
}
