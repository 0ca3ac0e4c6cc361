//! Where the marks of a test live: an embedded file, or a database of its own on a server that the
//! suite starts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencepost::config::{Hidden, PostgresAddress, Secret, StoreTls};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;

use super::postgres::{Cluster, binaries};
use super::skip::{is_skipped, lacks};
use super::sql::{number, open_file, shell, sql, sqlite};
use super::wait::{Must as _, eventually};

/// A directory for marks: in memory where there is room for it, since the disk is not the tests'
/// own, and who waits for it waits for whatever else it does. A process that is killed loses
/// nothing there that it would keep on a disk.
pub fn quick_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |file| file.f_bavail * file.f_frsize);
    let mut builder = tempfile::Builder::new();
    builder.prefix("fencepost-");
    let dir = if room > 4 << 30 {
        builder.tempdir_in(memory).or_else(|_| builder.tempdir())
    } else {
        builder.tempdir()
    };
    dir.expect("a temporary directory can be made")
}

/// A directory on a disk, for a store that no configuration allows to be in memory: `/tmp` may be.
pub fn disk_dir() -> TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory on a disk can be made")
}

/// The address of a Postgres, with all that TLS needs in the URL.
pub fn address(url: &str) -> PostgresAddress {
    PostgresAddress {
        url: Secret::Literal(Hidden(url.to_owned())),
        tls: StoreTls::default(),
        application_name: None,
    }
}

/// The instances that have neither died nor stopped.
pub const LIVING: &str = "SELECT count(*) FROM instances WHERE state = 0";
/// The instances that may have something in flight.
pub const NOT_SETTLED: &str = "SELECT count(*) FROM instances WHERE state < 2";

/// A store. It outlives the proxies that use it.
#[derive(Clone)]
pub struct Store {
    url: String,
    /// The directory of an embedded one.
    dir: Option<Arc<TempDir>>,
}

impl Store {
    /// A file of its own.
    pub fn sqlite() -> Self {
        let dir = quick_dir();
        Self {
            url: format!("sqlite:{}", dir.path().join("marks.db").display()),
            dir: Some(Arc::new(dir)),
        }
    }

    /// A database of its own on the server that all tests share; `None`, and a line that says so,
    /// where the machine has no Postgres.
    pub async fn postgres() -> Option<Self> {
        has_postgres().then_some(())?;
        Some(Self::on(Cluster::shared()).await)
    }

    /// A database of its own on this server.
    pub async fn on(cluster: &Cluster) -> Self {
        Self::at(&cluster.create_database().await)
    }

    /// A database that is there already, at this URL.
    pub fn at(url: &str) -> Self {
        let (url, dir) = (url.to_owned(), None);
        Self { url, dir }
    }

    /// Returns whether many proxies can share it.
    pub fn is_shared(&self) -> bool {
        self.dir.is_none()
    }

    /// The value of `store.url`.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Where the file of an embedded store is.
    ///
    /// # Panics
    /// If it is a Postgres.
    pub fn path(&self) -> PathBuf {
        let dir = self.dir.as_ref().expect("a Postgres is not a file");
        dir.path().join("marks.db")
    }

    /// A number from the database itself, past every proxy.
    ///
    /// # Panics
    /// If it has no number for an answer.
    pub async fn number(&self, query: &str) -> i64 {
        if self.is_shared() {
            return number(&mut self.direct().await, query).await;
        }
        let asked = sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned()));
        asked.fetch_one(&mut self.file().await).must().await
    }

    /// Waits until [`Self::number`] is this one.
    pub async fn until(&self, query: &str, wanted: i64) {
        eventually(&format!("{query} to say {wanted}"), || async {
            (self.number(query).await == wanted).then_some(())
        })
        .await;
    }

    /// A query for [`Self::number`]: how many epochs stand in the rows for which a condition on
    /// `namespace`, `resource`, `instance`, `opening` and `token` holds, over or not.
    pub fn epochs(&self, condition: &str) -> String {
        let epochs = if self.is_shared() {
            "SELECT m.namespace, m.resource, m.open[s.i] AS instance, m.open[s.i + 1] AS opening, \
             m.open[s.i + 2] AS token \
             FROM marks AS m, generate_series(1, cardinality(m.open), 3) AS s(i)"
        } else {
            "SELECT m.namespace, m.resource, s.value AS instance, \
             json_extract(m.open, '$[' || (s.key + 1) || ']') AS opening, \
             json_extract(m.open, '$[' || (s.key + 2) || ']') AS token \
             FROM marks AS m, json_each(m.open) AS s WHERE s.key % 3 = 0"
        };
        format!("SELECT count(*) FROM ({epochs}) AS e WHERE {condition}")
    }

    /// As [`Self::epochs`], of those that are not over.
    pub fn open_epochs(&self, condition: &str) -> String {
        let not_left = if self.is_shared() {
            "e.opening <> ALL (i.left_open)"
        } else {
            "e.opening NOT IN (SELECT value FROM json_each(i.left_open))"
        };
        self.epochs(&format!(
            "{condition} AND NOT EXISTS (SELECT 1 FROM instances AS i \
             WHERE i.namespace = e.namespace AND i.id = e.instance \
             AND e.opening < i.closed_below AND {not_left})"
        ))
    }

    /// Runs statements past every proxy, as somebody with a shell would.
    ///
    /// # Panics
    /// If it refuses.
    pub async fn execute(&self, statements: &str) {
        if self.is_shared() {
            return sql(&mut self.direct().await, statements).await;
        }
        let mut file = self.file().await;
        sqlite(&mut file, statements).await;
        file.close().must().await;
    }

    /// A connection of a test's own to its file, which is made if it is not there.
    ///
    /// # Panics
    /// If it is not `SQLite`.
    pub async fn file(&self) -> SqliteConnection {
        open_file(&self.path()).await
    }

    /// A connection of a test's own to its database.
    ///
    /// # Panics
    /// If it is not Postgres.
    pub async fn direct(&self) -> PgConnection {
        shell(&self.url()).await
    }

    /// The `store` section of a configuration.
    pub fn settings(&self) -> Value {
        if self.is_shared() {
            return json!({ "url": self.url, "namespace": "orders" });
        }
        // See `quick_dir`.
        json!({ "url": self.url, "volatile": true })
    }
}

/// Returns whether a test can have Postgres; says so where it cannot.
///
/// # Panics
/// As [`lacks`].
pub fn has_postgres() -> bool {
    let found = binaries().filter(|_| !is_skipped("postgres"));
    said_where_none("postgres", found).is_some()
}

/// As [`program`]; says so where there is none.
///
/// # Panics
/// As [`lacks`].
pub fn tool(name: &str) -> Option<PathBuf> {
    said_where_none(name, program(name))
}

fn said_where_none<T>(name: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        lacks(name);
    }
    found
}

/// Where a program of this name is, in the path or where Debian puts servers; `None` too if it is
/// to be skipped.
pub fn program(name: &str) -> Option<PathBuf> {
    if is_skipped(name) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([Path::new("/usr/sbin").to_owned()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
