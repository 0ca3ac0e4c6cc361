//! Three Postgres servers under Patroni, with etcd and `HAProxy`, set up by the very files that the
//! documents offer (`config/patroni`). What a member says to etcd, and what the other members say
//! to its Postgres, goes by [paths](Path) that can be cut.
//!
//! As with [`super::postgres`], a shell takes it all down when the test process is gone.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::path::{Path, can_stall};
use super::postgres::{
    alive, binaries, children_of, free_port, owner, signal, start_reaper, wait_until,
};
use super::process::Process;
use super::python::python;
use super::skip::lacks;
use super::sql::{shell, sql};
use super::store::{has_postgres, quick_dir, tool};
use super::{Answer, Request, get, patch, post};

/// The cluster's files, as the documents offer them.
const MEMBER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/patroni/patroni.yaml");
const FRONT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/patroni/haproxy.cfg");
const MEMBERS: usize = 3;
const PASSWORD: &str = "only-for-tests-of-ours";
/// What a member is asked is answered within this, or it is frozen.
const ANSWER: Duration = Duration::from_secs(1);
/// More than `ttl`, an election and a `pg_rewind` take on a crowded machine.
const PATIENCE: Duration = Duration::from_mins(3);

/// Ends whatever runs in the directories of the members: Patroni, so that nobody starts anything
/// again, then each Postgres.
const REAPER: &str = r#"
    here() {
        find /proc -maxdepth 2 -path '/proc/[0-9]*/cwd' -lname "$1" 2>/dev/null | cut -d / -f 3
    }
    for p in $(here "$1"); do kill -KILL "$p"; done
    for n in "$1"/db*; do
        for p in $(here "$n"); do kill -KILL "$p"; done
        p=$(head -n 1 "$n/data/postmaster.pid" 2>/dev/null)
        for q in $(here "$n/data"); do
            kill -CONT "$q"
            [ "$q" != "$p" ] || kill -QUIT "$p"
        done
    done
    for i in $(seq 50); do [ -n "$(here "$1/*")" ] || break; sleep 0.1; done
    for p in $(here "$1/*"); do kill -KILL "$p"; done
"#;

/// Which commits of a primary wait for which standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Synchronous {
    On,
    Quorum,
    Off,
}

impl Synchronous {
    fn value(self) -> Value {
        match self {
            Self::On => json!(true),
            Self::Quorum => json!("quorum"),
            Self::Off => json!(false),
        }
    }

    /// How many standbys have to be in this role.
    fn standbys(self) -> (&'static str, usize) {
        match self {
            Self::On => ("sync_standby", 1),
            Self::Quorum => ("quorum_standby", 2),
            Self::Off => ("replica", 2),
        }
    }
}

/// See the module's documentation. Dropped: ended and removed.
pub struct PatroniCluster {
    pub members: Vec<Member>,
    /// Where `HAProxy` listens.
    front: u16,
    _haproxy: Process,
    _etcd: Process,
    reaper: Mutex<Child>,
}

/// One Patroni and its Postgres.
pub struct Member {
    pub name: String,
    /// Of its Postgres.
    pub port: u16,
    api: u16,
    /// From its Patroni to etcd.
    pub to_etcd: Path,
    /// From the other members to its Postgres.
    pub from_members: Path,
    dir: PathBuf,
    python: PathBuf,
    environment: Vec<(String, String)>,
    patroni: Mutex<Option<Process>>,
}

impl PatroniCluster {
    /// A cluster with a primary, two standbys and an empty database. `None`, and a line that says
    /// so, where the machine lacks a part of it.
    pub async fn start() -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        if !can_stall() {
            lacks("socket-filters");
            return None;
        }
        let (etcd, haproxy, python) = (tool("etcd")?, tool("haproxy")?, patroni_python()?);
        let dir = quick_dir().keep();
        if let Some((uid, gid)) = owner() {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).expect("root may chown");
        }
        let reaper = Mutex::new(start_reaper(&dir, REAPER));
        let (etcd, etcd_port) = start_etcd(&etcd, &dir).await;
        let members: Vec<Member> = (1..=MEMBERS)
            .map(|number| Member::new(number, &dir, &python, etcd_port))
            .collect();
        let (haproxy, front) = start_haproxy(&haproxy, &dir, &members).await;
        let cluster = Self {
            members,
            front,
            _haproxy: haproxy,
            _etcd: etcd,
            reaper,
        };
        for member in &cluster.members {
            member.start();
        }
        cluster.until_whole(Synchronous::On).await;
        let mut admin = shell(&cluster.url_of(
            &cluster.members[cluster.primary().await].address(),
            "postgres",
        ))
        .await;
        sql(
            &mut admin,
            "CREATE DATABASE fencepost ENCODING 'UTF8' TEMPLATE template0",
        )
        .await;
        Some(cluster)
    }

    /// The database, by way of `HAProxy`.
    pub fn front(&self) -> SocketAddr {
        loopback(self.front)
    }

    /// The database at this address or, with commas, these.
    pub fn url(&self, addresses: &str) -> String {
        self.url_of(addresses, "fencepost")
    }

    #[allow(clippy::unused_self, reason = "the password is the cluster's")]
    fn url_of(&self, addresses: &str, database: &str) -> String {
        format!(
            "postgres://postgres:{PASSWORD}@{addresses}/{database}?target_session_attrs=read-write"
        )
    }

    /// The member that has the leader's lock, as far as it knows.
    async fn leader(&self) -> Option<usize> {
        for (number, member) in self.members.iter().enumerate() {
            if member
                .ask(&get("/primary"))
                .await
                .is_some_and(|answer| answer.status() == 200)
            {
                return Some(number);
            }
        }
        None
    }

    /// The primary, once there is one.
    pub async fn primary(&self) -> usize {
        self.until("a primary", || self.leader()).await
    }

    /// Another primary than this one.
    pub async fn next_primary(&self, old: usize) -> usize {
        let other = async || self.leader().await.filter(|leader| *leader != old);
        self.until("another primary", other).await
    }

    /// Waits until all members are there, and the standbys have what this asks for.
    pub async fn until_whole(&self, mode: Synchronous) {
        let (role, least) = mode.standbys();
        let whole = async || {
            let leader = self.leader().await?;
            let answer = self.members[leader].ask(&get("/cluster")).await?;
            let members = answer.json()["members"].as_array()?.clone();
            let has = |name: &str, value: &str| {
                members
                    .iter()
                    .filter(|member| member[name] == value)
                    .count()
            };
            let whole = has("state", "streaming") == MEMBERS - 1 && has("role", role) >= least;
            whole.then_some(())
        };
        self.until("a whole cluster", whole).await;
    }

    /// Has commits wait for other standbys from now on.
    pub async fn set(&self, mode: Synchronous) {
        let body = json!({ "synchronous_mode": mode.value() }).to_string();
        let change = patch("/config").body(body);
        let changed = async || {
            let leader = self.leader().await?;
            let answer = self.members[leader].ask(&change).await?;
            (answer.status() == 200).then_some(())
        };
        self.until("a change of the configuration", changed).await;
        self.until_whole(mode).await;
    }

    /// A standby whose commits the primary does not wait for, or, with a quorum, need not wait for.
    pub async fn spare_standby(&self) -> usize {
        let spare = async || {
            let leader = self.leader().await?;
            let answer = self.members[leader].ask(&get("/cluster")).await?;
            let members = answer.json()["members"].as_array()?.clone();
            let spare = members.iter().find(|member| {
                ["replica", "quorum_standby"]
                    .iter()
                    .any(|role| member["role"] == *role)
            })?;
            self.members
                .iter()
                .position(|member| spare["name"] == member.name)
        };
        self.until("a standby to spare", spare).await
    }

    /// Asks for another primary, as `patronictl switchover` does.
    pub async fn switch_over(&self) {
        let done = async || {
            let old = self.leader().await?;
            let body = json!({ "leader": self.members[old].name }).to_string();
            let asked = post("/switchover").body(body);
            let to = loopback(self.members[old].api);
            let answer = tokio::time::timeout(PATIENCE, asked.attempt(to)).await;
            let answer = answer.ok()?.ok()?;
            (answer.status() == 200).then_some(())
        };
        self.until("a switchover", done).await;
    }

    async fn until<T>(&self, what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            if began.elapsed() > PATIENCE {
                panic!("waited {PATIENCE:?} in vain for: {what}\n{}", self.said());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The latest lines of each member.
    fn said(&self) -> String {
        let each = self.members.iter().map(|member| {
            let patroni = member.lock();
            let lines = patroni.as_ref().map(Process::lines).unwrap_or_default();
            let from = lines.len().saturating_sub(25);
            format!("--- {} ---\n{}", member.name, lines[from..].join("\n"))
        });
        each.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for PatroniCluster {
    fn drop(&mut self) {
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reaper.stdin.take());
        let _ = reaper.wait();
    }
}

impl Member {
    fn new(number: usize, dir: &FilePath, python: &FilePath, etcd: u16) -> Self {
        let name = format!("db{number}");
        let (port, api) = (free_port(), free_port());
        let (to_etcd, from_members) = (Path::start(loopback(etcd)), Path::start(loopback(port)));
        let dir = dir.join(&name);
        std::fs::create_dir(&dir).expect("the directory is ours");
        if let Some((uid, gid)) = owner() {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).expect("root may chown");
        }
        let here = |port| loopback(port).to_string();
        let bin = binaries().expect("Postgres is installed");
        let environment = [
            ("NAME", name.clone()),
            ("RESTAPI_LISTEN", here(api)),
            ("RESTAPI_CONNECT_ADDRESS", here(api)),
            ("POSTGRESQL_LISTEN", here(port)),
            (
                "POSTGRESQL_CONNECT_ADDRESS",
                from_members.address().to_string(),
            ),
            (
                "POSTGRESQL_DATA_DIR",
                dir.join("data").display().to_string(),
            ),
            ("POSTGRESQL_BIN_DIR", bin.display().to_string()),
            (
                "POSTGRESQL_PGPASS",
                dir.join("pgpass").display().to_string(),
            ),
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
            environment: environment
                .map(|(name, value)| (format!("PATRONI_{name}"), value))
                .to_vec(),
            dir,
            python: python.to_owned(),
            patroni: Mutex::new(None),
        }
    }

    /// Where its Postgres listens.
    pub fn address(&self) -> String {
        loopback(self.port).to_string()
    }

    /// Starts Patroni, which starts Postgres.
    pub fn start(&self) {
        let mut command = as_owner(patroni_command(&self.python));
        command
            .current_dir(&self.dir)
            .env("HOME", &self.dir)
            .envs(self.environment.iter().cloned())
            .args(["-m", "patroni", MEMBER]);
        *self.lock() = Some(Process::start(&mut command));
    }

    /// SIGKILL of Patroni and of every process of Postgres, as a lost machine.
    pub fn kill9(&self) {
        // Dropped, it is killed.
        drop(self.lock().take());
        self.crash();
    }

    /// SIGKILL of every process of Postgres.
    pub fn crash(&self) {
        let Some(postmaster) = self.postmaster() else {
            return;
        };
        // Or it forks another one meanwhile.
        signal(postmaster, Signal::STOP);
        let mut all = children_of(postmaster);
        all.push(postmaster);
        for pid in &all {
            signal(*pid, Signal::KILL);
        }
        tokio::task::block_in_place(|| {
            wait_until("a server's processes are gone", || {
                all.iter().all(|pid| !alive(*pid))
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
        if let Some(patroni) = self.lock().as_ref() {
            patroni.signal(what);
        }
    }

    fn signal_postgres(&self, what: Signal) {
        if let Some(postmaster) = self.postmaster() {
            signal(postmaster, what);
            for child in children_of(postmaster) {
                signal(child, what);
            }
        }
    }

    /// A signal for the process that receives what the primary has written.
    pub fn signal_receiver(&self, what: Signal) {
        let children = self.postmaster().map(children_of).unwrap_or_default();
        let receives = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains("walreceiver"))
        };
        for pid in children.into_iter().filter(receives) {
            signal(pid, what);
        }
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
    async fn ask(&self, request: &Request) -> Option<Answer> {
        let answer = tokio::time::timeout(ANSWER, request.attempt(loopback(self.api))).await;
        answer.ok()?.ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.patroni.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn as_owner(mut command: Command) -> Command {
    if let Some((uid, gid)) = owner() {
        command.uid(uid).gid(gid);
    }
    command
}

/// The packages of the tests' own Python, and an interpreter that the servers' user may run: the
/// one that root has may lie in root's home.
fn patroni_python() -> Option<PathBuf> {
    let own = python()?;
    let can = |python: &FilePath| {
        let mut command = as_owner(patroni_command(python));
        let tried = command
            .args(["-c", "import patroni, psutil, psycopg"])
            .output();
        tried.is_ok_and(|output| output.status.success())
    };
    let found = [own, PathBuf::from("/usr/bin/python3")]
        .into_iter()
        .find(|python| can(python));
    if found.is_none() {
        lacks("patroni");
    }
    found
}

/// An interpreter with those packages and no others.
fn patroni_command(python: &FilePath) -> Command {
    let tools = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/lib");
    let mut versions = std::fs::read_dir(tools).into_iter().flatten().flatten();
    let packages = versions
        .next()
        .map(|version| version.path().join("site-packages"));
    let mut command = Command::new(python);
    command
        .arg("-S")
        .env("PYTHONPATH", packages.unwrap_or_default());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir("/");
    command
}

async fn start_etcd(etcd: &FilePath, dir: &FilePath) -> (Process, u16) {
    let (port, peers) = (free_port(), free_port());
    let [client, peer] = [port, peers].map(|port| format!("http://{}", loopback(port)));
    let mut command = as_owner(Command::new(etcd));
    command
        .current_dir(dir)
        .args(["--data-dir", "etcd", "--unsafe-no-fsync"])
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")])
        .env(
            "ETCD_UNSUPPORTED_ARCH",
            std::env::consts::ARCH.replace("aarch64", "arm64"),
        );
    let mut process = Process::start(&mut command);
    process.listens_on(port).await;
    (process, port)
}

async fn start_haproxy(haproxy: &FilePath, dir: &FilePath, members: &[Member]) -> (Process, u16) {
    let port = free_port();
    let mut command = as_owner(Command::new(haproxy));
    command
        .current_dir(dir)
        .args(["-db", "-f", FRONT])
        .env("LISTEN", loopback(port).to_string());
    for (number, member) in (1..).zip(members) {
        command.env(format!("DB{number}"), member.address());
        command.env(format!("API{number}"), member.api.to_string());
    }
    let mut process = Process::start(&mut command);
    process.listens_on(port).await;
    (process, port)
}
