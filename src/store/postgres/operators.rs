//! The statements for people and for the start: lists, overrides, the audit, the route table.

use sqlx::PgConnection;

use super::count::PIECE;
use super::fetch::{all, only};
use super::life;
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, AuditColumns, EpochColumns, Failure, MarkColumns, Span};
use crate::store::{AuditRow, Era, InstanceRow, MarkRow, Override, RecordedRoutes, StoreError};

/// Writes the namespace's row as it is: proof that rows may be written.
pub(super) async fn touch(connection: &mut PgConnection, namespace: &str) -> Result<(), Failure> {
    sqlx::query(
        "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 0) \
         ON CONFLICT (namespace) DO UPDATE SET era = n.era",
    )
    .bind(namespace)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn list(
    connection: &mut PgConnection,
    namespace: &str,
    span: &Span,
    limit: u32,
) -> Result<Vec<MarkRow>, Failure> {
    let rows: Vec<MarkColumns> = sqlx::query_as(
        "SELECT resource, token, spent_by IS NOT NULL, era, \
         floor(extract(epoch FROM changed_at) * 1000)::bigint FROM marks \
         WHERE namespace = $1 AND resource >= $2 \
         AND ($3::text IS NULL OR resource > $3) AND ($4::text IS NULL OR resource < $4) \
         ORDER BY resource LIMIT $5",
    )
    .bind(namespace)
    .bind(&span.from)
    .bind(&span.after)
    .bind(&span.until)
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    all(rows, rows::mark)
}

/// Counts the marks behind a key, at most [`PIECE`]; with the last key if there may be more.
pub(super) async fn count(
    connection: &mut PgConnection,
    namespace: &str,
    after: Option<&str>,
) -> Result<(u64, Option<String>), Failure> {
    let counted: Vec<(i64, Option<String>)> = sqlx::query_as(
        "SELECT count(*), max(piece.resource) FROM ( \
             SELECT resource FROM marks WHERE namespace = $1 AND resource > $2 \
             ORDER BY resource LIMIT $3) AS piece",
    )
    .bind(namespace)
    // No key is empty.
    .bind(after.unwrap_or_default())
    .bind(i64::try_from(PIECE).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    let (marks, last) = only(counted)?;
    let marks = marks.unsigned_abs();
    Ok((marks, last.filter(|_| marks >= PIECE)))
}

pub(super) async fn mark(
    connection: &mut PgConnection,
    namespace: &str,
    resource: &ResourceKey,
) -> Result<Option<MarkRow>, Failure> {
    let rows: Vec<MarkColumns> = sqlx::query_as(
        "SELECT resource, token, spent_by IS NOT NULL, era, \
         floor(extract(epoch FROM changed_at) * 1000)::bigint FROM marks \
         WHERE namespace = $1 AND resource = $2",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .fetch_all(connection)
    .await?;
    Ok(all(rows, rows::mark)?.pop())
}

pub(super) async fn marks(
    connection: &mut PgConnection,
    namespace: &str,
    resources: &[ResourceKey],
) -> Result<Vec<MarkRow>, Failure> {
    let resources: Vec<&str> = resources.iter().map(ResourceKey::as_str).collect();
    let rows: Vec<MarkColumns> = sqlx::query_as(
        "SELECT m.resource, m.token, m.spent_by IS NOT NULL, m.era, \
         floor(extract(epoch FROM m.changed_at) * 1000)::bigint FROM marks AS m JOIN ( \
             SELECT DISTINCT $1::text AS namespace, k.resource FROM unnest($2::text[]) AS k(resource) \
         ) AS k ON m.namespace = k.namespace AND m.resource = k.resource",
    )
    .bind(namespace)
    .bind(resources)
    .fetch_all(connection)
    .await?;
    all(rows, rows::mark)
}

/// The mark's row is locked *first*. An advance holds that lock before it opens an epoch, so when
/// the lock is had no epoch can be opened any more before this commits; and the look at the epochs
/// is a statement of its own after that, whose snapshot shows all that were.
///
/// Any error leaves the transaction open: the caller then drops the connection, which ends it.
pub(super) async fn override_mark(
    connection: &mut PgConnection,
    namespace: &str,
    resource: &ResourceKey,
    token: Token,
    reason: &str,
    actor: &str,
) -> Result<Override, Failure> {
    run(connection, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let before: Vec<i64> = sqlx::query_scalar(
        "SELECT token FROM marks WHERE namespace = $1 AND resource = $2 FOR UPDATE",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .fetch_all(&mut *connection)
    .await?;
    let Some(before) = before.first().copied() else {
        run(connection, "ROLLBACK").await?;
        return Ok(Override::Absent);
    };
    let open: Vec<EpochColumns> = sqlx::query_as(
        "SELECT resource, instance, opening, token FROM epochs \
         WHERE namespace = $1 AND resource = $2 ORDER BY instance, opening",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .fetch_all(&mut *connection)
    .await?;
    if !open.is_empty() {
        run(connection, "ROLLBACK").await?;
        return Ok(Override::EpochsOpen(all(open, rows::epoch)?));
    }
    let era: Era = only(
        sqlx::query_scalar(
            "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 1) \
             ON CONFLICT (namespace) DO UPDATE SET era = n.era + 1 RETURNING n.era",
        )
        .bind(namespace)
        .fetch_all(&mut *connection)
        .await?,
    )?;
    sqlx::query(
        "UPDATE marks SET previous = token, token = $3, spent_by = NULL, era = $4, \
         changed_at = now() WHERE namespace = $1 AND resource = $2",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .bind(token.get())
    .bind(era)
    .execute(&mut *connection)
    .await?;
    let entry: i64 = only(
        sqlx::query_scalar(
            "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
             VALUES ($1, $2, 'override', $3, $4, $5, $6, now()) RETURNING id",
        )
        .bind(namespace)
        .bind(resource.as_str())
        .bind(before)
        .bind(token.get())
        .bind(reason)
        .bind(actor)
        .fetch_all(&mut *connection)
        .await?,
    )?;
    run(connection, "COMMIT").await?;
    // A COMMIT may be answered with ROLLBACK, which is no error on the wire.
    let kept: bool = only(
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM audit WHERE id = $1)")
            .bind(entry)
            .fetch_all(connection)
            .await?,
    )?;
    if !kept {
        return Err(StoreError::Statement("the override was rolled back".to_owned()).into());
    }
    Ok(Override::Done {
        before: rows::number(before)?,
        era,
    })
}

pub(super) async fn record_audit(
    connection: &mut PgConnection,
    namespace: &str,
    row: &AuditRow,
) -> Result<(), Failure> {
    sqlx::query(
        "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, now())",
    )
    .bind(namespace)
    .bind(row.resource.as_str())
    .bind(&row.action)
    .bind(row.before.map(Token::get))
    .bind(row.after.map(Token::get))
    .bind(&row.reason)
    .bind(&row.actor)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn audit(
    connection: &mut PgConnection,
    namespace: &str,
    resource: &ResourceKey,
    limit: u32,
) -> Result<Vec<AuditRow>, Failure> {
    let rows: Vec<AuditColumns> = sqlx::query_as(
        "SELECT resource, action, before, after, reason, actor, \
         floor(extract(epoch FROM at) * 1000)::bigint FROM audit \
         WHERE namespace = $1 AND resource = $2 ORDER BY id DESC LIMIT $3",
    )
    .bind(namespace)
    .bind(resource.as_str())
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    all(rows, rows::audit)
}

pub(super) async fn routes(
    connection: &mut PgConnection,
    namespace: &str,
) -> Result<RecordedRoutes, Failure> {
    let documents: Vec<Option<String>> =
        sqlx::query_scalar("SELECT routes FROM namespaces WHERE namespace = $1")
            .bind(namespace)
            .fetch_all(&mut *connection)
            .await?;
    let templates =
        sqlx::query_as("SELECT path, template FROM templates WHERE namespace = $1 ORDER BY path")
            .bind(namespace)
            .fetch_all(connection)
            .await?;
    Ok(RecordedRoutes {
        document: documents.into_iter().flatten().next(),
        templates,
    })
}

/// An update that had to wait for the row looks at it again when it has it.
pub(super) async fn record_routes(
    connection: &mut PgConnection,
    namespace: &str,
    known: Option<&str>,
    document: &str,
) -> Result<bool, Failure> {
    let done = sqlx::query(
        "INSERT INTO namespaces AS n (namespace, era, routes) \
         SELECT $1, 0, $3 WHERE $2::text IS NULL \
             OR EXISTS (SELECT 1 FROM namespaces AS o WHERE o.namespace = $1) \
         ON CONFLICT (namespace) DO UPDATE SET routes = EXCLUDED.routes \
         WHERE n.routes IS NOT DISTINCT FROM $2",
    )
    .bind(namespace)
    .bind(known)
    .bind(document)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The namespace's row is locked first, as every join does. So when the lock is had, no instance can
/// join any more before this commits; and the look at the instances is a statement of its own after
/// that, whose snapshot shows all that have joined.
///
/// Any error leaves the transaction open: the caller then drops the connection, which ends it.
pub(super) async fn replace_routes(
    connection: &mut PgConnection,
    namespace: &str,
    document: &str,
) -> Result<Vec<InstanceRow>, Failure> {
    run(connection, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    touch(connection, namespace).await?;
    let present = life::instances(connection, namespace, life::Orphans::Found).await?;
    if !present.is_empty() {
        run(connection, "ROLLBACK").await?;
        return Ok(present);
    }
    sqlx::query("UPDATE namespaces SET routes = $2 WHERE namespace = $1")
        .bind(namespace)
        .bind(document)
        .execute(&mut *connection)
        .await?;
    run(connection, "COMMIT").await?;
    // A COMMIT may be answered with ROLLBACK, which is no error on the wire.
    if routes(connection, namespace).await?.document.as_deref() != Some(document) {
        let message = "the route table was not replaced, or was replaced again";
        return Err(StoreError::Statement(message.to_owned()).into());
    }
    Ok(Vec::new())
}

async fn run(connection: &mut PgConnection, statement: &'static str) -> Result<(), Failure> {
    sqlx::raw_sql(statement).execute(connection).await?;
    Ok(())
}
