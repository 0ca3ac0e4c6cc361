//! The conformance server, as a client's tests use it.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use super::client::{Answer, get, request};
use super::process::Process;

/// The program, built once by the first test that needs it. Cargo has built its dependencies for the
/// suite. With `--examples` (there are none) it takes the same features of them, and so the same
/// builds.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_fencepost")).parent();
        let folder = folder.expect("a folder of the target directory");
        let is_debug = folder.ends_with("debug");
        let profile = if is_debug { "dev" } else { "release" };
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // The suite's own, which build scripts would take for a change.
        let own = ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"].map(str::as_bytes);
        let is_own = |name: &OsStr| own.iter().any(|own| name.as_bytes().starts_with(own));
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_own(name)) {
            cargo.env_remove(name);
        }
        cargo
            .args(["build", "--locked", "--quiet", "--profile", profile])
            .args(["-p", "fencepost", "-p", "fencepost-conformance"])
            .args([
                "--bin",
                "fencepost-conformance",
                "--examples",
                "--target-dir",
            ])
            .arg(folder.parent().expect("a target directory"))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = cargo.output().expect("cargo can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        folder.join("fencepost-conformance")
    })
}

/// A running conformance server. Killed when dropped.
pub struct Conformance {
    pub process: Process,
    pub address: SocketAddr,
}

impl Conformance {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let mut process = Process::start(Command::new(program()).args(["--listen", "127.0.0.1:0"]));
        let address = |line: &str| line.split_once("http://")?.1.parse().ok();
        let address = process.says("the server to listen", address).await;
        Self { process, address }
    }

    /// The base URL of a run.
    pub fn url(&self, scenario: &str, run: &str) -> String {
        format!("http://{}/{scenario}/{run}", self.address)
    }

    pub async fn verdict(&self, scenario: &str, run: &str) -> Value {
        let asks = get(&format!("/verdict/{scenario}/{run}"));
        let answer = asks.send(self.address).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer.json()
    }

    /// The names of all scenarios.
    pub async fn scenarios(&self) -> Vec<String> {
        let list = get("/").send(self.address).await.text();
        let name = |line: &&str| !line.is_empty() && !line.contains([' ', ':']);
        list.lines().filter(name).map(str::to_owned).collect()
    }

    /// One request of a run; an error: no answer came.
    pub async fn send(
        &self,
        (scenario, run): (&str, &str),
        (method, target): (&str, &str),
        fields: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<Answer> {
        let mut asks = request(method, &format!("/{scenario}/{run}{target}")).body(body);
        for (name, value) in fields {
            asks = asks.header(name, value);
        }
        asks.attempt(self.address).await
    }
}
