//! A Postgres primary and its standby, two clusters on loopback: the primary may be killed and the
//! standby promoted, as often as a test likes, each server staying on its port, so that one URL
//! names both for good.
//!
//! With [`Commits::WaitForStandby`] both servers run with `synchronous_standby_names = '*'` always.
//! So a promoted server answers no commit until its own standby is there: what it holds when it is
//! promoted is what it holds until [`PostgresPair::rebuild`], and can be compared at leisure with
//! what the upstream has seen.

use sqlx::postgres::PgConnection;
use tokio::task::block_in_place;

use super::postgres::Cluster;
use super::skip::lacks;
use super::sql::{shell, until};
use super::store::has_postgres;
use super::wait::Must as _;

/// The commits of a primary: they wait until the standby has flushed them, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    WaitForStandby,
    DontWait,
}

/// See the module's documentation.
pub struct PostgresPair {
    primary: Cluster,
    standby: Cluster,
    commits: Commits,
    database: String,
    hosts: String,
}

impl PostgresPair {
    /// A primary with its standby attached, and an empty database in both. `None`, and a line that
    /// says so, without Postgres.
    pub async fn start(commits: Commits) -> Option<Self> {
        Self::start_speaking(commits, None).await
    }

    /// The same, the primary speaking a language (`de_DE`).
    pub async fn start_speaking(commits: Commits, language: Option<&str>) -> Option<Self> {
        if !has_postgres() {
            return None;
        }
        let (primary, standby) = (Cluster::bare(), Cluster::bare());
        primary.init();
        let mut settings = settings(commits);
        let messages;
        if let Some(language) = language {
            if !primary.learn(language) {
                lacks("locales");
                return None;
            }
            messages = format!("lc_messages={language}.UTF-8");
            settings.push(&messages);
        }
        primary.start_with(&settings);
        let mut pair = Self {
            hosts: format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port()),
            database: String::new(),
            primary,
            standby,
            commits,
        };
        pair.rebuild().await;
        let url = pair.primary.create_database().await;
        let (_, name) = url.rsplit_once('/').expect("a URL ends with a name");
        name.clone_into(&mut pair.database);
        Some(pair)
    }

    /// The URL that names both servers and asks for the one that can be written to.
    pub fn url(&self) -> String {
        let Self {
            hosts, database, ..
        } = self;
        format!("postgres://postgres@{hosts}/{database}?target_session_attrs=read-write")
    }

    /// The URL that names one of the servers.
    pub fn url_of(&self, server: &Cluster) -> String {
        server.url(&self.database)
    }

    /// The server that is the primary now.
    pub fn primary(&self) -> &Cluster {
        &self.primary
    }

    /// The server that is the standby now; after a failover, until it is rebuilt, the dead one.
    pub fn standby(&self) -> &Cluster {
        &self.standby
    }

    /// A session of the superuser's on the primary, in the database.
    pub async fn shell(&self) -> PgConnection {
        shell(&self.primary.url(&self.database)).await
    }

    /// A session on the other server, once it has caught up: it may not have the database before.
    pub async fn standby_shell(&self) -> PgConnection {
        self.caught_up().await;
        shell(&self.standby.url(&self.database)).await
    }

    /// Kills every process of the primary, as a power cut would.
    pub fn kill_primary(&self) {
        block_in_place(|| self.primary.kill9());
    }

    /// Stops the standby cleanly: what the primary commits from now on a failover loses.
    pub fn detach(&self) {
        block_in_place(|| self.standby.stop());
    }

    /// Kills the primary, and starts and promotes the standby that was [detached](Self::detach).
    pub async fn lose(&mut self) {
        self.kill_primary();
        self.start_standby_alone();
        self.promote().await;
    }

    /// Makes the standby the primary, whatever the other one does.
    pub async fn promote(&mut self) {
        self.standby
            .execute("postgres", "SELECT pg_promote(true, 60)")
            .await;
        std::mem::swap(&mut self.primary, &mut self.standby);
    }

    /// Takes a fresh copy of the primary and attaches it as the standby, on the port it has always
    /// had.
    pub async fn rebuild(&mut self) {
        self.attach(&self.standby).await;
    }

    /// A third server, attached to the primary as a standby of its.
    pub async fn third(&self) -> Cluster {
        let third = Cluster::bare();
        self.attach(&third).await;
        third
    }

    async fn attach(&self, standby: &Cluster) {
        block_in_place(|| {
            standby.kill9();
            let data = standby.data();
            let _ = std::fs::remove_dir_all(&data);
            let output = standby
                .command("pg_basebackup")
                .args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-X", "stream"])
                .args(["--checkpoint=fast", "--no-sync"])
                .args(["-p", &self.primary.port().to_string()])
                .arg("-D")
                .arg(&data)
                .output()
                .expect("pg_basebackup can be run");
            assert!(
                output.status.success(),
                "pg_basebackup failed: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            standby.start_with(&settings(self.commits));
        });
        let mut shell = shell(&self.primary.url("postgres")).await;
        let attached = match self.commits {
            Commits::WaitForStandby => "sync",
            Commits::DontWait => "async",
        };
        let query = format!(
            "SELECT count(*) FROM pg_stat_replication \
             WHERE state = 'streaming' AND sync_state = '{attached}'"
        );
        until(&mut shell, "the standby streams", &query).await;
    }

    /// Starts the standby (after a failover: the old primary) by itself, as if it were a primary.
    pub fn start_standby_alone(&self) {
        block_in_place(|| self.standby.start_with(&settings(self.commits)));
    }

    /// Waits until the standby has replayed all that the primary has flushed.
    pub async fn caught_up(&self) {
        let replayed = "SELECT count(*) FROM pg_stat_replication \
             WHERE replay_lsn >= pg_current_wal_flush_lsn()";
        until(
            &mut self.shell().await,
            "the standby has caught up",
            replayed,
        )
        .await;
    }

    /// The commits of proxies that wait for the standby now: process id and statement.
    pub async fn waiting(&self, shell: &mut PgConnection) -> Vec<(i32, String)> {
        let waiting = "SELECT pid, query FROM pg_stat_activity \
             WHERE wait_event = 'SyncRep' AND application_name LIKE 'fencepost%'";
        sqlx::query_as(waiting).fetch_all(shell).must().await
    }
}

fn settings(commits: Commits) -> Vec<&'static str> {
    let mut settings = vec!["wal_retrieve_retry_interval=100ms"];
    if commits == Commits::WaitForStandby {
        settings.push("synchronous_standby_names=*");
    }
    settings
}
