//! The configuration of a command: a file, the flags and environment variables that override it,
//! and those that only replace its defaults.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};

use crate::config::{Loader, Overrides};

/// The flag that names a configuration file.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigFile {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "FENCEPOST_CONFIG")]
    pub config: Option<PathBuf>,
}

/// A configuration file, and the values of [`FLAGS`], which override it.
#[derive(Clone, Debug, Default)]
pub struct ConfigArgs(pub Loader);

impl ConfigArgs {
    /// The log is text on a terminal, unless a format is chosen.
    pub fn loader(mut self) -> Loader {
        if std::io::stderr().is_terminal() {
            self.0.overrides.fall_back("log.format", "text", "");
        }
        self.0
    }

    /// For a command that forwards nothing, and needs no upstream.
    pub fn without_upstream(self) -> Loader {
        let mut loader = self.loader();
        let overrides = &mut loader.overrides;
        overrides.fall_back("upstream.url", "http://localhost", "");
        loader
    }
}

/// A flag, the variable that stands for it, and what its value does.
struct Flag {
    name: &'static str,
    variable: &'static str,
    value: &'static str,
    help: &'static str,
    /// The field of the file.
    field: &'static str,
    apply: fn(&mut Overrides, &str, &str, &str),
}

/// Each line: the flag, its variable, its value, what the value does to the field, and the field.
macro_rules! flags {
    ($($(#[doc = $help:literal])+ $name:literal $variable:literal $value:literal $apply:ident $field:literal)+) => {
        const FLAGS: &[Flag] = &[$(Flag {
            name: $name,
            variable: $variable,
            value: $value,
            help: concat!($($help),+),
            field: $field,
            apply: |to, field, text, origin| to.$apply(field, text, origin),
        }),+];
    };
}

flags! {
    /// URL of the upstream to protect: http://host:port, https://host, h2c://host:port or
    /// unix:/path
    "upstream" "FENCEPOST_UPSTREAM" "URL" set "upstream.url"
    /// Address for clients: host:port or unix:/path [default: 127.0.0.1:7080]
    "listen" "FENCEPOST_LISTEN" "ADDR" set "listen"
    /// Database for the marks: sqlite:PATH or postgres://… Every user of the machine can see a
    /// password on a command line: use the variable, or `store.url_file` in the file [default:
    /// sqlite:fencepost.db]
    "store" "FENCEPOST_STORE" "URL" set "store.url"
    /// Namespace of the marks: proxies with the same namespace share them. Required with Postgres
    "namespace" "FENCEPOST_NAMESPACE" "NAME" set "store.namespace"
    /// How long the upstream may work on a request after its last byte [default: 10s]
    "settle" "FENCEPOST_SETTLE" "DURATION" set "barrier.settle"
    /// Address for probes, metrics and the admin API: host:port, unix:/path or off [default:
    /// 127.0.0.1:7081]
    "admin-listen" "FENCEPOST_ADMIN_LISTEN" "ADDR" set "admin.listen"
    /// Address for clients if neither --listen nor the file has one. Container images set it
    "default-listen" "FENCEPOST_DEFAULT_LISTEN" "ADDR" fall_back "listen"
    /// Admin address if neither --admin-listen nor the file has one. Container images set it
    "default-admin-listen" "FENCEPOST_DEFAULT_ADMIN_LISTEN" "ADDR" fall_back "admin.listen"
    /// File with the bearer token for admin writes
    "admin-token-file" "FENCEPOST_ADMIN_TOKEN_FILE" "FILE" set "admin.token_file"
    /// Key of the protected resource, if the file has no routes [default: {path}]
    "resource" "FENCEPOST_RESOURCE" "TEMPLATE" set "resource"
    /// Mode, if the file has no routes: enforce, observe or bypass [default: enforce]
    "mode" "FENCEPOST_MODE" "MODE" set "mode"
    /// json or text [default: text on a terminal, otherwise json]
    "log-format" "FENCEPOST_LOG_FORMAT" "FORMAT" set "log.format"
    /// error, warn, info, debug, trace or off; also per module [default: info]
    "log-level" "FENCEPOST_LOG_LEVEL" "LEVEL" set "log.level"
}

impl Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("The configuration file, as with --config");
        let flags = FLAGS.iter().map(|flag| {
            Arg::new(flag.name)
                .long(flag.name)
                .env(flag.variable)
                .value_name(flag.value)
                .help(flag.help.trim_start())
                .help_heading("Overrides")
        });
        ConfigFile::augment_args(command.arg(file)).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let named = matches.get_one::<PathBuf>("file");
        if named.is_some() && matches.value_source("config") == Some(ValueSource::CommandLine) {
            let twice = "name the configuration file once: FILE or --config FILE\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, twice));
        }
        let mut overrides = Overrides::default();
        for flag in FLAGS {
            let Some(text) = matches.get_one::<String>(flag.name) else {
                continue;
            };
            let origin = match matches.value_source(flag.name) {
                Some(ValueSource::EnvVariable) => flag.variable.to_owned(),
                _ => format!("--{}", flag.name),
            };
            (flag.apply)(&mut overrides, flag.field, text, &origin);
        }
        let file = named.or(matches.get_one("config")).cloned();
        Ok(Self(Loader { file, overrides }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct OverridesAlone {
        #[command(flatten)]
        overrides: ConfigArgs,
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
            let overrides = OverridesAlone::parse_from(words).overrides.0.overrides;
            let (settings, _) = crate::config::parse(file, &overrides).expect("it is sound");
            let listen = match settings.admin.listen.0 {
                None => "off".to_owned(),
                Some(crate::config::Listen::Tcp(address)) => address,
                Some(crate::config::Listen::Unix(path)) => format!("unix:{}", path.display()),
            };
            assert_eq!(listen, listens, "{flags:?} {file}");
        }
    }

    #[test]
    fn a_wrong_value_is_told_by_the_flag_it_came_by() {
        let alone = OverridesAlone::parse_from(["x", "--listen", "7080", "--upstream", "http://a"]);
        let problems = crate::config::parse("", &alone.overrides.0.overrides).expect_err("no host");
        assert_eq!(problems.errors_in_words().len(), 1);
        assert!(
            problems
                .to_string()
                .starts_with("error: --listen: listen: "),
            "{problems}"
        );
    }
}
