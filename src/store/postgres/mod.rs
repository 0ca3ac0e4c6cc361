//! [`PostgresStore`]: the shared store, for any number of proxies per namespace.
//!
//! Each call is one statement, committed by itself ([`batch`](crate::store::Marks::batch) and
//! [`override_mark`](Administration::override_mark) excepted), on a dedicated connection: one for
//! the writer; one for the heartbeat, so that a busy writer never costs the lease; one that reads
//! all of an instance's own rows, so that their number holds up neither; and one for operators. An answer counts only when it has been
//! read to its end: the server reports a statement complete *before* it commits it, and ready for
//! the next one after. So rows are always fetched to the last (`fetch_all`, `execute`), never by
//! `fetch_one` and its kin, which return at the first.
//!
//! Of sqlx's `begin` and `commit` no use is made: `begin` is not safe to cancel, and `commit` takes
//! a ROLLBACK for an answer.

mod administration;
mod batch;
mod connect;
mod count;
mod errors;
mod fetch;
mod instances;
mod life;
mod marks;
mod notifications;
mod operators;
mod options;
mod own;
mod roles;
mod slot;
mod statements;
mod upgrade;
mod warnings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::migrate::{MigrateError, Migrator};

use self::connect::{Connector, Phase};
use self::count::Counting;
use self::errors::error_of;
pub use self::roles::grant;
use self::slot::DedicatedConnection;
use super::rows::{self, Applied, Failure, Schema};
use crate::config::settings::PostgresAddress;
use crate::store::{Administration, InstanceRow, MarkStore, StoreError};

/// How long a migration may take, waiting for another one included.
const MIGRATION: Duration = Duration::from_mins(1);

/// Notifications that nobody has taken yet; after that the listening waits.
const NEWS: usize = 1024;

/// Marks in a Postgres.
#[derive(Debug)]
pub struct PostgresStore {
    namespace: Arc<str>,
    channel: String,
    timeout: Duration,
    address: PostgresAddress,
    migrate: bool,
    connector: Arc<Connector>,
    writer: DedicatedConnection,
    /// How many batches were sent.
    batches: AtomicU64,
    heartbeat: DedicatedConnection,
    reader: DedicatedConnection,
    people: DedicatedConnection,
    /// Which of the membership task's connections answered the last read of the instances.
    instances_over: AtomicU64,
    count: Counting,
}

impl PostgresStore {
    /// Connects to nothing yet: see [`Administration::prepare`]. `timeout` bounds each call; row locks are
    /// waited for half as long.
    #[must_use]
    pub fn new(
        address: impl Into<PostgresAddress>,
        namespace: &str,
        timeout: Duration,
        migrate: bool,
    ) -> Self {
        let address = address.into();
        let connector = Arc::new(Connector::new(address.clone(), timeout, timeout / 2));
        let slot = || DedicatedConnection::new(Arc::clone(&connector));
        Self {
            namespace: namespace.into(),
            channel: notifications::channel(namespace),
            timeout,
            address,
            migrate,
            writer: slot().for_batches(),
            batches: AtomicU64::new(0),
            heartbeat: slot(),
            reader: slot(),
            people: slot(),
            instances_over: AtomicU64::new(0),
            count: Counting::default(),
            connector: Arc::clone(&connector),
        }
    }

    /// [`Self::new`] and [`Administration::prepare`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unfit`] for what an operator must mend; [`StoreError::Connection`] or
    /// [`StoreError::Timeout`] where it may help to try again.
    pub async fn open(
        address: impl Into<PostgresAddress>,
        namespace: &str,
        timeout: Duration,
        migrate: bool,
    ) -> Result<Self, StoreError> {
        let store = Self::new(address, namespace, timeout, migrate);
        store.prepare().await?;
        Ok(store)
    }

