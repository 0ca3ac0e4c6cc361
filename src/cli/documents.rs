//! `fencepost completions` and `fencepost man`: what a package installs beside the program.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write a page per command into this directory, which must exist. [default: the page of
    /// fencepost itself, to the standard output]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Prints the completions of the program for a shell.
pub(super) fn completions(args: &CompletionsArgs, mut program: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut program, "fencepost", &mut text);
    std::io::stdout().write_all(&text)?;
    Ok(())
}

/// Prints the manual page of the program, or writes all of them.
pub(super) fn man(args: &ManArgs, program: Command) -> anyhow::Result<()> {
    let Some(folder) = &args.output else {
        let mut text = Vec::new();
        clap_mangen::Man::new(program).render(&mut text)?;
        std::io::stdout().write_all(&text)?;
        return Ok(());
    };
    clap_mangen::generate_to(program.disable_help_subcommand(true), folder)
        .with_context(|| format!("--output {}", folder.display()))
}
