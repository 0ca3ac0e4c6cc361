//! [`PostgresStore`]: the shared store, for any number of proxies per namespace.
//!
//! Each call is one statement, committed by itself ([`batch`](MarkStore::batch) and
//! [`override_mark`](MarkStore::override_mark) excepted), on a dedicated connection: one for the writer, one for the membership task of the lease, so that
//! a busy writer never costs the lease, one for what reads an instance's own rows, all of them, so that
//! their number holds up neither, and one for people. An answer counts only when it has been
//! read to its end: the server reports a statement complete *before* it commits it, and ready for
//! the next one after. So rows are always fetched to the last (`fetch_all`, `execute`), never by
//! `fetch_one` and its kin, which return at the first.
//!
//! Of sqlx's `begin` and `commit` no use is made: `begin` is not safe to cancel, and `commit` takes
//! a ROLLBACK for an answer.

mod batch;
mod connect;
mod count;
mod errors;
mod fetch;
mod life;
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

use async_trait::async_trait;
use sqlx::PgConnection;
use sqlx::migrate::{MigrateError, Migrator};
use tokio::sync::mpsc;

use self::connect::{Connector, Phase};
use self::count::Counting;
use self::errors::error_of;
pub use self::roles::grant;
use self::slot::ConnectionSlot;
use super::rows::{self, Applied, Failure, Schema};
use crate::config::settings::{PostgresAddress, Secret};
use crate::routing::{ResourceKey, Token};
use crate::store::{
    AuditRow, Batch, Batched, Burial, Count, Cursor, EpochRow, Era, Heard, InstanceId, InstanceRow,
    MarkRow, MarkStore, Notification, Opening, Override, OwnRow, RecordedRoutes, Renewal,
    StoreError, Terms,
};

/// How long a migration may take, waiting for another one included.
const MIGRATION: Duration = Duration::from_mins(1);

/// Notification that nobody has taken yet; after that the listening waits.
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
    writer: ConnectionSlot,
    /// How many batches were sent.
    batches: AtomicU64,
    heartbeat: ConnectionSlot,
    reader: ConnectionSlot,
    people: ConnectionSlot,
    /// Which of the membership task's connections answered the last read of the instances.
    instances_over: AtomicU64,
    count: Counting,
}

impl PostgresStore {
    /// Connects to nothing yet: see [`MarkStore::prepare`]. `timeout` bounds each call; row locks are
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
        let slot = || ConnectionSlot::new(Arc::clone(&connector));
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

    /// [`Self::new`] and [`MarkStore::prepare`].
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
        slot: &ConnectionSlot,
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

#[async_trait]
impl MarkStore for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn shared(&self) -> bool {
        true
    }

    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        self.on(&self.writer, async |c| {
            batch::run(c, (&self.namespace, &self.channel), batch, number).await
        })
        .await
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        self.on(&self.writer, async |c| {
            statements::epochs(c, &self.namespace, resources).await
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.on(&self.writer, async |c| {
            statements::close(c, &self.namespace, epochs).await
        })
        .await
    }

    async fn close_wanted(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let news = epochs.iter().map(|row| Notification::Closed {
            resource: row.resource.clone(),
        });
        let mut payloads: Vec<String> = news
            .filter_map(|news| notifications::encode(&news))
            .collect();
        payloads.sort();
        payloads.dedup();
        self.on(&self.writer, async |c| {
            statements::close_wanted(c, &self.namespace, epochs, &self.channel, &payloads).await
        })
        .await
    }

    async fn cede(&self, epochs: &[EpochRow]) -> Result<Vec<MarkRow>, StoreError> {
        self.on(&self.people, async |c| {
            statements::cede(c, &self.namespace, epochs, &self.channel).await
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.on(&self.writer, async |c| {
            statements::reopen(c, &self.namespace, epochs).await
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        self.on(&self.writer, async |c| {
            statements::give_back(c, &self.namespace, spends).await
        })
        .await
    }

    async fn announce(&self, news: &[Notification]) -> Result<(), StoreError> {
        let payloads: Vec<String> = news.iter().filter_map(notifications::encode).collect();
        self.on(&self.writer, async |c| {
            statements::notify(c, &self.channel, &payloads).await
        })
        .await
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        self.on(&self.reader, async |c| {
            own::page(c, &self.namespace, instance, after, limit).await
        })
        .await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        self.on(&self.reader, async |c| {
            own::of(c, &self.namespace, instance, resources).await
        })
        .await
    }

    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError> {
        self.on(&self.reader, async |c| {
            own::close(c, &self.namespace, instance, after, limit, kept).await
        })
        .await
    }

    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::join(c, &self.namespace, instance, terms).await
        })
        .await
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::set_routes(c, &self.namespace, instance, digest).await
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::renew(c, &self.namespace, instance, renewals).await
        })
        .await
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.on(&self.people, async |c| {
            life::raise_era(c, &self.namespace, era).await
        })
        .await
    }

