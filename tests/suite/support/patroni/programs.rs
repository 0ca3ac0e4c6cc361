//! The programs of a cluster, run by the user that Postgres runs as.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::etcd::start_etcd;
use crate::support::postgres::{free_port, owner};
use crate::support::process::Process;
use crate::support::python::python;
use crate::support::skip::{is_skipped, lacks};

/// The settings of `HAProxy`, as the documents offer them.
const FRONT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/patroni/haproxy.cfg");

pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn as_owner(mut command: Command) -> Command {
    if let Some((uid, gid)) = owner() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Gives a directory to the servers' user.
pub fn hand_over(dir: &Path) {
    if let Some((uid, gid)) = owner() {
        std::os::unix::fs::chown(dir, Some(uid), Some(gid)).expect("root may chown");
    }
}

/// A Python that has Patroni, and that the servers' user may run.
#[derive(Clone)]
pub struct Python {
    program: PathBuf,
    packages: PathBuf,
}

impl Python {
    /// The tests' own, or, since root's may lie where nobody else looks, the system's; with the
    /// packages of the first. `None`, and a line that says so, if there is none.
    pub fn find() -> Option<Self> {
        let own = python()?;
        let place = "import os, patroni; print(os.path.dirname(os.path.dirname(patroni.__file__)))";
        let output = Command::new(&own).args(["-c", place]).output();
        let place = String::from_utf8(output.expect("it has just run").stdout);
        let packages = PathBuf::from(place.expect("a path").trim_end());
        for program in [own, "/usr/bin/python3".into()] {
            let packages = packages.clone();
            let python = Self { program, packages };
            let mut look = python.command();
            let tried = look
                .args(["-c", "import patroni, psutil, psycopg"])
                .output();
            let there = tried.is_ok_and(|output| output.status.success());
            if there && !is_skipped("patroni") {
                return Some(python);
            }
        }
        lacks("patroni");
        None
    }

    /// Without packages of its own, which may be of other versions.
    pub fn command(&self) -> Command {
        let mut command = as_owner(Command::new(&self.program));
        command
            .current_dir("/")
            .arg("-S")
            .env("PYTHONPATH", &self.packages);
        command
    }
}

/// An etcd of the servers' user.
pub async fn etcd_of_owner(etcd: &Path, dir: &Path) -> (Process, u16) {
    let mut command = as_owner(Command::new(etcd));
    command.arg("--unsafe-no-fsync");
    let (mut process, port) = start_etcd(command, dir);
    process.listens_on(port).await;
    (process, port)
}

/// `members`: the ports of Postgres and of Patroni's REST API.
pub async fn start_haproxy(haproxy: &Path, dir: &Path, members: &[(u16, u16)]) -> (Process, u16) {
    let port = free_port();
    let mut command = as_owner(Command::new(haproxy));
    command
        .current_dir(dir)
        .args(["-db", "-f", FRONT])
        .env("LISTEN", loopback(port).to_string());
    for (number, (postgres, api)) in (1..).zip(members) {
        command.env(format!("DB{number}"), loopback(*postgres).to_string());
        command.env(format!("API{number}"), api.to_string());
    }
    let mut process = Process::start(&mut command);
    process.listens_on(port).await;
    (process, port)
}
