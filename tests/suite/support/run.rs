//! Commands that run to their end.

use std::process::{Command, Stdio};

use tokio::io::AsyncWriteExt as _;

use super::proxy::fencepost;
use super::wait::Must as _;

/// The end of a command, and all that it has written.
#[derive(Debug)]
pub struct Exit {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Exit {
    /// Both streams.
    pub fn text(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// Runs a command to its end, with nothing on its standard input.
pub async fn run(command: Command) -> Exit {
    run_fed(command, "").await
}

/// As [`run`], with this on its standard input.
pub async fn run_fed(mut command: Command, input: impl AsRef<[u8]>) -> Exit {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command)
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that does not read it may have closed it.
    let _ = stdin.write_all(input.as_ref()).await;
    drop(stdin);
    let output = child.wait_with_output().must().await;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Exit {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// Runs the program with these arguments.
pub async fn run_with(arguments: &[&str]) -> Exit {
    let mut command = fencepost();
    command.args(arguments);
    run(command).await
}