    fn connections(&self) -> u64 {
        self.connector.made()
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read_instances(life::Orphans::Found).await
    }

    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read_instances(life::Orphans::LeftOut).await
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        self.bounded(async {
            let mut turn = self.heartbeat.turn().await?;
            let over = self.instances_over();
            if over != 0 && over != turn.number() {
                // A fresh connection, and in good health: the next read is over this one.
                turn.done();
                let why = "this is another connection than the one that the counter was read over";
                return Err(StoreError::Connection(why.to_owned()));
            }
            let declare = turn
                .run(async |c| life::declare_dead(c, &self.namespace, instance, renewals).await);
            let dead = declare.await?;
            turn.done();
            Ok(dead)
        })
        .await
    }

    /// Beside the renewals, on the people's connection: neither is often used, and should both be at
    /// once, one of them makes a connection more.
    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        self.on(&self.people, async |c| {
            life::bury(c, &self.namespace, instance, first, after).await
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.on(&self.heartbeat, async |c| {
            life::leave(c, &self.namespace, instance).await
        })
        .await
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(false)).await? {
            Schema::Current => {}
            Schema::Behind if self.migrate => self::migrate(self.address.clone()).await?,
            Schema::Behind => return Err(rows::schema_behind()),
        }
        self.check().await?;
        // Of a URL in the configuration its checks have told already.
        if matches!(self.address.url, Secret::File(_)) && options::is_open_to_others(&self.address)
        {
            tracing::warn!(
                "the server that store.url_file names is not verified: what is on the way to it can read and \
                 change marks"
            );
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(true)).await? {
            Schema::Current => Ok(()),
            Schema::Behind => Err(rows::schema_behind()),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let Some(span) = rows::span(prefix, after) else {
            return Ok(Vec::new());
        };
        self.on(&self.people, async |c| {
            operators::list(c, &self.namespace, &span, limit).await
        })
        .await
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        let after = self.count.after();
        let counted = self
            .on(&self.people, async |c| {
                operators::count(c, &self.namespace, after.as_deref()).await
            })
            .await?;
        Ok(self.count.counted(counted))
    }

    fn counted(&self) -> Option<u64> {
        self.count.whole()
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::mark(c, &self.namespace, resource).await
        })
        .await
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::marks(c, &self.namespace, resources).await
        })
        .await
    }

    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError> {
        self.on(&self.people, async |c| {
            statements::epochs(c, &self.namespace, std::slice::from_ref(resource)).await
        })
        .await
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        self.on(&self.people, async |c| {
            operators::override_mark(c, &self.namespace, resource, token, reason, actor).await
        })
        .await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        self.on(&self.people, async |c| {
            operators::record_audit(c, &self.namespace, row).await
        })
        .await
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::audit(c, &self.namespace, resource, limit).await
        })
        .await
    }

    async fn routes(&self) -> Result<RecordedRoutes, StoreError> {
        self.on(&self.people, async |c| {
            operators::routes(c, &self.namespace).await
        })
        .await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        self.on(&self.people, async |c| {
            operators::record_routes(c, &self.namespace, known, document).await
        })
        .await
    }

    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::replace_routes(c, &self.namespace, document).await
        })
        .await
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (heard, receiver) = mpsc::channel(NEWS);
        let listening =
            notifications::listen(Arc::clone(&self.connector), self.channel.clone(), heard);
        tokio::spawn(listening);
        Some(receiver)
    }
}
