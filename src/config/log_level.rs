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

impl LogLevel {
    /// Reads `info` or `info,fencepost::store=debug`. Without a level for the rest, that is `info`.
    /// The error is a message, and a hint in a second line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut rest, mut modules) = (None, String::new());
        for word in text.split(',').map(str::trim) {
            let (module, level) = word.split_once('=').unwrap_or(("", word));
            let (module, level) = (module.trim(), checked(level.trim())?);
            if !word.contains('=') {
                if rest.replace(level).is_some() {
                    let message = format!("`{text}` names more than one level for the same");
                    return Err(format!("{message}\n{KNOWN_LEVELS}"));
                }
            } else if module.split("::").all(is_name) {
                modules += &[",", module, "=", level].concat();
            } else {
                let message = format!("`{module}` is not the name of a module");
                return Err(format!("{message}\n{KNOWN_LEVELS}"));
            }
        }
        Ok(Self(rest.unwrap_or("info").to_owned() + &modules))
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
        Self::parse(&text)
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

fn checked(word: &str) -> Result<&'static str, String> {
    let lower = word.to_ascii_lowercase();
    if let Some(level) = LEVELS.into_iter().find(|level| *level == lower) {
        return Ok(level);
    }
    // `warning`, `information`.
    let longer = LEVELS.into_iter().find(|level| lower.starts_with(level));
    let hint = longer.or_else(|| nearest(&lower, LEVELS));
    let hint = hint.map(|level| format!("did you mean `{level}`?"));
    let hint = hint.unwrap_or_else(|| KNOWN_LEVELS.to_owned());
    Err(format!("`{word}` is not a level\n{hint}"))
}

fn is_name(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !part.is_empty() && part.bytes().all(is_letter)
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
            assert_eq!(error, format!("{message}\n{hint}"));
        }
    }
}
