//! `fencepost attach`: fences a client that cannot be changed. It runs a command, adds the holder's
//! token to the requests that the command sends through a loopback port, and ends the command once
//! the lock has another holder. Without a command it serves the other containers of a pod.
//!
//! A request comes by the [`port`]. If it is of the command ([`clients`]), it goes on with the token
//! in [`forward`]. [`token`] reads the token, [`command`] runs the command, [`environment`] is what
//! the command inherits.

mod clients;
mod command;
mod environment;
mod forward;
mod port;
mod token;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use clap::Args;
use http::uri::Authority;
use http::{HeaderValue, Request};
use rustix::process::Signal;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::clients::with_port;
use self::command::{Holder, code, code_of};
use self::forward::{Forwarder, Hold};
use self::token::TokenSource;
use crate::config::Settings;
use crate::json_values::wall_clock;
use crate::locked::locked;
use crate::signals::Signals;

/// The signals that are passed on to the command.
const PASSED: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// The command exited with 0, and the fencepost refused its token itself: `EX_DATAERR` of
/// `sysexits.h`.
const EXIT_TOKEN_REFUSED: u8 = 65;
/// A newer holder was found: `EX_TEMPFAIL` of `sysexits.h`.
const STALE: End = End("stale", 75);
/// A claim was not granted: `EX_UNAVAILABLE` of `sysexits.h`.
const NOT_CLAIMED: End = End("not-claimed", 69);

