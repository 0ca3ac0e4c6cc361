//! The command line: what `fencepost` can be told to do, and with what exit code it ends.
//!
//! Flags and the environment variables that `--help` lists become [`Overrides`] of the file, each with the
//! name it came by, so that they pass the same checks. No other variable is read: Kubernetes puts
//! `FENCEPOST_PORT=tcp://…` into every pod beside a Service of that name.

mod admin;
mod check;
mod drain;
mod health;
mod log_writer;
mod logging;
mod marks;
mod overrides;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{self, Loader, Overrides, Problems, Settings, Warning};
use crate::{app, demo, printable};

pub use overrides::OverrideArgs;

const EXIT_CODES: &str = "Exit codes:
  0  fine
  1  an error, or a problem was found
  2  wrong usage of the command line

A flag stands above its environment variable, which stands above the file; the --default-… flags
stand below it. Only the variables listed with the flags are read.";

/// A sidecar reverse proxy that checks fencing tokens for services that cannot.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fence a service.
    ///
    /// With no file at all, `fencepost serve --upstream URL` fences every unsafe request, one resource
    /// per path, with the marks in ./fencepost.db.
    #[command(after_help = EXIT_CODES)]
    Serve(ServeArgs),
    /// Play the stories: a zombie with and without fencepost, the overtaking race, a crash.
    Demo(DemoArgs),
    /// Check a configuration file, and print every problem with its line.
    #[command(after_help = "Exits with 1 if there is an error, with 0 if there are warnings only.")]
    Check(CheckArgs),
    /// Print the JSON Schema of the configuration file.
    Schema,
    /// Bring the database's schema up to date, and compare the routes with those on record.
    ///
    /// The routes name the marks. A request that gets another key than on record, or is no longer
    /// fenced, is listed with both keys; proxies with such routes do not start until they are accepted.
    Migrate(MigrateArgs),
    /// List, read and change marks, through the admin port of a running fencepost.
    Marks(marks::MarksArgs),
    /// Ask a running fencepost whether it is ready, or alive: a health check.
    #[command(after_help = "Exits with 0 if it is, and with 1 and the reason if not.")]
    Health(health::HealthArgs),
    /// Tell a running fencepost to drain and stay: a preStop hook.
    Drain(drain::DrainArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// The configuration file.
    #[arg(
        long,
        value_name = "FILE",
        env = "FENCEPOST_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Leave everything running at the end, to be tried by hand.
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The configuration file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    overrides: OverrideArgs,
}

#[derive(Debug, Args)]
struct MigrateArgs {
    /// The configuration file.
    #[arg(
        long,
        value_name = "FILE",
        env = "FENCEPOST_CONFIG",
        hide_env_values = true
    )]
    config: Option<PathBuf>,
    /// Take the file's routes in place of those on record, whatever they change. Marks under the old
    /// keys hold nobody back any more: be sure that no older holder is left. Stop every proxy of the
    /// namespace before, and start them after. Refused while one of them is alive; waits until what
    /// they have left in flight has settled.
    #[arg(long)]
    accept_new_keys: bool,
    /// Take the file of an embedded store as it is, where a start refuses it because commits are lost. Marks
    /// that they had raised are lower now: be sure that no older holder is left. Waits before, for
    /// `store.lease`, twice `barrier.settle` and more, until what they have left in flight has
    /// settled. Interrupted, it changes nothing.
    #[arg(long)]
    accept_lost_marks: bool,
    /// Postgres: give this role what `serve` needs on the tables, and no more, so that proxies can run under a
    /// role that may not change the schema.
    #[arg(long, value_name = "ROLE")]
    grant_to: Option<String>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

/// What the command line says to do.
#[derive(Debug)]
pub struct Invocation {
    command: Command,
    overrides: Overrides,
}

impl Invocation {
    /// Reads the command line and the environment. Ends the process on `--help`, `--version` (0) and on wrong
    /// usage (2).
    #[must_use]
    pub fn parse() -> Self {
        Self::try_parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn try_parse<I, T>(args: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<std::ffi::OsString> + Clone,
    {
        let matches = Cli::command().try_get_matches_from(args)?;
        let command = Cli::from_arg_matches(&matches)?.command;
        let mut overrides = Overrides::default();
        if let Some((_, matches)) = matches.subcommand() {
            overrides::gather(matches, &mut overrides);
        }
        Ok(Self { command, overrides })
    }

    /// Does it. Boxed, so that the program reuses this crate's machine code and compiles none of its own.
    #[must_use]
    pub fn run(self) -> Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>> {
        Box::pin(self.execute())
    }

    async fn execute(self) -> anyhow::Result<ExitCode> {
        let Self {
            command,
            mut overrides,
        } = self;
        if std::io::stderr().is_terminal() {
            overrides.fall_back("log.format", "text", "");
        }
        match command {
            Command::Serve(args) => {
                let loader = Loader {
                    file: args.config,
                    overrides,
                };
                let Some((settings, warnings)) = loaded(&loader) else {
                    return Ok(ExitCode::FAILURE);
                };
                let logging = logging::start(&settings.log)?;
                app::serve(loader, settings, warnings, logging.output.clone()).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Demo(args) => {
                let good = demo::run(demo::DemoArgs { keep: args.keep }).await?;
                Ok(if good {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                })
            }
            Command::Check(args) => Ok(check::run(&args.file, overrides, &mut std::io::stdout())?),
            Command::Schema => {
                let schema = serde_json::to_string_pretty(&config::schema())?;
                writeln!(std::io::stdout(), "{schema}")?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Migrate(args) => {
                // Nothing is forwarded: a store and a namespace on the command line are enough.
                overrides.fall_back("upstream.url", "http://localhost", "");
                let loader = Loader {
                    file: args.config,
                    overrides,
                };
                let Some((settings, _)) = loaded(&loader) else {
                    return Ok(ExitCode::FAILURE);
                };
                let _logging = logging::start(&settings.log)?;
                let grant_to = args.grant_to.as_deref();
                let say = |line: String| {
                    // There is nobody left to say it to.
                    let _ = writeln!(std::io::stdout(), "{}", printable::lines(&line));
                };
                let accept = app::Accept {
                    new_keys: args.accept_new_keys,
                    lost_marks: args.accept_lost_marks,
                };
                app::migrate(&settings, accept, grant_to, say).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Marks(args) => {
                marks::run(args).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Health(args) => Ok(if health::run(args).await? {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }),
            Command::Drain(args) => {
                drain::run(&args)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// The checked configuration; or `None`, and its problems on standard error.
fn loaded(loader: &Loader) -> Option<(Settings, Vec<Warning>)> {
    let tell = |problems: &Problems| {
        let mut stderr = std::io::stderr().lock();
        // There is nowhere left to say that standard error is gone.
        let _ = writeln!(stderr, "{problems}");
        let _ = writeln!(
            stderr,
            "fencepost: the configuration has errors; nothing was started"
        );
    };
    loader.load().map_err(|problems| tell(&problems)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_and_help_have_their_exit_codes() {
        for (args, code) in [
            (vec!["fencepost", "--version"], 0),
            (vec!["fencepost", "serve", "--help"], 0),
            (vec!["fencepost"], 2),
            (vec!["fencepost", "server"], 2),
            (vec!["fencepost", "serve", "--lisen", "x"], 2),
        ] {
            let error = Invocation::try_parse(args.clone()).expect_err("it ends here");
            assert_eq!(error.exit_code(), code, "{args:?}");
        }
    }

    #[test]
    fn help_lists_the_exit_codes() {
        let help = Cli::command().render_help().to_string();
        assert!(help.contains("Exit codes:"), "{help}");
    }
}
