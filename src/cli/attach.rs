//! `fencepost attach`.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args};
use http::uri::Authority;
use http::{HeaderValue, Method, Uri};

use super::arguments::path_and_query;
use super::logging;
use crate::attach::{self, AttachClaim, AttachOptions, TokenSource};
use crate::config::{self, Overrides};

/// Exit codes, for `--help`.
pub(super) const EXIT_CODES: &str = "COMMAND finds the address in FENCEPOST_URL, such as http://127.0.0.1:40123 (behind a Unix socket, the
socket is in FENCEPOST_SOCKET). It gets SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2, but no
SIGHUP with --token-file, which is read again then.

Exit codes:
  the one of COMMAND, or 128 and the number of the signal that ended it; otherwise
  1    an error before COMMAND
  2    wrong usage of the command line
  69   a claim was not granted; COMMAND was not started
  75   the token is stale: a newer holder was found, and COMMAND was ended
  124  --max-runtime was over, and COMMAND was ended
  126  COMMAND cannot be run
  127  COMMAND was not found

Example:
  etcdctl lock orders -- fencepost attach --to http://orders:7080 --token-env ETCD_LOCK_REV -- ./nightly.sh";

/// What the configuration says beside the flags: the data path without limits of its own, since
/// those of the client and of the fencepost apply.
const SETTINGS: &str = "\
upstream: {host: rewrite, timeout: 24h, idle_timeout: 4s, http2: false}
store: {url: 'postgres:///never-joined', namespace: attach}
admin: {listen: 'off'}
";

