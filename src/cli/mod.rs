//! The command line: the subcommands of `fencepost`, and their exit codes.
//!
//! Flags, and the environment variables that `--help` lists, become [overrides](config::Overrides)
//! of the file. They keep the name that they were given by, and pass the same checks. No other
//! variable is read: Kubernetes puts `FENCEPOST_PORT=tcp://…` into every pod beside a Service of
//! that name.

mod admin;
mod check;
mod drain;
mod explain;
mod health;
mod marks;
mod operations;
mod overrides;
mod probe;
mod status;
mod tables;
mod usage;

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;

use self::overrides::ConfigArgs;
use crate::build_info::VERSION_AND_COMMIT;
use crate::config::{self, Loader, Problems, Settings, Warning};
use crate::progress::Progress;
use crate::store::InstanceId;
use crate::{app, attach, demo, init, printable};

const EXIT_CODES: &str = "Exit codes:
  0  success
  1  an error, or a problem was found
  2  wrong usage of the command line

Flags override environment variables, which override the file. The file overrides the \
--default-… flags. Only the environment variables that are listed here are read.";

/// A reverse proxy that checks fencing tokens in front of services that cannot.
#[derive(Debug, Parser)]
#[command(name = "fencepost", version = VERSION_AND_COMMIT, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Invocation {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the proxy in front of a service.
    ///
    /// Without a file, `fencepost serve --upstream URL` fences POST, PUT, PATCH and DELETE, and
    /// passes on safe methods only. Each path is a resource of its own: a DELETE that removes a
    /// directory is not checked for what is in it. The marks are stored in ./fencepost.db.
    #[command(after_help = EXIT_CODES)]
    Serve(ConfigArgs),
    /// Run a command whose requests get the holder's token, and end it once the token is stale.
    ///
    /// For clients that cannot be changed. COMMAND sends its requests to a loopback port; each gets
    /// X-Fencing-Token and goes to a fencepost, which checks it. Once that refuses one as stale,
    /// nothing more is forwarded and COMMAND is ended. Without COMMAND the port serves the other
    /// containers of a pod.
    #[command(after_help = attach::AFTER_HELP)]
    Attach(Box<attach::AttachArgs>),
    /// Show what fencepost does: a zombie with and without it, an overtaking write, a crash, and a redo.
    Demo,
    /// Write a first configuration, in observe mode, with routes guessed from an access log.
    ///
    /// Comments give the reason for each route, and list what was left out. Without a log or a
    /// document, each path is a resource of its own.
    #[command(after_help = EXIT_CODES)]
    Init(init::InitArgs),
    /// Check a configuration file and print every problem with its line.
    #[command(after_help = "Exits with 1 if there is an error, with 0 if there are warnings only.")]
    #[command(mut_arg("file", |file| file.required_unless_present("config").help(check::FILE)))]
    Check(check::CheckArgs),
    /// Show which route takes a request, by which key, and which spellings are treated otherwise.
    ///
    /// Nothing is started and nothing is sent. A client certificate is not shown, so routes with
    /// `require_client` refuse it.
    #[command(
        after_help = "Exits with 0 whatever the answer is, with 1 if the configuration has errors."
    )]
    Explain(explain::ExplainArgs),
    /// Print the JSON Schema of the configuration file.
    Schema,
    /// Update the database's schema, and compare the routes with the recorded ones.
    ///
    /// The routes name the marks. Prints each example of a request that would get another key than
    /// recorded, or would no longer be fenced, and exits with 1 then: proxies with such routes do
    /// not start until the routes are accepted. Without a configuration file or --resource, no
    /// routes are compared.
    #[command(after_help = EXIT_CODES)]
    Migrate(MigrateArgs),
    /// List, show and change marks through the admin port of a running fencepost.
    Marks(marks::MarksArgs),
    /// List operations whose outcome is unknown, and record what came of them.
    Operations(operations::OperationsArgs),
    /// Show how a running fencepost is doing, and what waits or is unknown there.
    Status(status::StatusArgs),
    /// Ask a running fencepost whether it is ready or alive, as a health check.
    #[command(after_help = "Exits with 0 if it is. Otherwise prints the reason and exits with 1.")]
    Health(health::HealthArgs),
    /// Prove that the fence is up: write with a current and a stale token, and try to go around it.
    ///
    /// Run it where clients run, through the same Service. It writes to a path whose key nobody
    /// else uses, and expects that the current token passes, that the stale one is refused, and
    /// that the upstream does not answer without the proxy.
    #[command(
        after_help = "Exits with 0 if the fence held, with 1 if it did not or could not be tried."
    )]
    Probe(probe::ProbeArgs),
    /// Tell a running fencepost to drain and keep running, as a preStop hook.
    Drain(drain::DrainArgs),
    /// Print the completions of this command line for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
