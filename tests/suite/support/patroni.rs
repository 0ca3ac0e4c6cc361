//! Three Postgres servers under Patroni, with etcd and `HAProxy`, set up by the very files that the
//! documents offer (`config/patroni`). What a member says to etcd, and what the other members say
//! to its Postgres, goes by [paths](super::path) that can be cut.
//!
//! As with [`super::postgres`], a shell takes it all down when the test process is gone.

pub mod member;
mod programs;

use std::net::SocketAddr;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::member::{Member, PASSWORD};
use self::programs::{Python, etcd_of_owner, hand_over, loopback, start_haproxy};
use super::path::can_stall;
use super::postgres::start_reaper;
use super::process::Process;
use super::skip::lacks;
use super::sql::{shell, sql};
use super::store::{has_postgres, quick_dir, tool};
use super::{Answer, Request, get, post, request};

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
    /// The value of the setting, and the number of standbys that have to be in this role.
    fn asks_for(self) -> (Value, &'static str, usize) {
        match self {
            Self::On => (json!(true), "sync_standby", 1),
            Self::Quorum => (json!("quorum"), "quorum_standby", 2),
            Self::Off => (json!(false), "replica", 2),
        }
    }
}

/// See the module's documentation. Dropped: ended and removed.
pub struct PatroniCluster {
    pub members: Vec<Member>,
    /// The database, by way of `HAProxy`.
    pub front: SocketAddr,
    _haproxy: Process,
    _etcd: Process,
    reaper: Child,
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
        let (etcd, haproxy, python) = (tool("etcd")?, tool("haproxy")?, Python::find()?);
        let dir = quick_dir().keep();
        hand_over(&dir);
        let reaper = start_reaper(&dir, REAPER);
        let (etcd, etcd_port) = etcd_of_owner(&etcd, &dir).await;
        let members: Vec<Member> = (1..=MEMBERS)
            .map(|number| Member::new(number, &dir, &python, etcd_port))
            .collect();
        let ports: Vec<_> = members.iter().map(|one| (one.port, one.api)).collect();
        let (haproxy, front) = start_haproxy(&haproxy, &dir, &ports).await;
        let cluster = Self {
            members,
            front: loopback(front),
            _haproxy: haproxy,
            _etcd: etcd,
            reaper,
        };
        for member in &cluster.members {
            member.start();
        }
        cluster.until_whole(Synchronous::On).await;
        let primary = cluster.primary().await.address().to_string();
        let mut admin = shell(&url_of(&primary, "postgres")).await;
        let database = "CREATE DATABASE fencepost ENCODING 'UTF8' TEMPLATE template0";
        sql(&mut admin, database).await;
        Some(cluster)
    }

    /// The member that has the leader's lock, as far as it knows.
    async fn leader(&self) -> Option<&Member> {
        for member in &self.members {
            let answer = member.ask(&get("/primary")).await;
            if answer.is_some_and(|answer| answer.status() == 200) {
                return Some(member);
            }
        }
        None
    }

    /// The primary, once there is one.
    pub async fn primary(&self) -> &Member {
        self.until("a primary", || self.leader()).await
    }

    /// Another primary than this one.
    pub async fn next_primary(&self, old: &Member) -> &Member {
        let other = async || self.leader().await.filter(|leader| leader.name != old.name);
        self.until("another primary", other).await
    }

    /// Asks the primary.
    async fn ask(&self, request: &Request) -> Option<Answer> {
        self.leader().await?.ask(request).await
    }

    /// The members, as the primary knows them.
    async fn known(&self) -> Option<Vec<Value>> {
        self.ask(&get("/cluster")).await?.json()["members"]
            .as_array()
            .cloned()
    }

    /// Waits until all members are there, and the standbys have what this asks for.
    pub async fn until_whole(&self, mode: Synchronous) {
        let (_, role, least) = mode.asks_for();
        let whole = async || {
            let members = self.known().await?;
            let has = |key: &str, is: &str| members.iter().filter(|one| one[key] == is).count();
            let whole = has("state", "streaming") == MEMBERS - 1 && has("role", role) >= least;
            whole.then_some(())
        };
        self.until("a whole cluster", whole).await;
    }

    /// Has commits wait for other standbys from now on.
    pub async fn set(&self, mode: Synchronous) {
        let body = json!({ "synchronous_mode": mode.asks_for().0 }).to_string();
        let change = request("PATCH", "/config").body(body);
        let changed = async || {
            let answer = self.ask(&change).await?;
            (answer.status() == 200).then_some(())
        };
        self.until("a change of the configuration", changed).await;
        self.until_whole(mode).await;
    }

    /// A standby whose commits the primary does not wait for, or, with a quorum, need not wait for.
    pub async fn spare_standby(&self) -> &Member {
        let spare = async || {
            let members = self.known().await?;
            let mut members = members.iter();
            let spare =
                members.find(|one| one["role"] == "replica" || one["role"] == "quorum_standby")?;
            self.members
                .iter()
                .find(|member| spare["name"] == member.name)
        };
        self.until("a standby to spare", spare).await
    }

    /// Asks for another primary, as `patronictl switchover` does.
    pub async fn switch_over(&self) {
        let done = async || {
            let old = self.leader().await?;
            let body = json!({ "leader": old.name }).to_string();
            let asked = post("/switchover").body(body);
            let answer = tokio::time::timeout(PATIENCE, asked.attempt(loopback(old.api))).await;
            (answer.ok()?.ok()?.status() == 200).then_some(())
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
                self.members.iter().map(Member::said).collect::<String>()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for PatroniCluster {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
    }
}

/// The database by this name at this address or, with commas, these.
pub fn url_of(addresses: &str, database: &str) -> String {
    format!("postgres://postgres:{PASSWORD}@{addresses}/{database}?target_session_attrs=read-write")
}
