//! The blocks `admin`, `log` and `tracing`: how operators see the program.
//!
//! [`LogLevel`] is read word by word: tracing's own parser takes an unknown word such as `warning`
//! for the name of a module, and then shows nothing else.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use super::addresses::{self, Listen};
use super::clients::BearerTokens;
use super::tls::{self, AdminTlsFile, TlsSettings};
use super::units::{OffOr, Share, word};
use super::yaml::{Report, blocks, nearest, wrong};

/// The default of `admin.listen`.
pub const ADMIN_LISTEN: &str = "127.0.0.1:7081";

blocks! {
    /// Probes, metrics, and the API for marks.
    pub struct AdminSettings {
        /// `host:port`, `unix:/path/of.sock` (which only the user that runs fencepost may open), or
        /// `off`. Probes and metrics are open to everybody who reaches it. Keys and marks can be read
        /// without a token only on the loopback and over a Unix socket.
        #[schemars(extend("default" = ADMIN_LISTEN))]
        pub listen: OffOr<Listen> = OffOr(Some(Listen::Tcp(ADMIN_LISTEN.to_owned()))),
        /// A file with the bearer token for writes, of at least 16 characters. Without it, writes
        /// are disabled. Read at each write.
        pub token_file: Option<PathBuf>,
        /// A file with the bearer token for reads, of at least 16 characters. Without it, keys and
        /// marks can be read from outside the loopback only with the token for writes. Read at each
        /// such read.
        pub read_token_file: Option<PathBuf>,
        /// TLS for the admin port.
        #[serde(rename = "tls")]
        pub(super) tls_files: Option<AdminTlsFile>,
        /// TLS, ready to use; `None`: plain HTTP.
        #[serde(skip)]
        pub tls: Option<TlsSettings>,
        /// `true`: an outage of the store makes `/readyz` fail.
        pub ready_follows_store: bool = false,
    }
}

impl AdminSettings {
    pub(super) fn check(&mut self, report: &mut Report) {
        for (at, path) in [
            ("admin.token_file", &self.token_file),
            ("admin.read_token_file", &self.read_token_file),
        ] {
            let Some(path) = path else { continue };
            report.error_if(path.as_os_str().is_empty(), at, "the path is empty");
            if let Err(why) = BearerTokens::of(std::fs::read(path)) {
                let text = format!(
                    "{} {why}, so no token is accepted here\n\
                     openssl rand -hex 32 makes a good one; it is read without a restart",
                    path.display(),
                );
                report.warn(at, text);
            }
        }
        let listen = self.listen.0.as_ref();
        let is_remote = listen.is_some_and(|listen| !addresses::is_local(listen));
        let has_token = self.token_file.is_some() || self.read_token_file.is_some();
        let is_vain = self.tls_files.is_some() && matches!(listen, Some(Listen::Unix(_)));
        let text = "the admin port is a Unix socket: no network needs protection\n\
                    remove this block, or listen on host:port";
        report.error_beside(is_vain, ["admin.tls", "admin.listen"], text);
        let is_open = has_token && self.tls_files.is_none() && is_remote;
        let text = "tokens sent to this address over a network can be read on their way\n\
                    give admin.tls, send tokens over the loopback only, or listen on 127.0.0.1";
        report.warn_beside(is_open, ["admin.listen", "admin.token_file"], text);
        let files = self.tls_files.take();
        self.tls = files.and_then(|files| tls::admin(&files, report));
    }
}

blocks! {
    /// The log on standard error.
    pub struct LogSettings {
        /// `json`, or `text` for reading. The default is text on a terminal, otherwise JSON.
        pub format: LogFormat = LogFormat::Json,
        /// `error`, `warn`, `info`, `debug`, `trace` or `off`; also per module:
        /// `info,fencepost::store=debug`. Follows a reload.
        #[schemars(extend("default" = "info"))]
        pub level: LogLevel = LogLevel(Targets::new().with_default(Level::INFO)),
        /// Paths are logged with their queries, which may hold secrets.
        pub query: bool,
        /// Which requests get a line: `off`, `refusals` (with unknown outcomes), `fenced` (these,
        /// and each fenced, observed or claiming request), or `all`. The lines of answered requests
        /// are at `info`.
        pub access: AccessLog = AccessLog::Refusals,
    }
}

