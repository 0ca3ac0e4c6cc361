//! The command that `fencepost attach` runs: its start, its signals, its end.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

use super::signals::code_of;

/// A running command.
pub(super) struct Holder {
    child: Child,
    pid: Pid,
    /// It leads a group of its own, so that its children get its signals as well.
    leads: bool,
}

/// Why a command did not start, and the exit code for that (as `env` and `nohup` have it).
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", name.display())]
pub(super) struct NotStarted {
    name: OsString,
    error: io::Error,
}

impl NotStarted {
    pub(super) fn code(&self) -> u8 {
        if self.error.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        }
    }
}

impl Holder {
    /// Starts it. On a terminal it stays in the group of this process: only the terminal's
    /// foreground group may read from it, and the terminal sends Ctrl-C to the whole group itself.
    pub(super) fn start(
        (name, arguments): (&OsString, &[OsString]),
        variables: Vec<(&'static str, String)>,
    ) -> Result<Self, NotStarted> {
        let leads = !io::stdin().is_terminal();
        let mut command = Command::new(name);
        command.args(arguments).envs(variables).kill_on_drop(true);
        if leads {
            command.process_group(0);
        }
        let not_started = |error| NotStarted {
            name: name.clone(),
            error,
        };
        let child = command.spawn().map_err(not_started)?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let gone = || not_started(io::Error::other("it has no process id"));
        Ok(Self {
            pid: pid.ok_or_else(gone)?,
            child,
            leads,
        })
    }

    pub(super) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits for its end. Cancel-safe.
    pub(super) async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child
            .wait()
            .await
            .context("the command's end is unknown")
    }

    /// Passes a signal on. Those of the keyboard have reached it already if it shares the terminal.
    pub(super) fn pass(&self, signal: Signal) {
        let by_keyboard = signal == Signal::INT || signal == Signal::QUIT;
        if self.leads || !by_keyboard {
            self.send(signal);
        }
    }

    fn send(&self, signal: Signal) {
        // One that has ended in the meantime needs none.
        let _ = if self.leads {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        };
    }

    /// Ends it: SIGTERM, and SIGKILL to what is left after `grace`.
    pub(super) async fn end(&mut self, grace: Duration) -> anyhow::Result<ExitStatus> {
        self.send(Signal::TERM);
        // A stopped process takes SIGTERM only once it goes on.
        self.send(Signal::CONT);
        let ended = tokio::time::timeout(grace, self.child.wait()).await;
        // To its children too, which may have ignored the first one.
        self.send(Signal::KILL);
        match ended {
            Ok(status) => status.context("the command's end is unknown"),
            Err(_) => self.wait().await,
        }
    }
}

/// The exit code of this process for the command's.
pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => code_of(signal),
        (None, None) => u8::MAX,
    }
}
