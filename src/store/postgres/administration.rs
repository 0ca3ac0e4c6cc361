//! [`Administration`] for [`PostgresStore`]: the start, the marks that operators read and change,
//! the audit, and the route table.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

use super::connect::Phase;
use super::count::PIECE;
use super::instances;
use super::{PostgresStore, only, options, roles, schema};
use crate::config::settings::Secret;
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, EpochColumns, Failure, Schema};
use crate::store::{
    Administration, AuditRow, Count, EpochRow, Era, InstanceId, InstanceRow, MarkRow, Marks,
    Override, PruneStep, Pruned, StoreError,
};

/// Begins the namespace's next era, and returns it.
pub(super) const NEXT_ERA: &str = "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 1) \
     ON CONFLICT (namespace) DO UPDATE SET era = n.era + 1 RETURNING n.era";

#[async_trait]
impl Administration for PostgresStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(false)).await? {
            Schema::Current => {}
            Schema::Behind if self.migrate => super::migrate(self.address.clone()).await?,
            Schema::Behind => return Err(self.behind().await?),
        }
        self.check().await?;
        // The configuration's checks have already warned of a URL in it.
        if matches!(self.address.url, Secret::File(_)) && options::is_open_to_others(&self.address)
        {
            tracing::warn!(
                "the server that store.url_file names is not verified: any machine on the way to it can \
                 read and change marks"
            );
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(true)).await? {
            Schema::Current => Ok(()),
            Schema::Behind => Err(self.behind().await?),
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
        let statement = self
            .query_as(
                "SELECT resource, token, spent_by IS NOT NULL, era, \
                 floor(extract(epoch FROM changed_at) * 1000)::bigint FROM marks \
                 WHERE namespace = $1 AND resource >= $2 \
                 AND ($3::text IS NULL OR resource > $3) AND ($4::text IS NULL OR resource < $4) \
                 ORDER BY resource LIMIT $5",
            )
            .bind(span.from)
            .bind(span.after)
            .bind(span.until)
            .bind(i64::from(limit));
        self.rows(&self.operators, statement, rows::mark).await
    }

    /// Counts one piece, at most [`PIECE`] marks.
    async fn count_marks(&self) -> Result<Count, StoreError> {
        let statement = self
            .query_as(
                "SELECT count(*), max(piece.resource) FROM ( \
                     SELECT resource FROM marks WHERE namespace = $1 AND resource > $2 \
                     ORDER BY resource LIMIT $3) AS piece",
            )
            // No key is empty.
            .bind(self.count.after().unwrap_or_default())
            .bind(i64::try_from(PIECE).unwrap_or(i64::MAX));
        let count = async |c: &mut PgConnection| Ok(only(statement.fetch_all(c).await?)?);
        let (marks, last): (i64, Option<String>) = self.on(&self.operators, count).await?;
        let marks = marks.unsigned_abs();
        Ok(self.count.counted((marks, last.filter(|_| marks >= PIECE))))
    }

    fn counted(&self) -> Option<u64> {
        self.count.whole()
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        Ok(self.marks(std::slice::from_ref(resource)).await?.pop())
    }

    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError> {
        let resource = std::slice::from_ref(resource);
        self.epochs_over(&self.operators, resource).await
    }

    /// Locks the mark's row *first*. An advance holds that lock before it opens an epoch. So once
    /// the lock is held, no epoch can be opened before this commits. The epochs are read by a
    /// statement of its own after that, whose snapshot shows all that were opened.
    ///
    /// Any error leaves the transaction open. The connection is then dropped, which ends it.
    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        let lock = self
            .query_as("SELECT token FROM marks WHERE namespace = $1 AND resource = $2 FOR UPDATE")
            .bind(resource.as_str());
        let open = self
            .query_as(
                "SELECT resource, instance, opening, token FROM epochs \
                 WHERE namespace = $1 AND resource = $2 ORDER BY instance, opening",
            )
            .bind(resource.as_str());
        let era = self.query_as(NEXT_ERA);
        let change = self
            .query(
                "UPDATE marks SET previous = token, token = $3, spent_by = NULL, era = $4, \
                 changed_at = now() WHERE namespace = $1 AND resource = $2",
            )
            .bind(resource.as_str())
            .bind(token.get());
        let entry = self
            .query_as(
                "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
                 VALUES ($1, $2, 'override', $3, $4, $5, $6, now()) RETURNING id",
            )
            .bind(resource.as_str());
        self.on(&self.operators, async |c| {
            run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            let before: Vec<(i64,)> = lock.fetch_all(&mut *c).await?;
            let Some((before,)) = before.first().copied() else {
                run(c, "ROLLBACK").await?;
                return Ok(Override::Absent);
            };
            let open: Vec<EpochColumns> = open.fetch_all(&mut *c).await?;
            if !open.is_empty() {
                run(c, "ROLLBACK").await?;
                return Ok(Override::EpochsOpen(rows::all(open, rows::epoch)?));
            }
            let (era,): (Era,) = only(era.fetch_all(&mut *c).await?)?;
            change.bind(era).execute(&mut *c).await?;
            let entry = entry
                .bind(before)
                .bind(token.get())
                .bind(reason)
                .bind(actor);
            let (entry,): (i64,) = only(entry.fetch_all(&mut *c).await?)?;
            commit_audited(c, entry).await?;
            Ok(Override::Done {
                before: rows::number(before)?,
                era,
            })
        })
        .await
    }

    async fn announce_prune(&self, me: &InstanceId) -> Result<(Era, Duration), StoreError> {
        self.announce_prune_of(me).await
    }

    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        self.prune_step(step).await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        let statement = self
            .query(
                "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, now())",
            )
            .bind(row.resource.as_str())
            .bind(&row.action)
            .bind(row.before.map(Token::get))
            .bind(row.after.map(Token::get))
            .bind(&row.reason)
            .bind(&row.actor);
        self.execute(&self.operators, statement).await.map(drop)
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let statement = self
            .query_as(
                "SELECT resource, action, before, after, reason, actor, \
                 floor(extract(epoch FROM at) * 1000)::bigint FROM audit \
                 WHERE namespace = $1 AND resource = $2 ORDER BY id DESC LIMIT $3",
            )
            .bind(resource.as_str())
            .bind(i64::from(limit));
        self.rows(&self.operators, statement, rows::audit).await
    }

    async fn routes(&self) -> Result<Option<String>, StoreError> {
        self.on(&self.operators, async |c| self.read_routes(c).await)
            .await
    }

    /// An update that waited for the row compares it again when it has it.
    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        let statement = self
            .query(
                "INSERT INTO namespaces AS n (namespace, era, routes) \
                 SELECT $1, 0, $3 WHERE $2::text IS NULL \
                     OR EXISTS (SELECT 1 FROM namespaces AS o WHERE o.namespace = $1) \
                 ON CONFLICT (namespace) DO UPDATE SET routes = EXCLUDED.routes \
                 WHERE n.routes IS NOT DISTINCT FROM $2",
            )
            .bind(known)
            .bind(document);
        Ok(self.execute(&self.operators, statement).await? == 1)
    }

    /// Locks the namespace's row first, as every join does. So once the lock is held, no instance
    /// can join before this commits. The instances are read by a statement of its own after that,
    /// whose snapshot shows all that have joined.
    ///
    /// Any error leaves the transaction open. The connection is then dropped, which ends it.
    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        let present = self.query_as(instances::WITH_ORPHANS);
        let replace = self
            .query("UPDATE namespaces SET routes = $2 WHERE namespace = $1")
            .bind(document);
        self.on(&self.operators, async |c| {
            run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            self.touch().execute(&mut *c).await?;
            let present = rows::all(present.fetch_all(&mut *c).await?, rows::instance)?;
            if !present.is_empty() {
                run(c, "ROLLBACK").await?;
                return Ok(present);
            }
            replace.execute(&mut *c).await?;
            run(c, "COMMIT").await?;
            // A COMMIT may be answered with ROLLBACK, which is no error on the wire.
            if self.read_routes(c).await?.as_deref() != Some(document) {
                let message = "the route table was not replaced, or was replaced again";
                return Err(StoreError::Statement(message.to_owned()).into());
            }
            Ok(Vec::new())
        })
        .await
    }
}

