//! fencepost as a separate process, so that the demo can kill it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};

/// How long a start may take, on a slow disk too.
const START: Duration = Duration::from_secs(20);

/// A running `fencepost serve`. Dropping it kills the process.
pub struct Fencepost {
    child: Child,
    pub data: SocketAddr,
    pub admin: SocketAddr,
}

impl Fencepost {
    /// Starts this very program as `serve --config FILE` and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, ends at once, or does not listen in time; says what it logged.
    pub async fn start(config: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
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
            // A Ctrl-C at the terminal is for the demo, which ends its child itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start fencepost")?;
        let stderr = child.stderr.take();
        let stderr = stderr.context("the child has no standard error")?;
        let mut lines = BufReader::new(stderr).lines();
        let (mut logged, deadline) = (Vec::new(), Instant::now() + START);
        let (data, admin) = loop {
            let line = timeout_at(deadline, lines.next_line()).await;
            match line {
                Ok(Ok(Some(line))) => match bound_addresses(&line) {
                    Some(bound) => break bound,
                    None => logged.push(line),
                },
                Ok(_) => bail!(
                    "fencepost ended before it listened; it logged: {}",
                    logged.join("\n")
                ),
                Err(_) => bail!(
                    "fencepost did not listen within {START:?}; it logged: {}",
                    logged.join("\n")
                ),
            }
        };
        // A full pipe would stall the child: its log is read on to its end.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, data, admin })
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
}

/// The data and the admin address in the log line that has them; `None` for every other line.
fn bound_addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let field = |name: &str| line[name].as_str();
    if field("message") != Some("listening") {
        return None;
    }
    Some((field("data")?.parse().ok()?, field("admin")?.parse().ok()?))
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
        assert_eq!((bound.0.port(), bound.1.port()), (1, 2));
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
        assert_eq!(fencepost.data.port(), 1);
        fencepost.kill().await.expect("dies");

        let script = format!("echo '{LISTENING}' >&2; exit 3");
        let mut fencepost = Fencepost::spawn(&mut shell(&script))
            .await
            .expect("listens");
        assert_eq!(fencepost.ended().await.expect("ends").code(), Some(3));
    }
}
