//! Three Postgres servers under Patroni, with etcd and `HAProxy`, set up by the very files that the
//! documents offer (`config/patroni`). What a member says to etcd, and what the other members say
//! to its Postgres, goes by [paths](super::path) that can be cut.
//!
//! As with [`super::postgres`], a shell takes it all down when the test process is gone.

mod member;
mod programs;

use std::net::SocketAddr;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::member::{Member, PASSWORD};
use self::programs::{Python, etcd_of_owner, loopback, start_haproxy};
use super::path::can_stall;
use super::postgres::{owner, start_reaper};
use super::process::Process;
use super::skip::{is_skipped, lacks};
use super::sql::{shell, sql};
use super::store::{has_postgres, quick_dir, tool};
use super::{get, patch, post};

const MEMBERS: usize = 3;
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

    /// The number of standbys that have to be in this role.
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
    /// The port of `HAProxy`.
    front: u16,
    _haproxy: Process,
    _etcd: Process,
    reaper: Mutex<Child>,
}

impl PatroniCluster {
    /// A cluster with a primary, two standbys and an empty database. `None`, and a line that says
    /// so, where the machine lacks a part of it.
    pub async fn start() -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        if is_skipped("patroni") {
            lacks("patroni");
            return None;
        }
        if !can_stall() {
            lacks("socket-filters");
            return None;
        }
        let (etcd, haproxy, python) = (tool("etcd")?, tool("haproxy")?, Python::find()?);
        let dir = quick_dir().keep();
        if let Some((uid, gid)) = owner() {
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).expect("root may chown");
        }
        let reaper = Mutex::new(start_reaper(&dir, REAPER));
        let (etcd, etcd_port) = etcd_of_owner(&etcd, &dir).await;
        let members: Vec<Member> = (1..=MEMBERS)
            .map(|number| Member::new(number, &dir, &python, etcd_port))
            .collect();
        let ports: Vec<_> = members.iter().map(|one| (one.port, one.api)).collect();
        let (haproxy, front) = start_haproxy(&haproxy, &dir, &ports).await;
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
            assert!(
                began.elapsed() < PATIENCE,
                "waited {PATIENCE:?} in vain for: {what}\n{}",
                self.said()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The latest lines of each member.
    fn said(&self) -> String {
        let each = self.members.iter().map(Member::said);
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