impl PostgresStore {
    /// Proves a new connection, and reads the schema's version. `write` proves too that rows may be
    /// written.
    async fn prove(&self, write: bool) -> Result<Schema, StoreError> {
        let mut turn = self.operators.fresh(Phase::Start).await?;
        let schema = turn
            .run(async |c| {
                let schema = schema(c).await?;
                if write && schema == Schema::Current {
                    all_are_logged(c).await?;
                    self.touch().execute(c).await?;
                }
                Ok(schema)
            })
            .await?;
        turn.done();
        Ok(schema)
    }

    async fn behind(&self) -> Result<StoreError, StoreError> {
        let read = async |c: &mut PgConnection| Ok(roles::behind(c).await?);
        self.on(&self.operators, read).await
    }

    /// Writes the namespace's row as it is: proves that rows may be written, and locks it.
    fn touch(&self) -> Query<'static, Postgres, PgArguments> {
        self.query(
            "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 0) \
             ON CONFLICT (namespace) DO UPDATE SET era = n.era",
        )
    }

    async fn read_routes(&self, c: &mut PgConnection) -> Result<Option<String>, Failure> {
        let documents = self.query_as("SELECT routes FROM namespaces WHERE namespace = $1");
        let documents: Vec<(Option<String>,)> = documents.fetch_all(c).await?;
        Ok(documents.into_iter().find_map(|(document,)| document))
    }
}

/// Fails if a crash of the server would empty one of the tables, since it is not in the server's
/// log, nor on a standby.
async fn all_are_logged(connection: &mut PgConnection) -> Result<(), Failure> {
    let unlogged: Vec<String> = sqlx::query_scalar(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relpersistence <> 'p' AND c.oid IN \
         (to_regclass('namespaces'), to_regclass('marks'), to_regclass('epochs'), to_regclass('instances'))",
    )
    .fetch_all(connection)
    .await?;
    let Some(table) = unlogged.first() else {
        return Ok(());
    };
    Err(Failure::Store(StoreError::Unfit(format!(
        "the table {table} is UNLOGGED: a crash of the server empties it, and a standby does not have it. Run as its \
         owner: ALTER TABLE {table} SET LOGGED"
    ))))
}

/// Commits a change by its audit row. A COMMIT may be answered with ROLLBACK, which is no error on the
/// wire.
pub(super) async fn commit_audited(
    connection: &mut PgConnection,
    audit_id: i64,
) -> Result<(), Failure> {
    run(connection, "COMMIT").await?;
    let kept = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM audit WHERE id = $1)");
    if only::<bool>(kept.bind(audit_id).fetch_all(connection).await?)? {
        return Ok(());
    }
    let message = "the change was rolled back";
    Err(StoreError::Statement(message.to_owned()).into())
}

pub(super) async fn run(
    connection: &mut PgConnection,
    statement: &'static str,
) -> Result<(), Failure> {
    sqlx::raw_sql(statement).execute(connection).await?;
    Ok(())
}
