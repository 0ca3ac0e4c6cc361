//! The flags and environment variables that override the file, and those that only replace its
//! defaults.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use crate::config::Overrides;

/// Flags that override the file. [`gather`] reads the fields by their names.
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Args, Default)]
#[command(next_help_heading = "Overrides")]
pub struct OverrideArgs {
    /// URL of the upstream to protect: http://host:port, https://host, h2c://host:port or
    /// unix:/path.
    #[arg(long, value_name = "URL", env = "FENCEPOST_UPSTREAM")]
    upstream: Option<String>,
    /// Address for clients: host:port or unix:/path [default: 127.0.0.1:7080]
    #[arg(long, value_name = "ADDR", env = "FENCEPOST_LISTEN")]
    listen: Option<String>,
    /// Database for the marks: sqlite:PATH or postgres://… [default: sqlite:fencepost.db]
    ///
    /// Every user of the machine can see a password on a command line. Use the environment
    /// variable, or `store.url_file` in the file.
    #[arg(long, value_name = "URL", env = "FENCEPOST_STORE")]
    store: Option<String>,
    /// Namespace of the marks: proxies with the same namespace share them. Required with Postgres.
    #[arg(long, value_name = "NAME", env = "FENCEPOST_NAMESPACE")]
    namespace: Option<String>,
    /// How long the upstream may work on a request after its last byte [default: 30s]
    #[arg(long, value_name = "DURATION", env = "FENCEPOST_SETTLE")]
    settle: Option<String>,
    /// Address for probes, metrics and the admin API: host:port, unix:/path or off [default:
    /// 127.0.0.1:7081]
    #[arg(long, value_name = "ADDR", env = "FENCEPOST_ADMIN_LISTEN")]
    admin_listen: Option<String>,
    /// Address for clients if neither --listen nor the file has one. Container images set it.
    #[arg(long, value_name = "ADDR", env = "FENCEPOST_DEFAULT_LISTEN")]
    default_listen: Option<String>,
    /// Admin address if neither --admin-listen nor the file has one. Container images set it.
    #[arg(long, value_name = "ADDR", env = "FENCEPOST_DEFAULT_ADMIN_LISTEN")]
    default_admin_listen: Option<String>,
    /// File with the bearer token for admin writes.
    #[arg(long, value_name = "FILE", env = "FENCEPOST_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<String>,
    /// Key of the protected resource, if the file has no routes [default: {path}]
    #[arg(long, value_name = "TEMPLATE", env = "FENCEPOST_RESOURCE")]
    resource: Option<String>,
    /// Mode, if the file has no routes: enforce, observe or bypass [default: enforce]
    #[arg(long, value_name = "MODE", env = "FENCEPOST_MODE")]
    mode: Option<String>,
    /// json or text [default: text on a terminal, otherwise json]
    #[arg(long, value_name = "FORMAT", env = "FENCEPOST_LOG_FORMAT")]
    log_format: Option<String>,
    /// error, warn, info, debug, trace or off; also per module [default: info]
    #[arg(long, value_name = "LEVEL", env = "FENCEPOST_LOG_LEVEL")]
    log_level: Option<String>,
}

/// Without the values: one of them may hold a password.
impl std::fmt::Debug for OverrideArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OverrideArgs(…)")
    }
}

/// The flags, and the fields of the file that they override.
const FIELDS: [(&str, &str); 11] = [
    ("upstream", "upstream.url"),
    ("listen", "listen"),
    ("store", "store.url"),
    ("namespace", "store.namespace"),
    ("settle", "barrier.settle"),
    ("admin_listen", "admin.listen"),
    ("admin_token_file", "admin.token_file"),
    ("resource", "resource"),
    ("mode", "mode"),
    ("log_format", "log.format"),
    ("log_level", "log.level"),
];

/// The flags that replace defaults. The file overrides them.
const BELOW: [(&str, &str); 2] = [
    ("default_listen", "listen"),
    ("default_admin_listen", "admin.listen"),
];

/// Takes the values that were given, with the name of each flag or variable.
pub(super) fn gather(matches: &ArgMatches, overrides: &mut Overrides) {
    // Not every command has these flags.
    let given = |flag| matches.try_get_one::<String>(flag).ok().flatten();
    let origin = |flag: &str| {
        if matches.value_source(flag) == Some(ValueSource::EnvVariable) {
            format!("FENCEPOST_{}", flag.to_ascii_uppercase())
        } else {
            format!("--{}", flag.replace('_', "-"))
        }
    };
    for (flag, path) in FIELDS {
        let Some(text) = given(flag) else {
            continue;
        };
        overrides.set(path, text, &origin(flag));
    }
    for (flag, path) in BELOW {
        if let Some(text) = given(flag) {
            overrides.fall_back(path, text, &origin(flag));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct OverridesAlone {
        #[command(flatten)]
        overrides: OverrideArgs,
    }

    #[test]
    fn every_flag_has_its_field_and_its_variable() {
        let command = OverridesAlone::command();
        let flags: Vec<_> = command
            .get_arguments()
            .filter(|arg| arg.get_env().is_some())
            .collect();
        let fields = || FIELDS.iter().chain(&BELOW);
        assert_eq!(flags.len(), fields().count());
        for flag in flags {
            let id = flag.get_id().as_str();
            assert!(fields().any(|(known, _)| *known == id), "{id} is not read");
            let variable = flag
                .get_env()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            assert_eq!(variable, format!("FENCEPOST_{}", id.to_ascii_uppercase()));
        }
    }

    #[test]
    fn the_file_stands_above_a_default_and_below_a_flag() {
        for (flags, file, listens) in [
            (&[][..], "", "127.0.0.1:7081"),
            (
                &["--default-admin-listen", "0.0.0.0:7081"],
                "",
                "0.0.0.0:7081",
            ),
            (
                &["--default-admin-listen", "0.0.0.0:7081"],
                "admin: { listen: off }",
                "off",
            ),
            (
                &["--default-admin-listen", "0.0.0.0:7081"],
                "admin: { ready_follows_store: true }",
                "0.0.0.0:7081",
            ),
            (
                &[
                    "--default-admin-listen",
                    "0.0.0.0:7081",
                    "--admin-listen",
                    "unix:/run/a",
                ],
                "admin: { listen: off }",
                "unix:/run/a",
            ),
        ] {
            let words = ["x", "--upstream", "http://a"].iter().chain(flags);
            let mut overrides = Overrides::default();
            gather(
                &OverridesAlone::command().get_matches_from(words),
                &mut overrides,
            );
            let (settings, _) = crate::config::parse(file, &overrides).expect("it is sound");
            let listen = match settings.admin.listen {
                None => "off".to_owned(),
                Some(crate::config::Listen::Tcp(address)) => address,
                Some(crate::config::Listen::Unix(path)) => format!("unix:{}", path.display()),
            };
            assert_eq!(listen, listens, "{flags:?} {file}");
        }
    }

    #[test]
    fn a_wrong_value_is_told_by_the_flag_it_came_by() {
        let matches = OverridesAlone::command().get_matches_from([
            "x",
            "--listen",
            "7080",
            "--upstream",
            "http://a",
        ]);
        let mut overrides = Overrides::default();
        gather(&matches, &mut overrides);
        let problems = crate::config::parse("", &overrides).expect_err("no host");
        assert_eq!(problems.errors(), 1);
        assert!(
            problems
                .to_string()
                .starts_with("error: --listen: listen: "),
            "{problems}"
        );
    }
}
