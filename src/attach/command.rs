//! The command that `fencepost attach` runs: its start, its signals, its end, and the end of every
//! process that comes from it.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

/// The pause before SIGKILL is sent again, to processes that have been started since.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// A running command. Every process that comes from it is a descendant of this one until it ends.
pub(super) struct Holder {
    pid: Pid,
    /// It leads a group of its own, so that its children get its signals as well.
    leads: bool,
    /// SIGCHLD.
    child_ended: unix::Signal,
}

impl Holder {
    /// Starts it. On a terminal it stays in the group of this process: only the terminal's
    /// foreground group may read from it, and the terminal sends Ctrl-C to the whole group itself.
    pub(super) fn start(
        (name, arguments): (&OsString, &[OsString]),
        variables: Vec<(&'static str, String)>,
    ) -> io::Result<Self> {
        let leads = !io::stdin().is_terminal();
        let mut command = Command::new(name);
        command.args(arguments).envs(variables);
        if leads {
            command.process_group(0);
        }
        // A process whose parent has ended becomes a child of this one, also if it has a process
        // group or a session of its own.
        set_child_subreaper(Some(getpid()))?;
        let child_ended = signal(SignalKind::child())?;
        let pid = Pid::from_child(&command.spawn()?);
        Ok(Self {
            pid,
            leads,
            child_ended,
        })
    }

    pub(super) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits for its end, and reaps orphans meanwhile. Cancel-safe.
    pub(super) async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        loop {
            while let Some((pid, status)) =
                wait(WaitOptions::NOHANG).context("the command's end is unknown")?
            {
                if pid == self.pid {
                    return Ok(ExitStatus::from_raw(status.as_raw()));
                }
            }
            self.child_ended.recv().await;
        }
    }

    /// Waits until it and every process that comes from it have ended: a descendant has an ancestor
    /// among the children of this process.
    async fn all_ended(&mut self) {
        while self.wait().await.is_ok() {}
    }

    /// Passes a signal on. Those of the keyboard have reached it already if it shares the terminal.
    pub(super) fn pass(&self, signal: Signal) {
        let by_keyboard = signal == Signal::INT || signal == Signal::QUIT;
        if self.leads || !by_keyboard {
            // One that has ended in the meantime needs none.
            let _ = self.send(signal);
        }
    }

    fn send(&self, signal: Signal) -> rustix::io::Result<()> {
        if self.leads {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        }
    }

    /// Returns how many processes took the signal: all that come from the command, or its group
    /// where /proc does not list children, or is that of another PID namespace.
    fn send_to_all(&self, signal: Signal) -> usize {
        let own = getpid().to_string();
        let is_own = std::fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own));
        if !is_own || !Path::new(&format!("/proc/self/task/{own}/children")).exists() {
            return usize::from(self.send(signal).is_ok());
        }
        let taken = |pid: &Pid| kill_process(*pid, signal).is_ok();
        descendants(&own).into_iter().filter(taken).count()
    }

    /// Ends it and every process that comes from it: SIGTERM, and SIGKILL to what is left after
    /// `grace`. A process of another user, such as one behind `sudo`, may take neither.
    pub(super) async fn end(&mut self, grace: Duration) {
        self.send_to_all(Signal::TERM);
        // A stopped process takes SIGTERM only once it goes on.
        self.send_to_all(Signal::CONT);
        let mut ended = timeout(grace, self.all_ended()).await;
        while ended.is_err() && self.send_to_all(Signal::KILL) > 0 {
            ended = timeout(KILL_AGAIN, self.all_ended()).await;
        }
    }
}

/// The processes that come from a process. One that has just been started may be missing.
fn descendants(of: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{of}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children"));
        for child in children.unwrap_or_default().split_whitespace() {
            found.extend(child.parse().ok().and_then(Pid::from_raw));
            found.extend(descendants(child));
        }
    }
    found
}

/// The exit code of this process for the command's. That of a command which a signal has ended is as
/// shells have it.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code();
    let code = code.unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}
