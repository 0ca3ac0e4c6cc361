//! [`LogLevel`]: what the log shows, each word of it checked. tracing's own parser takes an unknown
//! word such as `warning` for the name of a module, and then shows nothing else.

use std::fmt;

use super::yaml::nearest;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// Words of other programs.
const MEANT: [(&str, &str); 14] = [
    ("warning", "warn"),
    ("err", "error"),
    ("critical", "error"),
    ("crit", "error"),
    ("fatal", "error"),
    ("severe", "error"),
    ("information", "info"),
    ("notice", "info"),
    ("default", "info"),
    ("verbose", "debug"),
    ("fine", "debug"),
    ("all", "trace"),
    ("none", "off"),
    ("quiet", "off"),
];
const KNOWN_LEVELS: &str = "error, warn, info, debug, trace or off; also by module: \
                            info,fencepost::store=debug";

/// The libraries whose log lines can be shown.
const LIBRARIES: [&str; 11] = [
    "axum",
    "h2",
    "hyper",
    "hyper_util",
    "mio",
    "rustls",
    "sqlx",
    "tokio",
    "tokio_rustls",
    "tower",
    "tower_http",
];

/// The modules of this crate that write log lines, and the modules around them.
const MODULES: &[&str] = &[
    "fencepost",
    "fencepost::admin",
    "fencepost::admin::auth",
    "fencepost::admin::guesses",
    "fencepost::admin::listener",
    "fencepost::admin::marks",
    "fencepost::admin::prune",
    "fencepost::app",
    "fencepost::app::found",
    "fencepost::app::keys",
    "fencepost::app::listen",
    "fencepost::app::log_output",
    "fencepost::app::reload",
    "fencepost::app::shutdown",
    "fencepost::attach",
    "fencepost::attach::report",
    "fencepost::cli",
    "fencepost::cli::logging",
    "fencepost::fencing",
    "fencepost::fencing::background",
    "fencepost::fencing::membership",
    "fencepost::fencing::membership::notifications",
    "fencepost::fencing::membership::place",
    "fencepost::fencing::membership::reaper",
    "fencepost::fencing::membership::spendings",
    "fencepost::fencing::operators",
    "fencepost::fencing::writer",
    "fencepost::fencing::writer::context",
    "fencepost::fencing::writer::enter",
    "fencepost::fencing::writer::own",
    "fencepost::fencing::writer::upkeep",
    "fencepost::log_filter",
    "fencepost::proxy",
    "fencepost::proxy::access_log",
    "fencepost::proxy::answer",
    "fencepost::proxy::attached",
    "fencepost::proxy::exchange",
    "fencepost::proxy::exchange::open",
    "fencepost::proxy::upstream",
    "fencepost::proxy::upstream::http1",
    "fencepost::proxy::upstream::http1::body",
    "fencepost::proxy::upstream::http1::connection",
    "fencepost::proxy::upstream::http1::exchange",
    "fencepost::proxy::upstream::http2",
    "fencepost::proxy::upstream::http2::shared",
    "fencepost::proxy::upstream::socket",
    "fencepost::proxy::upstream_request",
    "fencepost::server",
    "fencepost::server::accept",
    "fencepost::server::connection",
    "fencepost::server::descriptors",
    "fencepost::server::http1",
    "fencepost::server::http1::exchange",
    "fencepost::server::http1::input",
    "fencepost::server::http2",
    "fencepost::server::stalled_streams",
    "fencepost::server::timed_socket",
    "fencepost::socket",
    "fencepost::store",
    "fencepost::store::postgres",
    "fencepost::store::postgres::administration",
    "fencepost::store::postgres::batch",
    "fencepost::store::postgres::connect",
    "fencepost::store::postgres::notifications",
    "fencepost::store::postgres::warnings",
    "fencepost::store::routes",
    "fencepost::store::sqlite",
    "fencepost::store::sqlite::connection",
    "fencepost::store::sqlite::count",
    "fencepost::store::sqlite::path",
    "fencepost::store::sqlite::reads",
    "fencepost::store::sqlite::session",
    "fencepost::traces",
    "fencepost::traces::export",
];

/// What the log shows: a level, and those of single modules.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    let other = MEANT.iter().find(|(other, _)| *other == lower);
    let meant = other.map(|(_, level)| *level);
    Err(LogLevelError {
        message: format!("`{word}` is not a level"),
        hint: match meant.or_else(|| nearest(&lower, LEVELS)) {
            Some(level) => format!("did you mean `{level}`?"),
            None => KNOWN_LEVELS.to_owned(),
        },
    })
}

fn check_module(name: &str) -> Result<(), LogLevelError> {
    let library = name.split("::").next().unwrap_or(name);
    if MODULES.contains(&name) || LIBRARIES.contains(&library) {
        return Ok(());
    }
    let all = MODULES.iter().chain(&LIBRARIES).copied();
    Err(LogLevelError {
        message: format!("no module `{name}` writes to the log"),
        hint: match nearest(name, all) {
            Some(module) => format!("did you mean `{module}`?"),
            None => "fencepost, a part of it such as fencepost::store, or a library: sqlx, hyper, h2, rustls"
                .to_owned(),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

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
            ("err", "`err` is not a level", "did you mean `error`?"),
            (
                "critical",
                "`critical` is not a level",
                "did you mean `error`?",
            ),
            ("degub", "`degub` is not a level", "did you mean `debug`?"),
            ("", "`` is not a level", KNOWN_LEVELS),
            ("info,", "`` is not a level", KNOWN_LEVELS),
            ("3", "`3` is not a level", KNOWN_LEVELS),
            ("info,fencepost=loud", "`loud` is not a level", KNOWN_LEVELS),
            (
                "fencepost::stoer=debug",
                "no module `fencepost::stoer` writes to the log",
                "did you mean `fencepost::store`?",
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

    /// The modules whose code has a macro of tracing in it.
    fn that_log(dir: &Path, path: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            let name = entry.file_name().into_string().expect("it is UTF-8");
            if entry.path().is_dir() {
                that_log(&entry.path(), &format!("{path}::{name}"), found);
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("a source file");
            let code = text
                .split("\n#[cfg(test)]\nmod tests")
                .next()
                .unwrap_or_default();
            let logs = ["error!(", "warn!(", "info!(", "debug!(", "trace!("]
                .iter()
                .any(|level| code.contains(&format!("tracing::{level}")));
            let module = name.trim_end_matches(".rs");
            if logs && module != "tests" {
                let whole = match module {
                    "mod" => path.to_owned(),
                    module => format!("{path}::{module}"),
                };
                let ends = whole.match_indices("::").map(|(at, _)| at);
                let around = ends.map(|at| whole[..at].to_owned()).collect::<Vec<_>>();
                found.extend(around);
                found.insert(whole);
            }
        }
    }

    #[test]
    fn the_modules_are_those_that_log() {
        let mut found = BTreeSet::new();
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        that_log(&src, "fencepost", &mut found);
        let listed: BTreeSet<String> = MODULES.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(listed, found);
    }
}