/// The arguments of [`run`].
#[expect(clippy::doc_markdown, reason = "clap prints doc comments as they are")]
#[derive(Debug, Args)]
pub struct AttachOptions {
    #[command(flatten)]
    token: TokenSource,
    /// When the lock was asked for, for `acquire_seconds` in the last line of the log: seconds since
    /// 1970 (`date +%s.%N`). The default is the start of attach.
    #[arg(long, value_name = "TIME", value_parser = time)]
    acquire_started: Option<SystemTime>,
    /// `X-Fencing-Operation` for requests that have none: a name for what is done, which takes the
    /// place of the request's digest in the idempotency key.
    #[arg(long, value_name = "NAME")]
    operation: Option<HeaderValue>,
    /// How long to send a request again that was refused with `retry: same-token`. The default
    /// outlasts that of `barrier.settle`, for which the fencepost waits after a crash.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = humantime::parse_duration)]
    pub retry_for: Duration,
    /// How long COMMAND, and what it has started, may take to end after SIGTERM. Then SIGKILL
    /// follows.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// Set `http_proxy` for COMMAND too, for programs whose URL cannot be changed: requests for
    /// HOST[:PORT] get the token, and others are refused (name their hosts in NO_PROXY). Entries of
    /// an inherited NO_PROXY that cover HOST are left out. Without a value, the host is that of
    /// --to. May be given several times.
    #[arg(long, value_name = "HOST", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = host)]
    http_proxy: Option<Vec<String>>,
    /// The command, with its arguments. Without one, the port serves until a signal.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
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

/// The end of a run: its name in the log, and the exit code.
struct End(&'static str, u8);

/// One run. The command begins after the claims.
struct Run {
    options: AttachOptions,
    claims: Vec<Request<()>>,
    forwarder: Arc<Forwarder>,
    /// Where it listens: `127.0.0.1:40123`, or `unix:` and a path.
    address: String,
    signals: Signals<Signal>,
}

/// Runs the command with the token, and returns the exit code. `claims`: what is claimed before the
/// command starts. `settings`: where to listen, and the fencepost.
pub async fn run(
    mut options: AttachOptions,
    claims: Vec<Request<()>>,
    settings: Settings,
) -> anyhow::Result<u8> {
    // Install signal handlers before reading the token, so that an early SIGTERM is not lost.
    let signals =
        Signals::catch(PASSED.map(|passed| (SignalKind::from_raw(passed.as_raw()), passed)))?;
    // mimalloc disables transparent huge pages for this process, and a command would inherit that.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let started = Instant::now();
    let token = options.token.read().await?;
    let acquired = acquisition(options.acquire_started, started);
    let (listener, address) = port::bind(&settings).await?;
    let (client, base) = forward::client(&settings.upstream)?;
    let own = base.split_once("://").map_or("", |(_, host)| host);
    let named = options.http_proxy.iter_mut().flatten();
    named
        .filter(|host| host.is_empty())
        .for_each(|host| own.clone_into(host));
    let mut hosts = options.http_proxy.clone().unwrap_or_default();
    if !address.starts_with("unix:") {
        hosts.push(address.clone());
    }
    ensure!(
        options.http_proxy.is_none() || hosts.contains(&address),
        "--http-proxy needs a port: give --listen an address, not a Unix socket"
    );
    let forwarder = Arc::new(Forwarder {
        hold: watch::Sender::new(Hold::of(token)),
        counts: Mutex::default(),
        unchecked: Once::new(),
        operation: options.operation.take(),
        retry_for: options.retry_for,
        hosts: hosts.iter().map(|host| with_port(host)).collect(),
        client,
        base,
    });
    let began = Instant::now();
    let stop = CancellationToken::new();
    let port = tokio::spawn(port::serve(listener, Arc::clone(&forwarder), stop.clone()));
    let mut run = Run {
        options,
        claims,
        forwarder,
        address,
        signals,
    };
    let end = run.execute().await?;
    let held = began.elapsed();
    stop.cancel();
    let _ = timeout(run.options.grace, port).await;
    run.log(&end, acquired, held);
    Ok(end.1)
}

/// How long the lock took to get, as of now; `None` if the clock contradicts.
fn acquisition(asked: Option<SystemTime>, started: Instant) -> Option<Duration> {
    let Some(asked) = asked else {
        return Some(started.elapsed());
    };
    let took = wall_clock().duration_since(asked);
    took.inspect_err(|error| {
        tracing::warn!(
            "--acquire-started is {:?} ahead of the clock",
            error.duration()
        );
    })
    .ok()
}

impl Run {
    async fn execute(&mut self) -> anyhow::Result<End> {
        if let Err(end) = self.claim_all().await {
            return Ok(end);
        }
        let Some((name, arguments)) = self.options.command.split_first() else {
            tracing::info!(listen = self.address, "attached; no command is run");
            return Ok(self.serve().await);
        };
        let variables = environment::variables(&self.address, self.options.http_proxy.as_deref());
        match Holder::start((name, arguments), variables) {
            Ok(mut holder) => {
                let end = self.hold(&mut holder).await;
                // What the command leaves behind might use the port of a later holder.
                holder.end(self.options.grace).await;
                end
            }
            Err(error) => {
                tracing::error!("cannot run {}: {error}", name.display());
                // As `env` and `nohup` have it.
                let found = error.kind() != ErrorKind::NotFound;
                Ok(End("not-started", if found { 126 } else { 127 }))
            }
        }
    }

    /// Claims, one after the other. An error is the end of the run.
    async fn claim_all(&mut self) -> Result<(), End> {
        for claim in &self.claims {
            let claimed = tokio::select! {
                biased;
                claimed = self.forwarder.claim(claim) => claimed,
                signal = self.signals.next() => return Err(End("signal", code_of(signal.as_raw()))),
            };
            if let Err(error) = claimed {
                tracing::error!("{error:#}");
                return Err(if self.forwarder.is_lost() {
                    STALE
                } else {
                    NOT_CLAIMED
                });
            }
        }
        Ok(())
    }

    /// Waits for the end of the command, or for a reason to end it.
    async fn hold(&mut self, holder: &mut Holder) -> anyhow::Result<End> {
        let mut hold = self.forwarder.hold.subscribe();
        let status = loop {
            tokio::select! {
                biased;
                _ = hold.wait_for(|hold| hold.refusal.is_some()) => {
                    tracing::error!("ending the command (pid {})", holder.id());
                    return Ok(STALE);
                }
                status = holder.wait() => break status?,
                signal = self.signals.next() => {
                    if signal == Signal::HUP && self.options.token.follows_hangup() {
                        self.renew().await;
                    } else {
                        holder.pass(signal);
                    }
                }
            }
        };
        // It may have ended because it was refused.
        if self.forwarder.is_lost() {
            return Ok(STALE);
        }
        let counts = locked(&self.forwarder.counts);
        if counts.requests == counts.claims {
            tracing::warn!(
                "the command sent no request through fencepost attach, so what it wrote was not \
                 fenced: its requests must go to FENCEPOST_URL, or use http_proxy (--http-proxy)"
            );
        }
        if status.success() && counts.token_refused() {
            tracing::error!("the command exited with 0, but its token was refused");
            return Ok(End("exited", EXIT_TOKEN_REFUSED));
        }
        Ok(End("exited", code(status)))
    }

    /// Serves until a signal. Once the hold is lost it goes on to refuse: a container that is
    /// started again would read the token again.
    async fn serve(&mut self) -> End {
        loop {
            match self.signals.next().await {
                Signal::HUP => self.renew().await,
                Signal::USR1 | Signal::USR2 => {}
                _ if self.forwarder.is_lost() => return STALE,
                _ => return End("signal", 0),
            }
        }
    }

    /// Reads the token again.
    async fn renew(&self) {
        if !self.options.token.follows_hangup() {
            tracing::warn!("SIGHUP reads a --token-file again, and there is none");
            return;
        }
        let read = self.options.token.read().await;
        locked(&self.forwarder.counts).renewals += u64::from(read.is_ok());
        match read {
            Ok(token) if token == self.forwarder.hold.borrow().token => {
                tracing::info!("the token is the same as before");
            }
            Ok(token) => {
                tracing::info!(?token, "the token was read again");
                self.forwarder.hold.send_replace(Hold::of(token));
            }
            Err(error) => tracing::error!("{error:#}; the token stays as it was"),
        }
    }

    /// Logs the numbers of the run.
    fn log(&self, End(end, code): &End, acquired: Option<Duration>, held: Duration) {
        let counts = locked(&self.forwarder.counts);
        let by_outcome = counts.refused.iter();
        let by_outcome: Vec<_> = by_outcome
            .map(|(outcome, count)| format!("{outcome} {count}"))
            .collect();
        if !by_outcome.is_empty() {
            tracing::warn!(
                "requests without an answer of the service: {}",
                by_outcome.join(", ")
            );
        }
        tracing::info!(
            end,
            exit_code = code,
            acquire_seconds = acquired.map(|took| took.as_secs_f64()),
            held_seconds = held.as_secs_f64(),
            renewals = counts.renewals,
            claims = counts.claims,
            requests = counts.requests,
            retries = counts.retries,
            stale = counts.stale,
            refused = counts.refused.values().sum::<u64>(),
            "the hold has ended"
        );
    }
}
