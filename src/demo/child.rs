//! fencepost as a separate process, so that the demo can kill it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

/// How long a start may take, on a slow disk too.
const START: Duration = Duration::from_secs(20);
/// How long an orderly end may take before it is forced.
const STOP: Duration = Duration::from_secs(5);
/// How many of the child's last log lines are kept, for errors.
const TAIL: usize = 12;

/// The addresses that a start has bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildAddresses {
    pub data: SocketAddr,
    pub admin: SocketAddr,
}

/// A running `fencepost serve`. Dropping it kills the process.
pub struct Fencepost {
    child: Child,
    pub bound: ChildAddresses,
    reader: JoinHandle<()>,
}

impl Fencepost {
    /// Starts this very program as `serve --config FILE` and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, ends at once, or does not listen in time; says what it logged last.
    pub async fn start(config: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let config = PathBuf::from(config);
        Self::spawn(
            Command::new(program)
                .arg("serve")
                .arg("--config")
                .arg(config),
        )
        .await
    }

    async fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        // The demo's configuration is the file alone.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FENCEPOST_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A Ctrl-C at the terminal is for the demo, which ends its child in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start fencepost")?;
        let stderr = child
            .stderr
            .take()
            .context("the child has no standard error")?;
        let mut lines = BufReader::new(stderr).lines();
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let listening = wait_for_listening(&mut lines, &tail);
        let bound = match tokio::time::timeout(START, listening).await {
            Ok(Ok(bound)) => bound,
            Ok(Err(error)) => return Err(error.context(last_lines(&tail))),
            Err(_) => bail!(
                "fencepost did not listen within {START:?}; {}",
                last_lines(&tail)
            ),
        };
        // A full pipe would stall the child: its log is read on to its end.
        let reader =
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            child,
            bound,
            reader,
        })
    }

    /// The process id.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends SIGKILL and waits for the end. Then the database file is free.
    ///
    /// # Errors
    /// The system refused.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill fencepost")
    }

    /// Waits until the process ends by itself.
    ///
    /// # Errors
    /// The system refused.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().await.context("cannot wait for fencepost")
    }

    /// SIGTERM, and SIGKILL if that does not end it.
    pub async fn stop(mut self) {
        let pid = self.pid().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // An error: it has ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(STOP, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

impl Drop for Fencepost {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn wait_for_listening(
    lines: &mut Lines<BufReader<ChildStderr>>,
    tail: &Mutex<VecDeque<String>>,
) -> anyhow::Result<ChildAddresses> {
    while let Some(line) = lines
        .next_line()
        .await
        .context("cannot read fencepost's log")?
    {
        if let Some(bound) = bound_addresses(&line) {
            return Ok(bound);
        }
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    bail!("fencepost ended before it listened")
}

fn last_lines(tail: &Mutex<VecDeque<String>>) -> String {
    let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    if tail.is_empty() {
        return "it logged nothing".to_owned();
    }
    let lines: Vec<&str> = tail.iter().map(String::as_str).collect();
    format!("it logged: {}", lines.join("\n"))
}

/// The addresses in the log line that has them; `None` for every other line.
fn bound_addresses(line: &str) -> Option<ChildAddresses> {
    let line: Value = serde_json::from_str(line).ok()?;
    // tracing's JSON has the fields in an object of their own, or flattened.
    let field = |name: &str| {
        line["fields"][name]
            .as_str()
            .or_else(|| line[name].as_str())
    };
    if field("message") != Some("listening") {
        return None;
    }
    let address = |name| field(name).and_then(|text| text.parse().ok());
    Some(ChildAddresses {
        data: address("data")?,
        admin: address("admin")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENING: &str =
        r#"{"level":"INFO","message":"listening","data":"127.0.0.1:1","admin":"127.0.0.1:2"}"#;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    #[test]
    fn finds_the_ports_in_the_log() {
        let bound = bound_addresses(LISTENING).expect("says so");
        assert_eq!((bound.data.port(), bound.admin.port()), (1, 2));
        let nested = r#"{"fields":{"message":"listening","data":"127.0.0.1:3","admin":"[::1]:4"}}"#;
        assert_eq!(
            bound_addresses(nested).map(|bound| bound.admin.port()),
            Some(4)
        );
        for other in [
            "",
            "listening",
            r#"{"message":"listening"}"#,
            r#"{"message":"ready"}"#,
        ] {
            assert_eq!(bound_addresses(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn says_what_was_logged_when_the_start_fails() {
        let mut command = shell("echo the port is taken >&2; exit 1");
        let error = Fencepost::spawn(&mut command).await.err().expect("fails");
        let text = format!("{error:#}");
        assert!(text.contains("the port is taken"), "{text}");
        assert!(text.contains("ended before it listened"), "{text}");
    }

    #[tokio::test]
    async fn reads_the_log_on_and_ends_the_process() {
        let script = format!("echo hello >&2; echo '{LISTENING}' >&2; exec sleep 60");
        let mut fencepost = Fencepost::spawn(&mut shell(&script))
            .await
            .expect("listens");
        assert_eq!(fencepost.bound.data.port(), 1);
        fencepost.kill().await.expect("dies");

        let script = format!("echo '{LISTENING}' >&2; exit 3");
        let mut fencepost = Fencepost::spawn(&mut shell(&script))
            .await
            .expect("listens");
        assert_eq!(fencepost.ended().await.expect("ends").code(), Some(3));
        fencepost.stop().await;
    }
}
