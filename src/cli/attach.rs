//! `fencepost attach`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Method, Request, Uri};

use super::admin::read_token;
use super::usage::path_and_query;
use crate::app::LogOutput;
use crate::attach::{self, AttachOptions};
use crate::config::{self, Overrides};
use crate::proxy::headers::TARGET;

/// The end of `--help`. Paragraphs have no line breaks of their own, because clap wraps them.
pub(super) const AFTER_HELP: &str = "COMMAND finds the address in FENCEPOST_URL, such as \
http://127.0.0.1:40123. Behind a Unix socket, FENCEPOST_SOCKET has its path. NO_PROXY is changed so \
that no proxy setting leads around this port. COMMAND gets SIGHUP (except with --token-file, which \
is then read again), SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2. Processes that it leaves behind \
are ended too.

Exit codes:
  that of COMMAND, or 128 and the number of the signal that ended it, except:
  1    an error before COMMAND
  2    wrong usage of the command line
  65   COMMAND exited with 0, but the fencepost refused its token
  69   a claim was not granted; COMMAND was not started
  75   the token is stale: a newer holder was found, and COMMAND was ended
  126  COMMAND cannot be run
  127  COMMAND was not found

Example:
  etcdctl lock orders -- fencepost attach --to http://orders:7080 \\
      --token-env ETCD_LOCK_REV -- ./nightly.sh";

#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// The fencepost that the requests go to: http://host:port, https://host or unix:/path.
    #[arg(long, value_name = "URL")]
    to: String,
    #[command(flatten)]
    options: AttachOptions,
    /// Claim this before COMMAND starts, so that no older holder's request is in flight by then: a
    /// method and a path, `PUT /orders/7`. May be given several times.
    #[arg(long = "claim", value_name = "REQUEST", value_parser = request)]
    claims: Vec<String>,
    /// Where the fencepost takes claims (`claim.path` of its configuration).
    #[arg(long, value_name = "PATH", default_value = "/.well-known/fencing/claim", value_parser = path_and_query)]
    claim_path: Uri,
    /// The file with the bearer token for claims (`claim.token_file` of its configuration).
    #[arg(long, value_name = "FILE")]
    claim_token_file: Option<PathBuf>,
    /// Where to listen: a loopback address, which every user of the machine reaches, or unix:/path
    /// with mode 0600. Without COMMAND the default is 127.0.0.1:7079, and with it a free port.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS to the fencepost")]
struct TlsArgs {
    /// The CAs for the fencepost's certificate, instead of the system's (PEM).
    #[arg(long = "ca-file", value_name = "FILE")]
    ca: Option<String>,
    /// The client certificate, followed by its chain (PEM).
    #[arg(long = "cert-file", value_name = "FILE", requires = "key")]
    cert: Option<String>,
    /// Its key (PEM).
    #[arg(long = "key-file", value_name = "FILE", requires = "cert")]
    key: Option<String>,
}

/// A method and a path.
fn request(text: &str) -> Result<String, String> {
    let wrong = "write a method, one space and a path, such as `PUT /orders/7`";
    let (method, path) = text.split_once(' ').ok_or(wrong)?;
    Method::from_bytes(method.as_bytes()).map_err(|_| wrong)?;
    path_and_query(path)?;
    Ok(text.to_owned())
}

impl AttachArgs {
    fn overrides(&self) -> Overrides {
        let (listen, format) = if self.options.command.is_empty() {
            ("127.0.0.1:7079", "json")
        } else {
            ("127.0.0.1:0", "text")
        };
        let listen = self.listen.as_deref().unwrap_or(listen);
        let mut overrides = Overrides::default();
        overrides.set("upstream.url", &self.to, "--to");
        overrides.set("listen", listen, "--listen");
        overrides.set("log.format", format, "");
        overrides.set("admin.listen", "off", "");
        // Everyone who may connect writes with the token.
        if listen.starts_with("unix:") {
            overrides.set("listen_mode", "0600", "");
        }
        let tls = &self.tls;
        for (field, value, flag) in [
            ("ca_file", &tls.ca, "--ca-file"),
            ("cert_file", &tls.cert, "--cert-file"),
            ("key_file", &tls.key, "--key-file"),
        ] {
            if let Some(value) = value {
                overrides.set(&format!("upstream.tls.{field}"), value, flag);
            }
        }
        overrides
    }

    fn claims(&self) -> anyhow::Result<Vec<Request<()>>> {
        let flag = "--claim-token-file";
        let authorization = self.claim_token_file.as_deref().map(|file| {
            let token = read_token(flag, file)?;
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).context(flag)?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let authorization = authorization.transpose()?;
        let claims = self.claims.iter().map(|target| {
            let mut claim = Request::post(self.claim_path.clone()).header(TARGET, target);
            if let Some(authorization) = &authorization {
                claim = claim.header(AUTHORIZATION, authorization);
            }
            claim.body(()).context("--claim")
        });
        claims.collect()
    }
}

/// Runs the command, and returns its exit code.
pub(super) async fn run(args: AttachArgs) -> anyhow::Result<ExitCode> {
    let (settings, _) = match config::parse("", &args.overrides()) {
        Ok(parsed) => parsed,
        Err(problems) => {
            writeln!(std::io::stderr(), "{problems}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let claims = args.claims()?;
    let _log = LogOutput::start(&settings.log, None)?;
    let code = attach::run(args.options, claims, settings).await?;
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct AttachAlone {
        #[command(flatten)]
        args: AttachArgs,
    }

    /// An older request, or a crash of a fencepost, may hold a newer token up.
    #[test]
    fn sending_again_outlasts_the_default_waits_of_a_fencepost() {
        let args = AttachAlone::parse_from(["x", "--to", "http://a", "--token", "1"]).args;
        let (settings, _) = config::parse("", &args.overrides()).expect("it is sound");
        let (store, route) = (&settings.store, &settings.upstream);
        let held_up = store.lease.0 + route.undelivered.0 + settings.barrier.settle.0;
        assert!(
            args.options.retry_for > held_up + Duration::from_secs(30),
            "{held_up:?}"
        );
    }
}