/// Which requests get a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLog {
    /// None.
    Off,
    /// Those that are refused, and those whose outcome is unknown.
    Refusals,
    /// These, and those that are fenced, observed or claim.
    Fenced,
    /// Every one.
    All,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// One object per line.
    Json,
    /// For reading.
    Text,
}

blocks! {
    /// Spans of requests, sent to a collector by OTLP.
    #[derive(PartialEq)]
    #[schemars(extend("required" = ["otlp"]))]
    pub struct TracingSettings {
        /// The collector, by OTLP over HTTP: `http://host:4318`, or `https://host`. A URL without a
        /// path means `/v1/traces`.
        pub otlp: Endpoint = Endpoint(String::new()),
        /// Of the requests without a valid `traceparent`, the share that is traced: 0 to 1. A
        /// request with one is traced if its caller traces it (the `sampled` flag).
        pub sample: Share = Share(0.01),
    }
}

const URL_HINT: &str = "write http://host:port or https://host, such as http://127.0.0.1:4318";

/// The URL that spans are sent to; empty: none is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub String);

word!(Endpoint, endpoint);

fn endpoint(text: &str) -> Result<Endpoint, String> {
    let user = "names a user: set OTEL_EXPORTER_OTLP_HEADERS, to `authorization=Basic%20…`";
    let [scheme, authority, path] = addresses::url(text, &["http", "https"], user, URL_HINT)?;
    let is_plain = |byte| u8::is_ascii_graphic(&byte) && !b"?#@".contains(&byte);
    match path {
        "" | "/" => Ok(Endpoint(format!("{scheme}://{authority}/v1/traces"))),
        path if path.bytes().all(is_plain) => Ok(Endpoint(text.to_owned())),
        _ => wrong(text, "has a query, a fragment or an odd path", URL_HINT),
    }
}

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
const KNOWN_LEVELS: &str = "error, warn, info, debug, trace or off; also by module: \
                            info,fencepost::store=debug";

/// The level of the log, and those of single modules.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLevel(pub Targets);

word!(LogLevel, LogLevel::parse);

impl LogLevel {
    /// Reads `info` or `info,fencepost::store=debug`. Without a level for the rest, that is `info`.
    /// The error is a message, and a hint in a second line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut targets, mut rest) = (Targets::new(), LevelFilter::INFO);
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                Some((module, level)) => {
                    targets = targets.with_target(module.trim(), checked(level.trim())?);
                }
                None => rest = checked(word)?,
            }
        }
        Ok(Self(targets.with_default(rest)))
    }
}

fn checked(word: &str) -> Result<LevelFilter, String> {
    let lower = word.to_ascii_lowercase();
    if LEVELS.contains(&&*lower) {
        return lower.parse().map_err(|_| KNOWN_LEVELS.to_owned());
    }
    // `warning`, `information`.
    let longer = LEVELS.into_iter().find(|level| lower.starts_with(level));
    let hint = longer.or_else(|| nearest(&lower, LEVELS));
    let hint = hint.map(|level| format!("did you mean `{level}`?"));
    let hint = hint.unwrap_or_else(|| KNOWN_LEVELS.to_owned());
    Err(format!("`{word}` is not a level\n{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_url() {
        for (url, expected) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("https://c/", "https://c/v1/traces"),
            ("https://c/api/otlp", "https://c/api/otlp"),
            ("http://[::1]:4317", "http://[::1]:4317/v1/traces"),
        ] {
            assert_eq!(endpoint(url), Ok(Endpoint(expected.to_owned())), "{url}");
        }
        for (url, why) in [
            ("c:4318", "has no scheme"),
            ("grpc://c", "has an unknown scheme"),
            ("http://", "has no valid host"),
            ("http://:4318", "has no"),
            ("http://u:p@c", "names a user"),
            ("http://c/v1?key=1", "has a query"),
            ("http://c d/", "has no valid host"),
        ] {
            let error = endpoint(url).expect_err(url);
            let (message, hint) = error.split_once('\n').expect("a hint");
            assert!(message.contains(why), "{url}: {message}");
            assert!(!message.contains("u:p") && !hint.is_empty());
        }
    }

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
            let read = LogLevel(read.parse().expect("tracing reads it"));
            assert_eq!(LogLevel::parse(text), Ok(read), "{text}");
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
        ] {
            let error = LogLevel::parse(text).expect_err(text);
            assert_eq!(error, format!("{message}\n{hint}"));
        }
    }
}
