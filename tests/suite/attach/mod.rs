//! `fencepost attach`: the token on each request, the end of a zombie, and a command that notices
//! nothing else.

pub mod descendants;
pub mod environment;
pub mod holders;
pub mod neighbours;
pub mod path;
pub mod refusals;
pub mod runs;
pub mod sidecar;

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::support::client::{Request, request};
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::{Proxy, Upstream, eventually};

/// A write to `$FENCEPOST_URL`.
const WRITE: &str = "curl -sS -X PUT -d paid $FENCEPOST_URL/orders/7";

/// A request as a client of the loopback port sends it.
fn get(target: &str) -> Request {
    request("GET", target).host(Some("localhost"))
}

fn put(target: &str) -> Request {
    request("PUT", target).host(Some("localhost"))
}

fn post(target: &str) -> Request {
    request("POST", target).host(Some("localhost"))
}

/// `fencepost attach --to TO …`.
fn attach(to: &str, arguments: &[&str]) -> Command {
    let mut command = fencepost();
    command.args(["attach", "--to", to]).args(arguments);
    command
}

/// How a run ended, and what it wrote.
struct AttachRun {
    code: Option<i32>,
    said: String,
}

impl AttachRun {
    /// Asserts how it ended, and that it wrote this.
    #[track_caller]
    fn assert(&self, code: i32, says: &str) {
        assert_eq!(self.code, Some(code), "{}", self.said);
        assert!(self.said.contains(says), "{says}: {}", self.said);
    }

    /// Whether it wrote this line.
    fn has_line(&self, line: &str) -> bool {
        self.said.lines().any(|one| one == line)
    }
}

/// Runs it to its end.
async fn run(command: &mut Command) -> AttachRun {
    let mut process = Process::start(command);
    let code = process.exit().await.code();
    let said = process.output();
    AttachRun { code, said }
}

/// Runs it before this proxy to its end.
async fn run_before(proxy: &Proxy, arguments: &[&str]) -> AttachRun {
    run(&mut attach(&url(proxy), arguments)).await
}

/// A script for `sh -c` behind `--`, run to its end.
async fn run_script(proxy: &Proxy, arguments: &[&str], script: &str) -> AttachRun {
    run_before(proxy, &[arguments, &["--", "sh", "-c", script]].concat()).await
}

fn url(proxy: &Proxy) -> String {
    format!("http://{}", proxy.data())
}

/// An upstream behind a fencepost.
async fn fenced() -> (Upstream, Proxy) {
    crate::support::fenced("barrier: { wait: 1s }").await
}

/// As [`fenced`], behind a sidecar that holds 41.
async fn held() -> (Upstream, Proxy, Sidecar) {
    let (upstream, proxy) = fenced().await;
    let sidecar = Sidecar::start(&url(&proxy), &["--token", "41"]).await;
    (upstream, proxy, sidecar)
}

/// A run without a command.
pub struct Sidecar {
    process: Process,
    pub at: SocketAddr,
}

impl Sidecar {
    pub async fn start(to: &str, arguments: &[&str]) -> Self {
        let arguments = [&["--listen", "127.0.0.1:0"], arguments].concat();
        Self::run(&mut attach(to, &arguments)).await
    }

    async fn run(command: &mut Command) -> Self {
        let process = Process::start(command);
        let line = logged(&process, "attached; no command is run").await;
        let at = line["listen"].as_str().expect("its address");
        Self {
            at: at.parse().expect("an address"),
            process,
        }
    }
}

/// The first JSON line with this message.
async fn logged(process: &Process, message: &str) -> Value {
    let line = || async {
        let lines = process.lines();
        let mut lines = lines.iter().flat_map(|line| serde_json::from_str(line));
        lines.find(|line: &Value| {
            let said = line["message"].as_str();
            said.is_some_and(|said| said.contains(message))
        })
    };
    eventually(&format!("the line `{message}`"), line).await
}