#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true).args(["token", "token_env", "token_file", "token_cmd"]))]
pub(super) struct AttachArgs {
    /// The fencepost that the requests go to: http://host:port, https://host, h2c://host:port or
    /// unix:/path.
    #[arg(long, value_name = "URL")]
    to: String,
    /// The holder's token.
    #[arg(long, value_name = "TOKEN", help_heading = "Token (one of)")]
    token: Option<String>,
    /// The environment variable that has it, such as ETCD_LOCK_REV.
    #[arg(long, value_name = "NAME", help_heading = "Token (one of)")]
    token_env: Option<String>,
    /// The file that has it. It is read at the start, and on SIGHUP only: whoever reads it again by
    /// himself may get the next holder's token.
    #[arg(long, value_name = "FILE", help_heading = "Token (one of)")]
    token_file: Option<PathBuf>,
    /// The shell command that prints it. It runs once.
    #[arg(long, value_name = "COMMAND", help_heading = "Token (one of)")]
    token_cmd: Option<String>,
    /// `X-Fencing-Operation` for requests that have none: a name for what is done, which takes the
    /// place of the request's digest in the idempotency key.
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
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
    /// How long to send a request again that was refused with `retry: same-token`.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    retry_for: Duration,
    /// How long COMMAND may take to end after SIGTERM. Then SIGKILL follows.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// End COMMAND after this time, claims included.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    max_runtime: Option<Duration>,
    /// Write the numbers of this run there at its end, for the node exporter's textfile collector:
    /// a name that ends with `.prom`.
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// Set `http_proxy` for COMMAND too, for programs whose URL cannot be changed: requests for
    /// HOST[:PORT] get the token, and others are refused (name their hosts in NO_PROXY). Without a
    /// value, the host is that of --to. May be given several times.
    #[arg(long, value_name = "HOST", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    http_proxy: Option<Vec<String>>,
    /// Where to listen: a loopback address, or unix:/path. Without COMMAND the default is
    /// 127.0.0.1:7079, and with it a free port.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The mode of the Unix socket.
    #[arg(long, value_name = "MODE")]
    listen_mode: Option<String>,
    /// The CAs for the fencepost's certificate, instead of the system's (PEM).
    #[arg(long, value_name = "FILE", help_heading = "TLS to the fencepost")]
    ca_file: Option<PathBuf>,
    /// The client certificate, followed by its chain (PEM).
    #[arg(
        long,
        value_name = "FILE",
        requires = "key_file",
        help_heading = "TLS to the fencepost"
    )]
    cert_file: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(
        long,
        value_name = "FILE",
        requires = "cert_file",
        help_heading = "TLS to the fencepost"
    )]
    key_file: Option<PathBuf>,
    /// The name in the fencepost's certificate. The default is the host of --to.
    #[arg(long, value_name = "NAME", help_heading = "TLS to the fencepost")]
    server_name: Option<String>,
    /// Format of the log: json or text. The default is text with COMMAND, and json without.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// The command, with its arguments. Without one, the port serves until a signal.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
        let mut overrides = Overrides::default();
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let alone = self.command.is_empty();
        let listen = if alone {
            "127.0.0.1:7079"
        } else {
            "127.0.0.1:0"
        };
        let format = if alone { "json" } else { "text" };
        for (path, value, flag) in [
            ("upstream.url", Some(self.to.clone()), "--to"),
            (
                "upstream.tls.ca_file",
                self.ca_file.as_ref().map(text),
                "--ca-file",
            ),
            (
                "upstream.tls.cert_file",
                self.cert_file.as_ref().map(text),
                "--cert-file",
            ),
            (
                "upstream.tls.key_file",
                self.key_file.as_ref().map(text),
                "--key-file",
            ),
            (
                "upstream.tls.server_name",
                self.server_name.clone(),
                "--server-name",
            ),
            ("listen_mode", self.listen_mode.clone(), "--listen-mode"),
            ("log.format", self.log_format.clone(), "--log-format"),
            ("listen", self.listen.clone(), "--listen"),
        ] {
            if let Some(value) = value {
                overrides.set(path, value, flag);
            }
        }
        overrides.fall_back("listen", listen, "");
        overrides.fall_back("log.format", format, "");
        overrides
    }

    fn source(&self) -> anyhow::Result<TokenSource> {
        let sources = [
            self.token.clone().map(TokenSource::Given),
            self.token_env.clone().map(TokenSource::Variable),
            self.token_file.clone().map(TokenSource::File),
            self.token_cmd.clone().map(TokenSource::Output),
        ];
        // clap admits exactly one.
        let source = sources.into_iter().flatten().next();
        source.context("no source of the token is given")
    }

    fn claims(&self) -> anyhow::Result<Vec<AttachClaim>> {
        let authorization = match &self.claim_token_file {
            Some(path) => {
                let at = || format!("--claim-token-file {}", path.display());
                let text = std::fs::read_to_string(path).with_context(at)?;
                let token = text.lines().next().unwrap_or_default().trim();
                let mut value =
                    HeaderValue::try_from(format!("Bearer {token}")).with_context(at)?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let claims = self.claims.iter().map(|target| {
            Ok(AttachClaim {
                target: HeaderValue::try_from(target).context("--claim")?,
                path: self.claim_path.clone(),
                authorization: authorization.clone(),
            })
        });
        claims.collect()
    }

    /// The authorities that `http_proxy` leads here.
    fn proxied(&self) -> anyhow::Result<Option<Vec<String>>> {
        let Some(hosts) = &self.http_proxy else {
            return Ok(None);
        };
        let hosts = hosts.iter().map(|host| {
            if !host.is_empty() {
                let authority: Authority = host
                    .parse()
                    .with_context(|| format!("--http-proxy={host}: write HOST or HOST:PORT"))?;
                return Ok(authority.as_str().to_owned());
            }
            match self.to.split_once("://") {
                Some((_, authority)) => Ok(authority.trim_end_matches('/').to_owned()),
                None => bail!(
                    "--http-proxy: {} has no host; name it: --http-proxy=HOST:PORT",
                    self.to
                ),
            }
        });
        hosts.collect::<anyhow::Result<Vec<String>>>().map(Some)
    }
}

/// Runs the command, and returns its exit code.
pub(super) async fn run(args: AttachArgs) -> anyhow::Result<ExitCode> {
    let (settings, _) = match config::parse(SETTINGS, &args.overrides()) {
        Ok(parsed) => parsed,
        Err(problems) => {
            writeln!(std::io::stderr(), "{problems}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let operation = args.operation.as_ref();
    let operation = operation.map(|name| HeaderValue::from_str(name).context("--operation"));
    let options = AttachOptions {
        token: args.source()?,
        operation: operation.transpose()?,
        claims: args.claims()?,
        retry_for: args.retry_for,
        grace: args.grace,
        max_runtime: args.max_runtime,
        http_proxy: args.proxied()?,
        metrics_file: args.metrics_file,
        command: args.command,
    };
    let _logging = logging::start(&settings.log, None)?;
    let code = attach::run(options, settings).await?;
    Ok(ExitCode::from(code))
}
