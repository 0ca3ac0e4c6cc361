//! Lock services that other tests take numbers from: the etcd and the Redis of Debian.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::etcd::start_etcd;
use crate::support::eventually;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::store::tool;

/// Where each program is; `None`, and a line that says so, if one is missing.
pub fn programs<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let found = names.map(tool);
    let all = found.iter().all(Option::is_some);
    all.then(|| found.map(Option::unwrap_or_default))
}

pub struct Etcd {
    ctl: PathBuf,
    pub port: u16,
    _dir: TempDir,
    _process: Process,
}

impl Etcd {
    /// Starts the etcd of this machine; `None`, and a line that says so, without it.
    pub async fn found() -> Option<Self> {
        let [etcd, ctl] = programs(["etcd", "etcdctl"])?;
        let dir = TempDir::new().expect("a temporary directory");
        let (process, port) = start_etcd(Command::new(etcd), dir.path());
        let etcd = Self {
            ctl,
            port,
            _dir: dir,
            _process: process,
        };
        eventually("etcd to serve", || async {
            let probed = etcd.ctl().args(["endpoint", "health"]).output().ok()?;
            probed.status.success().then_some(())
        })
        .await;
        Some(etcd)
    }

    pub fn ctl(&self) -> Command {
        let (mut command, at) = (Command::new(&self.ctl), format!("127.0.0.1:{}", self.port));
        command.env("ETCDCTL_API", "3").args(["--endpoints", &at]);
        command
    }
}

pub struct Redis {
    pub cli: PathBuf,
    pub port: u16,
    _dir: TempDir,
    _process: Process,
}

impl Redis {
    /// Starts the Redis of this machine; `None`, and a line that says so, without it.
    pub async fn found() -> Option<Self> {
        let [server, cli] = programs(["redis-server", "redis-cli"])?;
        let dir = TempDir::new().expect("a temporary directory");
        let port = free_port();
        let mut command = Command::new(server);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]);
        let mut process = Process::start(command.arg(dir.path()));
        process.listens_on(port).await;
        Some(Self {
            cli,
            port,
            _dir: dir,
            _process: process,
        })
    }

    /// Its answer to a command.
    pub fn say(&self, command: &[&str]) -> String {
        let output = Command::new(&self.cli)
            .args(["-p", &self.port.to_string(), "--raw"])
            .args(command)
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}
