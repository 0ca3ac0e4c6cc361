//! One member of the cluster: Patroni, its Postgres, and what may happen to both.

use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;

use super::programs::{Python, hand_over, loopback};
use crate::support::path::Path;
use crate::support::postgres::{alive, binaries, children_of, free_port, signal, wait_until};
use crate::support::process::Process;
use crate::support::{Answer, Request};

/// The settings, as the documents offer them.
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/patroni/patroni.yaml");
/// Shared memory in the directory, and gone with it. Patroni lays one file over the other.
const TIDY: &str = "postgresql: { parameters: { dynamic_shared_memory_type: mmap } }";
/// The password of the cluster's roles.
pub const PASSWORD: &str = "only-for-tests-of-ours";
/// A member answers within this, or it is frozen.
const ANSWER: Duration = Duration::from_secs(1);

/// One Patroni and its Postgres.
pub struct Member {
    pub name: String,
    /// Of its Postgres.
    pub port: u16,
    /// Of Patroni's REST API.
    pub api: u16,
    /// From its Patroni to etcd.
    pub to_etcd: Path,
    /// From the other members to its Postgres.
    pub from_members: Path,
    dir: PathBuf,
    python: Python,
    environment: [(&'static str, String); 11],
    patroni: Mutex<Option<Process>>,
}

impl Member {
    pub fn new(number: usize, dir: &FilePath, python: &Python, etcd: u16) -> Self {
        let name = format!("db{number}");
        let (port, api) = (free_port(), free_port());
        let (to_etcd, from_members) = (Path::start(loopback(etcd)), Path::start(loopback(port)));
        let dir = dir.join(&name);
        std::fs::create_dir(&dir).expect("the directory is ours");
        hand_over(&dir);
        let settings = dir.join("settings");
        std::fs::create_dir(&settings).expect("the directory is ours");
        std::fs::copy(SETTINGS, settings.join("1.yaml")).expect("the directory is ours");
        std::fs::write(settings.join("2.yaml"), TIDY).expect("the directory is ours");
        let here = |port| loopback(port).to_string();
        let below = |file: &str| dir.join(file).display().to_string();
        let bin = binaries().expect("Postgres is installed");
        let others = from_members.address();
        let environment = [
            ("NAME", name.clone()),
            ("RESTAPI_LISTEN", here(api)),
            ("RESTAPI_CONNECT_ADDRESS", here(api)),
            ("POSTGRESQL_LISTEN", here(port)),
            ("POSTGRESQL_CONNECT_ADDRESS", others.to_string()),
            ("POSTGRESQL_DATA_DIR", below("data")),
            ("POSTGRESQL_BIN_DIR", bin.display().to_string()),
            ("POSTGRESQL_PGPASS", below("pgpass")),
            // A proxy of etcd: Patroni does not look for etcd's own addresses.
            ("ETCD3_PROXY", format!("http://{}", to_etcd.address())),
            ("SUPERUSER_PASSWORD", PASSWORD.to_owned()),
            ("REPLICATION_PASSWORD", PASSWORD.to_owned()),
        ];
        Self {
            name,
            port,
            api,
            to_etcd,
            from_members,
            environment,
            dir,
            python: python.clone(),
            patroni: Mutex::new(None),
        }
    }

    /// The address of its Postgres.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Starts Patroni, which starts Postgres.
    pub fn start(&self) {
        let mut command = self.python.command();
        command
            .current_dir(&self.dir)
            .env("HOME", &self.dir)
            .args(["-m", "patroni"])
            .arg(self.dir.join("settings"));
        for (name, value) in &self.environment {
            command.env(format!("PATRONI_{name}"), value);
        }
        *self.patroni.lock().expect("no panics") = Some(Process::start(&mut command));
    }

    /// SIGKILL of Patroni and of every process of Postgres, as a lost machine.
    pub fn kill9(&self) {
        // Dropped, it is killed.
        drop(self.patroni.lock().expect("no panics").take());
        self.crash();
    }

    /// SIGKILL of every process of Postgres.
    pub fn crash(&self) {
        // Or it forks another one meanwhile.
        if let Some(postmaster) = self.postmaster() {
            signal(postmaster, Signal::STOP);
        }
        let all = self.postgres();
        for pid in &all {
            signal(*pid, Signal::KILL);
        }
        tokio::task::block_in_place(|| {
            wait_until("a server's processes are gone", || {
                !all.iter().copied().any(alive)
            });
        });
    }

    /// SIGSTOP of Patroni and all of Postgres, as a machine that is suspended.
    pub fn freeze(&self) {
        self.signal_patroni(Signal::STOP);
        self.signal_postgres(Signal::STOP);
    }

    /// Ends that.
    pub fn thaw(&self) {
        self.signal_postgres(Signal::CONT);
        self.signal_patroni(Signal::CONT);
    }

    pub fn signal_patroni(&self, what: Signal) {
        if let Some(patroni) = self.patroni.lock().expect("no panics").as_ref() {
            patroni.signal(what);
        }
    }

    fn signal_postgres(&self, what: Signal) {
        for pid in self.postgres() {
            signal(pid, what);
        }
    }

    /// A signal for the process that receives what the primary has written.
    pub fn signal_receiver(&self, what: Signal) {
        for pid in self.postgres() {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            if line.is_ok_and(|line| line.contains("walreceiver")) {
                signal(pid, what);
            }
        }
    }

    /// The process ids of its Postgres, the postmaster's first.
    fn postgres(&self) -> Vec<u32> {
        let postmaster = self.postmaster().into_iter();
        postmaster
            .flat_map(|pid| [vec![pid], children_of(pid)].concat())
            .collect()
    }

    /// The process id of its Postgres, if that runs.
    fn postmaster(&self) -> Option<u32> {
        let data = self.dir.join("data");
        let file = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid: u32 = file.lines().next()?.parse().ok()?;
        let there = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (there == data).then_some(pid)
    }

    /// Asks Patroni's REST API.
    pub async fn ask(&self, request: &Request) -> Option<Answer> {
        let answer = tokio::time::timeout(ANSWER, request.attempt(loopback(self.api))).await;
        answer.ok()?.ok()
    }

    /// The latest lines of Patroni and Postgres.
    pub fn said(&self) -> String {
        let patroni = self.patroni.lock().expect("no panics");
        let lines = patroni.as_ref().map(Process::lines).unwrap_or_default();
        let from = lines.len().saturating_sub(25);
        format!("--- {} ---\n{}\n", self.name, lines[from..].join("\n"))
    }
}
