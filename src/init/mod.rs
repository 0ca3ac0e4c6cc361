//! `fencepost init`: writes a first configuration, with routes that are guessed from an access log
//! or an `OpenAPI` document.
//!
//! [`access_log`] and [`openapi`] read the requests, [`survey`] counts them by the forms of their
//! paths, and [`guess`] makes routes of these.

mod access_log;
mod guess;
mod openapi;
mod survey;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressFinish};

use self::survey::Survey;
use crate::config::{self, Overrides};
use crate::printable;

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// The arguments of [`run`].
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The API to protect: http://host:port, https://host, h2c://host:port or unix:/path.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Access log of the API: lines in the common or combined format, or JSON with the fields of
    /// nginx, Envoy, Caddy or Traefik. `-` is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "openapi")]
    access_log: Option<PathBuf>,
    /// OpenAPI document of the API, JSON or YAML. `-` is the standard input.
    #[arg(long, value_name = "FILE")]
    openapi: Option<PathBuf>,
    /// The file to write; `-` is the standard output.
    #[arg(long, value_name = "FILE", default_value = "fencepost.yaml")]
    output: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
}

/// Writes the file, and returns the text for the standard output.
pub fn run(args: &InitArgs) -> anyhow::Result<String> {
    let mut overrides = Overrides::default();
    overrides.set("upstream.url", &args.upstream, "--upstream");
    config::parse("", &overrides)?;
    let is_printed = args.output == Path::new("-");
    // Before a long log is read.
    ensure!(
        is_printed || args.force || args.output.symlink_metadata().is_err(),
        "{} exists: use --force, or name another --output",
        args.output.display()
    );
    let mut survey = Survey::default();
    let source = args.survey(&mut survey)?;
    let upstream = serde_json::to_string(&args.upstream)?;
    let text = guess::file(&printable::json(&upstream), source.as_deref(), &survey)?;
    config::parse(&text, &Overrides::default())?;
    if is_printed {
        return Ok(text);
    }
    let output = printable::line(&args.output.to_string_lossy()).into_owned();
    fs::write(&args.output, text).with_context(|| format!("{output} cannot be written"))?;
    Ok(format!(
        "{output} is written. Read it, then: fencepost check {output}\n"
    ))
}

impl InitArgs {
    /// Reads the log or the document. Returns its name.
    fn survey(&self, survey: &mut Survey) -> anyhow::Result<Option<String>> {
        let Some(file) = self.access_log.as_ref().or(self.openapi.as_ref()) else {
            return Ok(None);
        };
        let (name, input) = if file == Path::new("-") {
            let input = io::stdin().as_fd().try_clone_to_owned()?;
            ("standard input".to_owned(), File::from(input))
        } else {
            let name = printable::line(&file.to_string_lossy()).into_owned();
            let input = File::open(file).with_context(|| name.clone())?;
            (name, input)
        };
        // A pipe has none.
        let size = Some(input.metadata()?.len()).filter(|size| *size > 0);
        let bar = ProgressBar::with_draw_target(size, ProgressDrawTarget::stderr());
        let bar = bar.with_finish(ProgressFinish::AndClear);
        let input = BufReader::with_capacity(CHUNK, bar.wrap_read(input));
        self.read(input, survey).with_context(|| name.clone())?;
        let count = survey.requests;
        let unit = self.access_log.as_ref().map_or("operation", |_| "request");
        let many = if count == 1 { "" } else { "s" };
        Ok(Some(format!("{name}, {} {unit}{many}", HumanCount(count))))
    }

    fn read(&self, mut input: impl BufRead, survey: &mut Survey) -> anyhow::Result<()> {
        ensure!(
            !input.fill_buf()?.starts_with(b"\x1f\x8b"),
            "it is compressed with gzip: zcat FILE | fencepost init … -"
        );
        match self.access_log {
            Some(_) => access_log::read(input, survey),
            None => openapi::read(input, survey),
        }
    }
}
