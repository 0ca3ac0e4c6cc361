//! The arguments of `fencepost attach`.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use clap::Args;
use http::HeaderValue;
use http::uri::Authority;

use super::token::TokenSource;
use crate::config::Overrides;

/// The end of `--help`. Paragraphs have no line breaks of their own, because clap wraps them.
pub const AFTER_HELP: &str = "COMMAND finds the address in FENCEPOST_URL, such as \
http://127.0.0.1:40123. Behind a Unix socket, FENCEPOST_SOCKET has its path. NO_PROXY is changed so \
that no proxy setting leads around this port. COMMAND gets SIGHUP (except with --token-file, which \
is then read again), SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2. Processes that it leaves behind \
are ended too.

Exit codes:
  that of COMMAND, or 128 and the number of the signal that ended it, except:
  1    an error before COMMAND
  2    wrong usage of the command line
  65   COMMAND exited with 0, but the fencepost refused its token
  75   the token is stale: a newer holder was found, and COMMAND was ended
  126  COMMAND cannot be run
  127  COMMAND was not found

Example:
  etcdctl lock orders -- fencepost attach --to http://orders:7080 \\
      --token-env ETCD_LOCK_REV -- ./nightly.sh";

/// The heading of the flags for TLS.
const TLS: &str = "TLS to the fencepost";

/// The arguments of [`run`](super::run).
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The fencepost that the requests go to: http://host:port, https://host or unix:/path.
    #[arg(long, value_name = "URL")]
    to: String,
    #[command(flatten)]
    pub(super) token: TokenSource,
    /// When the lock was asked for, for `acquire_seconds` in the last line of the log: seconds since
    /// 1970 (`date +%s.%N`). The default is the start of attach.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) acquire_started: Option<SystemTime>,
    /// `X-Fencing-Operation` for requests that have none: a name for what is done, which takes the
    /// place of the request's digest in the idempotency key.
    #[arg(long, value_name = "NAME")]
    pub(super) operation: Option<HeaderValue>,
    /// How long to send a request again that was refused with `retry: same-token`. The default
    /// outlasts that of `barrier.settle`, for which the fencepost waits after a crash.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = humantime::parse_duration)]
    pub(super) retry_for: Duration,
    /// How long COMMAND, and what it has started, may take to end after SIGTERM. Then SIGKILL
    /// follows.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(super) grace: Duration,
    /// Set `http_proxy` for COMMAND too, for programs whose URL cannot be changed: requests for
    /// HOST[:PORT] get the token, and others are refused (name their hosts in NO_PROXY). Entries of
    /// an inherited NO_PROXY that cover HOST are left out. Without a value, the host is that of
    /// --to. May be given several times.
    #[arg(long, value_name = "HOST", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = host)]
    pub(super) http_proxy: Option<Vec<String>>,
    /// Where to listen: a loopback address, which every user of the machine reaches, or unix:/path
    /// with mode 0600. Without COMMAND the default is 127.0.0.1:7079, and with it a free port.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The CAs for the fencepost's certificate, instead of the system's (PEM).
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    ca_file: Option<String>,
    /// The client certificate, followed by its chain (PEM).
    #[arg(long, value_name = "FILE", help_heading = TLS, requires = "key_file")]
    cert_file: Option<String>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE", help_heading = TLS, requires = "cert_file")]
    key_file: Option<String>,
    /// The command, with its arguments. Without one, the port serves until a signal.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// An authority, or the empty text for that of `--to`.
fn host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.parse::<Authority>().is_ok() {
        return Ok(text.to_owned());
    }
    Err("write HOST or HOST:PORT".into())
}

/// A time, in seconds since 1970.
fn time(text: &str) -> Result<SystemTime, String> {
    let seconds = text.parse().ok();
    let since_1970 = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = since_1970.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    time.ok_or_else(|| "write seconds since 1970, as `date +%s.%N` prints them".into())
}

impl AttachArgs {
    /// The configuration: where to listen, and the fencepost.
    pub(super) fn overrides(&self) -> Overrides {
        let (listen, format) = if self.command.is_empty() {
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
        for (field, value, flag) in [
            ("ca_file", &self.ca_file, "--ca-file"),
            ("cert_file", &self.cert_file, "--cert-file"),
            ("key_file", &self.key_file, "--key-file"),
        ] {
            if let Some(value) = value {
                overrides.set(&format!("upstream.tls.{field}"), value, flag);
            }
        }
        overrides
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config;

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
            args.retry_for > held_up + Duration::from_secs(30),
            "{held_up:?}"
        );
    }
}