struct MigrateArgs {
    #[command(flatten)]
    migration: app::Migration,
    #[command(flatten)]
    configuration: ConfigArgs,
}

impl Invocation {
    /// Reads the command line and the environment. Ends the process on `--help`, `--version` (0)
    /// and on wrong usage (2).
    #[must_use]
    pub fn parse() -> Self {
        Self::try_parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn try_parse<I, T>(args: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<std::ffi::OsString>,
    {
        let words: Vec<std::ffi::OsString> = args.into_iter().map(Into::into).collect();
        let parsed = command_line().try_get_matches_from(&words);
        let parsed = parsed.and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let words: Vec<_> = words
                .iter()
                .map(|word| word.to_string_lossy().into())
                .collect();
            usage::with_tip(error, &words)
        })
    }

    /// Runs the command. Boxed, so that the binary reuses this crate's machine code and compiles
    /// none of its own.
    pub fn run(self) -> Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>> {
        Box::pin(self.execute())
    }

    async fn execute(self) -> anyhow::Result<ExitCode> {
        for warning in usage::misspelt_variables(std::env::vars_os().map(|(name, _)| name)) {
            eprintln!("warning: {warning}");
        }
        // Whether all is well, and the text to print.
        let (good, text) = match self.command {
            CliCommand::Attach(args) => return attach::run(*args).await,
            CliCommand::Serve(args) => (serve(args.loader()).await?, String::new()),
            CliCommand::Demo => (demo::run().await?, String::new()),
            CliCommand::Init(args) => (true, init::run(&args)?),
            CliCommand::Check(args) => check::run(args).await?,
            CliCommand::Explain(args) => explain::run(args)?,
            CliCommand::Migrate(args) => (migrate(args).await?, String::new()),
            CliCommand::Health(args) => health::run(args).await?,
            CliCommand::Probe(args) => probe::run(&args).await?,
            CliCommand::Marks(args) => (true, marks::run(args).await?),
            CliCommand::Operations(args) => (true, operations::run(args).await?),
            CliCommand::Status(args) => (true, status::run(args).await?),
            CliCommand::Drain(args) => (true, drain::run(&args).map(|()| String::new())?),
            CliCommand::Schema => (
                true,
                serde_json::to_string_pretty(&config::schema())? + "\n",
            ),
            CliCommand::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut command_line(), "fencepost", &mut text);
                (true, String::from_utf8(text)?)
            }
        };
        print(&text)?;
        Ok(if good {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// The command line. `--help` names environment variables without their values, which may be
/// secrets.
pub fn command_line() -> clap::Command {
    fn hide_values(command: clap::Command) -> clap::Command {
        command
            .mut_args(|arg| arg.hide_env_values(true))
            .mut_subcommands(hide_values)
    }
    hide_values(Invocation::command())
}

/// `fencepost serve`. False: the configuration has errors.
async fn serve(loader: Loader) -> anyhow::Result<bool> {
    let Some((settings, warnings)) = loaded(&loader) else {
        return Ok(false);
    };
    let instance = InstanceId::from_bits(rand::random());
    let log = app::LogOutput::start(&settings.log, Some(instance))?;
    app::serve(loader, settings, warnings, log, instance).await?;
    Ok(true)
}

/// `fencepost migrate`.
async fn migrate(args: MigrateArgs) -> anyhow::Result<bool> {
    let loader = args.configuration.without_upstream();
    let routes_given = loader.file.is_some() || loader.overrides.name_a_key();
    let Some((settings, _)) = loaded(&loader) else {
        return Ok(false);
    };
    let _log = app::LogOutput::start(&settings.log, None)?;
    let progress = Progress::start("migrating", None)?;
    let bar = progress.bar.clone();
    let say = |line: String| {
        // A closed standard output is not an error.
        let _ = bar.suspend(|| writeln!(std::io::stdout(), "{}", printable::lines(&line)));
    };
    let work = app::migrate(&settings, &args.migration, routes_given, say);
    let done = progress.or_interrupted(work).await;
    done.context("interrupted: the step under way may be done or not; run it again")??;
    Ok(true)
}

/// The checked configuration; or `None`, and its problems on standard error.
fn loaded(loader: &Loader) -> Option<(Settings, Vec<Warning>)> {
    let report = |problems: Problems| {
        let end = "fencepost: the configuration has errors; nothing was started";
        // If standard error is gone, there is no other place to report that.
        let _ = writeln!(std::io::stderr(), "{problems}\n{end}");
    };
    loader.load().map_err(report).ok()
}

/// An answer as JSON, or as text; safe for a terminal, and with a line end.
fn shown<T: Serialize>(
    json: bool,
    answer: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    if !json {
        return Ok(printable::lines(&text(answer)));
    }
    let json = serde_json::to_string_pretty(answer).context("it can be written as JSON")?;
    Ok(format!("{}\n", printable::json(&json)))
}

/// Prints to the standard output. A closed pipe (`| head`) is not an error, but false.
fn print(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to the standard output"),
    }
}

/// The text of a file; `-` is the standard input.
fn read_input(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        return std::io::read_to_string(std::io::stdin());
    }
    std::fs::read_to_string(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command_line().debug_assert();
    }

    /// All commands, as clap shows them.
    fn commands() -> Vec<clap::Command> {
        let mut root = command_line();
        root.build();
        let mut all = vec![root];
        let mut next = 0;
        while let Some(command) = all.get(next) {
            let under: Vec<_> = command.get_subcommands().cloned().collect();
            all.extend(under);
            next += 1;
        }
        all
    }

    #[test]
    fn help_shows_no_value_of_a_variable() {
        let mut seen = 0;
        for command in commands() {
            for arg in command
                .get_arguments()
                .filter(|arg| arg.get_env().is_some())
            {
                let (name, id) = (command.get_name(), arg.get_id());
                assert!(arg.is_hide_env_values_set(), "{name}: {id}");
                seen += 1;
            }
        }
        assert!(seen > 50, "{seen}");
    }

    /// clap wraps each line of a text by itself. A line that is too long in a text with breaks of
    /// its own leaves single words behind.
    #[test]
    fn help_is_wrapped_once() {
        for mut command in commands() {
            let texts = [command.get_long_about(), command.get_after_help()];
            let of_args = command.get_arguments().map(clap::Arg::get_long_help);
            let texts = texts.into_iter().chain(of_args).flatten();
            let texts: Vec<String> = texts.map(ToString::to_string).collect();
            for width in [80, 100] {
                command = command.term_width(width);
                let help = command.render_long_help().to_string();
                let broken = texts.iter().flat_map(|text| text.split("\n\n"));
                for line in broken
                    .filter(|text| text.contains('\n'))
                    .flat_map(str::lines)
                {
                    let whole = help.lines().any(|shown| shown.trim() == line.trim());
                    let name = command.get_name();
                    assert!(whole, "{name} --help, {width} columns: {line}\n{help}");
                }
                // clap never wraps the line of the usage.
                for line in help.lines().filter(|line| !line.starts_with("Usage: ")) {
                    assert!(line.chars().count() <= width, "{width} columns: {line}");
                }
            }
        }
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
        let help = Invocation::command().render_help().to_string();
        assert!(help.contains("Exit codes:"), "{help}");
    }
}
