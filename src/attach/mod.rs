//! `fencepost attach`: fences a client that cannot be changed. It runs a command, adds the holder's
//! token to the requests that the command sends through a loopback port, and ends the command once
//! the lock has another holder. Without a command it serves the other containers of a pod.
//!
//! A request comes by the [`port`]. If it is of the command ([`clients`]), it goes on with the token
//! in [`forward`]. [`token`] reads the token, [`command`] runs the command, [`environment`] is what
//! the command inherits.

mod args;
mod clients;
mod command;
mod environment;
mod forward;
mod port;
mod token;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use rustix::process::Signal;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use self::args::{AFTER_HELP, AttachArgs};
use self::clients::with_port;
use self::command::{Holder, code};
use self::forward::{Forwarder, Hold};
use crate::app::LogOutput;
use crate::config::{self, UpstreamUrl};
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

/// The end of a run: its name in the log, and the exit code.
struct End(&'static str, u8);

/// One run.
struct Run {
    args: AttachArgs,
    forwarder: Arc<Forwarder>,
    /// Where it listens: `127.0.0.1:40123`, or `unix:` and a path.
    address: String,
    signals: Signals<Signal>,
}

/// Runs the command with the token, and returns the exit code.
pub async fn run(mut args: AttachArgs) -> anyhow::Result<ExitCode> {
    let (settings, _) = match config::parse("", &args.overrides()) {
        Ok(parsed) => parsed,
        Err(problems) => {
            writeln!(std::io::stderr(), "{problems}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let _log = LogOutput::start(&settings.log, None)?;
    // Install signal handlers before reading the token, so that an early SIGTERM is not lost.
    let signals =
        Signals::catch(PASSED.map(|passed| (SignalKind::from_raw(passed.as_raw()), passed)))?;
    // mimalloc disables transparent huge pages for this process, and a command would inherit that.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let started = Instant::now();
    let token = args.token.read().await?;
    let acquired = acquisition(args.acquire_started, started);
    let (listener, address) = port::bind(&settings).await?;
    let (client, base) = forward::client(&settings.upstream)?;
    let own = base.split_once("://").map_or("", |(_, host)| host);
    for host in args.http_proxy.iter_mut().flatten() {
        if host.is_empty() {
            ensure!(
                !matches!(settings.upstream.url, UpstreamUrl::Unix(_)),
                "--http-proxy: a Unix socket has no host; name it: --http-proxy=HOST:PORT"
            );
            own.clone_into(host);
        }
    }
    let mut hosts = args.http_proxy.clone().unwrap_or_default();
    if !address.starts_with("unix:") {
        hosts.push(address.clone());
    }
    ensure!(
        args.http_proxy.is_none() || hosts.contains(&address),
        "--http-proxy needs a port: give --listen an address, not a Unix socket"
    );
    let forwarder = Arc::new(Forwarder {
        hold: watch::Sender::new(Hold::of(token)),
        counts: Mutex::default(),
        unchecked: Once::new(),
        operation: args.operation.take(),
        retry_for: args.retry_for,
        hosts: hosts.iter().map(|host| with_port(host)).collect(),
        client,
        base,
    });
    let began = Instant::now();
    let stop = CancellationToken::new();
    let port = tokio::spawn(port::serve(listener, Arc::clone(&forwarder), stop.clone()));
    let mut run = Run {
        args,
        forwarder,
        address,
        signals,
    };
    let end = run.execute().await?;
    let held = began.elapsed();
    stop.cancel();
    let _ = timeout(run.args.grace, port).await;
    run.log(&end, acquired, held);
    Ok(ExitCode::from(end.1))
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
        let Some((name, arguments)) = self.args.command.split_first() else {
            tracing::info!(listen = self.address, "attached; no command is run");
            return Ok(self.serve().await);
        };
        let variables = environment::variables(&self.address, self.args.http_proxy.as_deref());
        match Holder::start((name, arguments), variables) {
            Ok(mut holder) => {
                let end = self.hold(&mut holder).await;
                // What the command leaves behind might use the port of a later holder.
                holder.end(self.args.grace).await;
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
                    if signal == Signal::HUP && self.args.token.follows_hangup() {
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
        if counts.requests == 0 {
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
        if !self.args.token.follows_hangup() {
            tracing::warn!("SIGHUP reads a --token-file again, and there is none");
            return;
        }
        let read = self.args.token.read().await;
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
                "requests that the service did not answer: {}",
                by_outcome.join(", ")
            );
        }
        tracing::info!(
            end,
            exit_code = code,
            acquire_seconds = acquired.map(|took| took.as_secs_f64()),
            held_seconds = held.as_secs_f64(),
            renewals = counts.renewals,
            requests = counts.requests,
            retries = counts.retries,
            stale = counts.stale,
            refused = counts.refused.values().sum::<u64>(),
            "the hold has ended"
        );
    }
}
