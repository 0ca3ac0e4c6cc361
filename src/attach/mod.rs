//! `fencepost attach`: fences a client that cannot be changed. It runs a command, adds the holder's
//! token to the requests that the command sends through a loopback port, and ends the command once
//! the lock has another holder. Without a command it serves the other containers of a pod.
//!
//! A request comes by the [`port`]. If it is of the command ([`clients`]), it goes on with the token
//! of the [`hold`] in [`forward`]. [`token`] reads the token, [`command`] runs the command,
//! [`environment`] is what the command inherits, [`report`] the end.

mod clients;
mod command;
mod environment;
mod forward;
mod hold;
mod port;
mod report;
mod signals;
mod token;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::ensure;
use http::{HeaderValue, Request};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use self::clients::{OwnClients, with_port};
use self::command::{Holder, code};
use self::forward::{Fencepost, Forwarder};
use self::hold::{Hold, Lost};
use self::port::AttachedPort;
use self::report::Reason;
use self::signals::code_of;
use crate::config::Settings;
use crate::locked::locked;
use crate::proxy::headers::TARGET;
use crate::signals::Signals;

pub use self::token::TokenSource;

/// The command exited with 0, and the fencepost refused its token itself: `EX_DATAERR` of
/// `sysexits.h`.
pub const EXIT_TOKEN_REFUSED: u8 = 65;
/// A newer holder was found: `EX_TEMPFAIL` of `sysexits.h`.
pub const EXIT_STALE: u8 = 75;
/// A claim was not granted: `EX_UNAVAILABLE` of `sysexits.h`.
pub const EXIT_NOT_CLAIMED: u8 = 69;

/// The arguments of [`run`].
#[derive(Debug)]
pub struct AttachOptions {
    pub token: TokenSource,
    /// `X-Fencing-Operation` of requests without one.
    pub operation: Option<HeaderValue>,
    /// What is claimed before the command starts.
    pub claims: Vec<Request<()>>,
    /// How long a request is sent again where nothing was sent to the service.
    pub retry_for: Duration,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// The authorities whose requests come here by `http_proxy`; `None`: it is not set.
    pub http_proxy: Option<Vec<String>>,
    /// Empty: none is run.
    pub command: Vec<OsString>,
}

/// One run. The command begins after the claims.
struct Run {
    options: AttachOptions,
    forwarder: Arc<Forwarder>,
    port: AttachedPort,
    signals: Signals<Signal>,
    claims: u64,
}

/// Runs the command with the token, and returns the exit code. `settings`: where to listen, and the
/// fencepost.
pub async fn run(mut options: AttachOptions, settings: Settings) -> anyhow::Result<u8> {
    // Install signal handlers before reading the token, so that an early SIGTERM is not lost.
    let signals = signals::catch()?;
    // mimalloc disables transparent huge pages for this process, and a command would inherit that.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    let token = options.token.read().await?;
    let (listener, address) = port::bind(&settings).await?;
    let mut hosts = options.http_proxy.clone().unwrap_or_default();
    if !address.starts_with("unix:") {
        hosts.push(address.clone());
    }
    ensure!(
        options.http_proxy.is_none() || hosts.contains(&address),
        "--http-proxy needs a port: give --listen an address, not a Unix socket"
    );
    let forwarder = Arc::new(Forwarder {
        hold: watch::Sender::new(Hold { token, lost: None }),
        counts: Mutex::default(),
        operation: options.operation.take(),
        retry_for: options.retry_for,
        clients: OwnClients {
            hosts: hosts.iter().map(|host| with_port(host)).collect(),
        },
        fencepost: Fencepost::new(&settings.upstream)?,
    });
    let began = Instant::now();
    let mut run = Run {
        options,
        port: AttachedPort::open((listener, address), Arc::clone(&forwarder)),
        forwarder,
        signals,
        claims: 0,
    };
    let (reason, code) = run.execute().await?;
    let held = began.elapsed();
    if reason == Reason::Signal {
        run.port.close(run.options.grace).await;
    }
    report::log(
        reason,
        code,
        held,
        run.claims,
        &locked(&run.forwarder.counts),
    );
    Ok(code)
}

impl Run {
    fn lost(&self) -> Option<Arc<Lost>> {
        self.forwarder.hold.borrow().lost.clone()
    }