    /// Proves a new connection, and looks at the schema; `write` proves too that rows may be
    /// written.
    async fn prove(&self, write: bool) -> Result<Schema, StoreError> {
        let mut turn = self.people.fresh(Phase::Start).await?;
        let schema = turn
            .run(async |c| {
                let schema = schema(c).await?;
                if write && schema == Schema::Current {
                    operators::touch(c, &self.namespace).await?;
                }
                Ok(schema)
            })
            .await?;
        turn.done();
        Ok(schema)
    }

    /// Runs work on a slot's connection, within the timeout. A future that is dropped, and work
    /// that fails, is warned of or takes too long, closes the connection.
    async fn on<T>(
        &self,
        slot: &DedicatedConnection,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.bounded(async {
            let mut turn = slot.turn().await?;
            let done = turn.run(work).await?;
            turn.done();
            Ok(done)
        })
        .await
    }

    async fn read_instances(&self, orphans: life::Orphans) -> Result<Vec<InstanceRow>, StoreError> {
        self.bounded(async {
            let mut turn = self.heartbeat.turn().await?;
            let read = turn.run(async |c| life::instances(c, &self.namespace, orphans).await);
            let rows = read.await?;
            self.instances_over.store(turn.number(), Ordering::Relaxed);
            turn.done();
            Ok(rows)
        })
        .await
    }

    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout, work)
            .await
            .unwrap_or(Err(StoreError::Timeout(self.timeout)))
    }
}

/// Brings the schema up to date, under an advisory lock, for `fencepost migrate`. Not beside proxies of
/// version 0.1.0.
///
/// # Errors
///
/// As [`PostgresStore::open`].
pub async fn migrate(address: impl Into<PostgresAddress>) -> Result<(), StoreError> {
    let address = address.into();
    upgrade::none_of_before(&address).await?;
    let connector = Connector::new(address, MIGRATION, MIGRATION / 2);
    let work = async {
        let mut line = connector.connect(Phase::Start).await?;
        // A role that may not change the schema need not, as long as nothing is to be changed.
        if schema(line.bare()).await? == Schema::Current {
            return Ok(());
        }
        // A warning here costs nothing: the first mark that is durable comes after this in the server's log, so a
        // standby that has the one has the other.
        // `run` is the same, but its future cannot be sent between threads.
        migrator()
            .run_direct(None, line.bare(), false)
            .await
            .map_err(|error| match error {
                MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                    error_of(error)
                }
                other => StoreError::Unfit(format!(
                    "the schema could not be brought up to date: {other}"
                )),
            })
        // Dropped here, the connection gives up the migrator's lock, whatever has happened.
    };
    tokio::time::timeout(MIGRATION, work)
        .await
        .unwrap_or(Err(StoreError::Timeout(MIGRATION)))
}

pub(super) fn migrator() -> Migrator {
    rows::migrator(&[
        (
            1,
            "marks",
            include_str!("../migrations/postgres/0001_marks.sql"),
        ),
        (
            2,
            "terms",
            include_str!("../migrations/postgres/0002_terms.sql"),
        ),
        (
            3,
            "route_table",
            include_str!("../migrations/postgres/0003_route_table.sql"),
        ),
        (
            4,
            "no_older",
            include_str!("../migrations/postgres/0004_no_older.sql"),
        ),
    ])
}

async fn schema(connection: &mut PgConnection) -> Result<Schema, StoreError> {
    let known: Vec<bool> =
        sqlx::query_scalar("SELECT to_regclass('fencepost_migrations') IS NOT NULL")
            .fetch_all(&mut *connection)
            .await
            .map_err(error_of)?;
    if known != [true] {
        return Ok(Schema::Behind);
    }
    let applied: Vec<Applied> =
        sqlx::query_as("SELECT version, checksum, success FROM fencepost_migrations")
            .fetch_all(connection)
            .await
            .map_err(error_of)?;
    rows::judge_schema(&migrator(), &applied)
}

impl MarkStore for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn shared(&self) -> bool {
        true
    }
}
