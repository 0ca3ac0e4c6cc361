//! `fencepost drain`: tells a proxy to drain and keep running, for a pod's `preStop` hook. A native
//! sidecar gets SIGTERM only after the main container has ended, which is too late for draining.
//! Kubernetes runs all `preStop` hooks of a pod at once.

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

/// Tell a proxy to drain: not ready at once, no new requests after shutdown.delay. Its admin port
/// stays open.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Process id of `fencepost serve`; in its own container it is 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
}

/// Sends the signal, and returns at once.
pub fn run(args: &DrainArgs) -> anyhow::Result<()> {
    let pid = args.pid;
    // The signal ends a process that does not handle it, so no other program may get it.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).with_context(|| {
        format!("process {pid} does not exist, or is not visible; set --pid to that of fencepost")
    })?;
    if !serves(&command) {
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        bail!(
            "process {pid} is `{}`, not `fencepost serve`; set --pid to the right one. (If \
             containers share a process namespace, fencepost is not process 1.)",
            command.trim()
        );
    }
    let process = Pid::from_raw(pid).context("a process id is greater than 0")?;
    kill_process(process, Signal::USR1)
        .with_context(|| format!("process {pid} cannot be told to drain: send SIGUSR1 as its user"))
}

/// Returns true if a command line (its words end in NUL, as in `/proc/PID/cmdline`) is that of a
/// serving fencepost.
fn serves(command: &[u8]) -> bool {
    let mut words = command.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next();
    name == Some(b"fencepost") && words.next() == Some(b"serve")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_serving_fencepost_is_told() {
        for (command, is) in [
            (&b"/fencepost\0serve\0"[..], true),
            (b"fencepost\0serve\0--config\0x\0", true),
            (b"fencepost\0demo\0", false),
            (b"/bin/sh\0fencepost\0serve\0", false),
            (b"fencepost\0", false),
            (b"", false),
        ] {
            assert_eq!(serves(command), is, "{command:?}");
        }
    }

    #[test]
    fn a_stranger_gets_no_signal() {
        let me = i32::try_from(std::process::id()).expect("a process id");
        let error = run(&DrainArgs { pid: me }).expect_err("a test is no proxy");
        assert!(
            error.to_string().contains("not `fencepost serve`"),
            "{error}"
        );
    }
}
