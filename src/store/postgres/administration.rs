//! [`Administration`] for [`PostgresStore`]: the start, the marks that operators read and change,
//! the audit, and the route table.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgArguments;
use sqlx::query::{Query, QueryAs};
use sqlx::{PgConnection, Postgres};

use super::connect::Phase;
use super::count::PIECE;
use super::instances::NOT_SETTLED;
use super::statements::LOCK_ONE;
use super::{PostgresStore, only, options, schema};
use crate::config::settings::Secret;
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, Failure, Schema};
use crate::store::{
    Administration, AuditRow, Count, Epoch, Era, InstanceId, InstanceRow, MarkRow, Override,
    PruneStep, Pruned, StoreError,
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
            Schema::Behind => return Err(rows::schema_behind()),
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
        let (marks, last): (i64, Option<String>) = self.one(&self.operators, statement).await?;
        let marks = marks.unsigned_abs();
        Ok(self.count.counted((marks, last.filter(|_| marks >= PIECE))))
    }

    fn counted(&self) -> Option<u64> {
        self.count.whole()
    }

    async fn view(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<Epoch>)>, StoreError> {
        let resource = std::slice::from_ref(resource);
        Ok(self.look_over(&self.operators, resource).await?.pop())
    }

    /// Locks the mark's row first: see [`LOCK_ONE`].
    ///
    /// Any error leaves the transaction open. The connection is then dropped, which ends it.
    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        let lock = self.query_as(LOCK_ONE).bind(resource.as_str());
        let era = self.query_as(NEXT_ERA);
        let change = self
            .query(
                "UPDATE marks SET previous = token, token = $3, spent_by = NULL, era = $4, \
                 changed_at = now() WHERE namespace = $1 AND resource = $2",
            )
            .bind(resource.as_str())
            .bind(token.get());
        self.on(&self.operators, async |c| {
            run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            let row: Vec<(i64, Vec<i64>)> = lock.fetch_all(&mut *c).await?;
            let Some((before, open)) = row.into_iter().next() else {
                run(c, "ROLLBACK").await?;
                return Ok(Override::Absent);
            };
            if !open.is_empty() {
                run(c, "ROLLBACK").await?;
                return Ok(Override::EpochsOpen(rows::epochs(&open)?));
            }
            let (era,): (Era,) = only(era.fetch_all(&mut *c).await?)?;
            change.bind(era).execute(&mut *c).await?;
            let marks = (Some(before), Some(token.get()));
            let entry = self.audit_entry(resource.as_str(), "override", marks, reason, actor);
            commit_audited(c, entry).await?;
            Ok(Override::Done {
                before: rows::number(before)?,
                era,
            })
        })
        .await
    }

    /// The leases are read behind the commit of the era: an instance that joins later reads it.
    async fn announce_prune(&self, me: InstanceId) -> Result<(Era, Duration), StoreError> {
        let era = self.query_as(NEXT_ERA);
        let longest = self
            .query_as(
                "SELECT COALESCE(max(lease_ms), 0) FROM instances \
                 WHERE namespace = $1 AND id <> $2 AND state = 0",
            )
            .bind(me.get());
        self.on(&self.operators, async |c| {
            let (era,): (Era,) = only(era.fetch_all(&mut *c).await?)?;
            let (longest,): (i64,) = only(longest.fetch_all(c).await?)?;
            Ok((era, Duration::from_millis(longest.unsigned_abs())))
        })
        .await
    }

    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        self.prune_step(step).await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        let marks = (row.before.map(Token::get), row.after.map(Token::get));
        let resource = row.resource.as_str();
        let entry = self.audit_entry(resource, &row.action, marks, &row.reason, &row.actor);
        self.one(&self.operators, entry).await.map(drop)
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
        let present = self.query_as(NOT_SETTLED).bind(self.place());
        let unknown = self.query_as(
            "SELECT DISTINCT m.open[s.i] FROM marks AS m \
             CROSS JOIN LATERAL generate_series(1, cardinality(m.open), 3) AS s(i) \
             WHERE m.namespace = $1 AND (SELECT true FROM instances AS i \
                 WHERE i.namespace = $1 AND i.id = m.open[s.i]) IS NULL",
        );
        let replace = self
            .query("UPDATE namespaces SET routes = $2 WHERE namespace = $1")
            .bind(document);
        self.on(&self.operators, async |c| {
            run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            self.touch().execute(&mut *c).await?;
            let mut present = rows::all(present.fetch_all(&mut *c).await?, rows::instance)?;
            if present.is_empty() {
                let unknown: Vec<(i64,)> = unknown.fetch_all(&mut *c).await?;
                let row = |(id,)| InstanceRow::unknown(InstanceId::from_row(id));
                present = unknown.into_iter().map(row).collect();
            }
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

    /// Writes an audit row, with the marks before and after, the reason and the actor; returns its
    /// id.
    pub(super) fn audit_entry<'a>(
        &'a self,
        resource: &'a str,
        action: &'a str,
        (before, after): (Option<i64>, Option<i64>),
        reason: &'a str,
        actor: &'a str,
    ) -> QueryAs<'a, Postgres, (i64,), PgArguments> {
        self.query_as(
            "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, now()) RETURNING id",
        )
        .bind(resource)
        .bind(action)
        .bind(before)
        .bind(after)
        .bind(reason)
        .bind(actor)
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
         (to_regclass('namespaces'), to_regclass('marks'), to_regclass('instances'))",
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

/// Commits a change with its audit row. A COMMIT may be answered with ROLLBACK, which is no error on
/// the wire.
pub(super) async fn commit_audited(
    connection: &mut PgConnection,
    entry: QueryAs<'_, Postgres, (i64,), PgArguments>,
) -> Result<(), Failure> {
    let (id,) = only(entry.fetch_all(&mut *connection).await?)?;
    run(connection, "COMMIT").await?;
    let kept = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM audit WHERE id = $1)");
    if only::<bool>(kept.bind(id).fetch_all(connection).await?)? {
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
