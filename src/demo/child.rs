//! fencepost as a separate process, so that the demo can kill it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long a start may take, on a slow disk too.
const START: Duration = Duration::from_secs(20);

/// A running `fencepost serve`.
pub(super) struct Fencepost {
    /// Killed when this is dropped.
    pub process: Child,
    pub url: String,
    pub admin_url: String,
}

impl Fencepost {
    /// Starts this very program as `serve --config FILE` and waits until it listens.
    pub(super) async fn start(config: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        Self::spawn(command.arg("serve").arg("--config").arg(config)).await
    }

    async fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = command
            // The demo's configuration is the file alone.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A Ctrl-C at the terminal is for the demo, which ends its child itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start fencepost")?;
        let stderr = process.stderr.take();
        let stderr = stderr.context("the child has no standard error")?;
        let (mut lines, mut logged) = (BufReader::new(stderr).lines(), String::new());
        let listening = timeout(START, async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(urls) = urls(&line) {
                    return Some(urls);
                }
                logged.extend(["\n", &line]);
            }
            None
        });
        let Ok(Some((url, admin_url))) = listening.await else {
            bail!("fencepost did not start to listen within {START:?}; it logged:{logged}");
        };
        // A full pipe would stall the child: its log is read on to its end.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            process,
            url,
            admin_url,
        })
    }
}

/// The URLs of the data and the admin port, from the log line that has them; `None` for every other line.
fn urls(line: &str) -> Option<(String, String)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let url = |name: &str| Some(format!("http://{}", line[name].as_str()?));
    (line["message"] == "listening").then_some((url("data")?, url("admin")?))
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
        let both = ("http://127.0.0.1:1".into(), "http://127.0.0.1:2".into());
        assert_eq!(urls(LISTENING), Some(both));
        for other in [
            "",
            "listening",
            r#"{"message":"listening"}"#,
            r#"{"message":"ready"}"#,
        ] {
            assert_eq!(urls(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn says_what_was_logged_when_the_start_fails() {
        let mut command = shell("echo the port is taken >&2; exit 1");
        let error = Fencepost::spawn(&mut command).await.err().expect("fails");
        let text = format!("{error:#}");
        assert!(text.contains("the port is taken"), "{text}");
        assert!(text.contains("did not start to listen"), "{text}");
    }

    #[tokio::test]
    async fn reads_the_log_on_and_ends_the_process() {
        let script = format!("echo hello >&2; echo '{LISTENING}' >&2; exec sleep 60");
        let mut fencepost = Fencepost::spawn(&mut shell(&script))
            .await
            .expect("listens");
        assert_eq!(fencepost.url, "http://127.0.0.1:1");
        fencepost.process.kill().await.expect("dies");

        let script = format!("echo '{LISTENING}' >&2; exit 3");
        let mut fencepost = Fencepost::spawn(&mut shell(&script))
            .await
            .expect("listens");
        assert_eq!(
            fencepost.process.wait().await.expect("ends").code(),
            Some(3)
        );
    }
}