    async fn execute(&mut self) -> anyhow::Result<(Reason, u8)> {
        if let Err(end) = self.claim_all().await {
            return Ok(end);
        }
        let Some((name, arguments)) = self.options.command.split_first() else {
            tracing::info!(listen = self.port.address, "attached; no command is run");
            return Ok(self.serve().await);
        };
        let variables = environment::variables(&self.port, self.options.http_proxy.as_deref());
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
                let code = match error.kind() {
                    ErrorKind::NotFound => 127,
                    _ => 126,
                };
                Ok((Reason::NotStarted, code))
            }
        }
    }

    /// Claims, one after the other. An error is the end of the run.
    async fn claim_all(&mut self) -> Result<(), (Reason, u8)> {
        for claim in &self.options.claims {
            let target = claim.headers()[TARGET].to_str().unwrap_or_default();
            tokio::select! {
                biased;
                claimed = self.forwarder.claim(claim) => match claimed {
                    Ok(()) => self.claims += 1,
                    Err(error) => {
                        if let Some(lost) = self.lost() {
                            tracing::error!("{}", lost.why);
                            return Err((Reason::Stale, EXIT_STALE));
                        }
                        tracing::error!("the claim of {target} was not granted: {error:#}");
                        return Err((Reason::NotClaimed, EXIT_NOT_CLAIMED));
                    }
                },
                signal = self.signals.next() => {
                    return Err((Reason::Signal, code_of(signal.as_raw())));
                }
            }
        }
        Ok(())
    }

    /// Waits for the end of the command, or for a reason to end it.
    async fn hold(&mut self, holder: &mut Holder) -> anyhow::Result<(Reason, u8)> {
        let mut hold = self.forwarder.hold.subscribe();
        loop {
            tokio::select! {
                biased;
                () = becomes(&mut hold, true) => {
                    self.say_lost(Some(holder));
                    return Ok((Reason::Stale, EXIT_STALE));
                }
                status = holder.wait() => {
                    let status = status?;
                    // It may have ended because it was refused.
                    if self.lost().is_some() {
                        self.say_lost(None);
                        return Ok((Reason::Stale, EXIT_STALE));
                    }
                    return Ok((Reason::Exited, self.code(status)));
                }
                signal = self.signals.next() => {
                    if signal == Signal::HUP && self.options.token.follows_hangup() {
                        self.renew().await;
                    } else {
                        holder.pass(signal);
                    }
                }
            }
        }
    }

    /// The exit code for a command that has ended by itself.
    fn code(&self, status: ExitStatus) -> u8 {
        if status.success() && locked(&self.forwarder.counts).token_refused() {
            tracing::error!("the command exited with 0, but its token was refused");
            return EXIT_TOKEN_REFUSED;
        }
        code(status)
    }

    /// Serves until a signal. Once the hold is lost it goes on to refuse: a container that is
    /// started again would read the token again.
    async fn serve(&mut self) -> (Reason, u8) {
        let mut hold = self.forwarder.hold.subscribe();
        loop {
            let known = hold.borrow_and_update().lost.is_some();
            tokio::select! {
                biased;
                () = becomes(&mut hold, !known) => {
                    if !known {
                        self.say_lost(None);
                    }
                }
                signal = self.signals.next() => match signal {
                    Signal::HUP => self.renew().await,
                    Signal::USR1 | Signal::USR2 => {}
                    _ if known => return (Reason::Stale, EXIT_STALE),
                    _ => return (Reason::Signal, 0),
                },
            }
        }
    }

    /// Says who is newer, and what is ended.
    fn say_lost(&self, holder: Option<&Holder>) {
        if let Some(lost) = self.lost() {
            let then = match holder {
                Some(holder) => format!("ending the command (pid {})", holder.id()),
                None => "nothing more is forwarded".to_owned(),
            };
            tracing::error!("{}; {then}", lost.why);
        }
    }

    /// Reads the token again.
    async fn renew(&self) {
        if !self.options.token.follows_hangup() {
            tracing::warn!("SIGHUP reads a --token-file again, and there is none");
            return;
        }
        match self.options.token.read().await {
            Ok(token) if token == self.forwarder.hold.borrow().token => {
                tracing::info!("the token is the same as before");
            }
            Ok(token) => {
                let hold = Hold {
                    token: token.clone(),
                    lost: None,
                };
                self.forwarder.hold.send_replace(hold);
                tracing::info!(token = ?token, "the token was read again");
            }
            Err(error) => tracing::error!("{error:#}; the token stays as it was"),
        }
    }
}

/// Waits until the hold is lost, or is not. Cancel-safe.
async fn becomes(hold: &mut watch::Receiver<Hold>, lost: bool) {
    let becomes_so = hold.wait_for(|hold| hold.lost.is_some() == lost);
    if becomes_so.await.is_err() {
        // Its sender lives in the run.
        std::future::pending::<()>().await;
    }
}
