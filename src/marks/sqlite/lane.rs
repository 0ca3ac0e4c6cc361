//! The request path's statements, one function each. Batches travel as one JSON array, so that a batch
//! is a few statements and not a few per row.

use std::collections::HashMap;

use serde_json::json;
use sqlx::SqliteConnection;

use super::people::all;
use crate::marks::rows::{self, EpochColumns, Failure};
use crate::marks::store::{Ask, EpochRow, Era, Found, InstanceId};

/// Locks are the whole file's here; what counts is that `previous` is the mark before this
/// statement, and that a row of a later era keeps everything. In an UPDATE's SET, columns on the
/// right have their old values. A row whose bytes would not change is not written, and costs no
/// fsync: what it says was fsynced when it was committed. What an ask needs of the mark comes in by
/// `previous`, below 0, as in the statement for Postgres.
const ADVANCE: &str = "
    INSERT INTO marks AS m (namespace, resource, token, previous, spent_by, era, changed_at)
    SELECT ?1, ask.value ->> 0, ask.value ->> 1, -(ask.value ->> 3), ask.value ->> 2, 0,
           CAST(unixepoch('subsec') * 1000 AS INTEGER)
    FROM json_each(?3) AS ask
    WHERE NOT (ask.value ->> 4)
        OR EXISTS (SELECT 1 FROM marks AS k WHERE k.namespace = ?1 AND k.resource = ask.value ->> 0)
    ON CONFLICT (namespace, resource) DO UPDATE SET
        previous = m.token,
        token = CASE WHEN m.era > ?2 OR m.token < -excluded.previous THEN m.token
            ELSE max(m.token, excluded.token) END,
        spent_by = CASE
            WHEN m.era > ?2 OR excluded.token < m.token OR m.token < -excluded.previous
                THEN m.spent_by
            WHEN excluded.token > m.token THEN excluded.spent_by
            ELSE coalesce(m.spent_by, excluded.spent_by) END,
        changed_at = CASE
            WHEN m.era <= ?2 AND excluded.token > m.token
                AND m.token >= coalesce(-excluded.previous, 0) THEN excluded.changed_at
            ELSE m.changed_at END
    RETURNING resource, token, previous, era, spent_by, given_back";

const OPEN_EPOCHS: &str = "
    INSERT INTO epochs (namespace, resource, instance, opening, token)
    SELECT ?1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3
    FROM json_each(?2) AS e";

const REOPEN_EPOCHS: &str = "
    INSERT INTO epochs (namespace, resource, instance, opening, token)
    SELECT ?1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3
    FROM json_each(?2) AS e
    WHERE true
    ON CONFLICT DO NOTHING";

/// The ids in the epoch rows are read by leaping from one to the next, so that this costs what there are
/// instances, not what there are epochs.
macro_rules! owners {
    () => {
        "WITH RECURSIVE owners(id) AS (
             SELECT min(instance) FROM epochs WHERE namespace = ?1
             UNION ALL
             SELECT (SELECT min(e.instance) FROM epochs AS e
                     WHERE e.namespace = ?1 AND e.instance > o.id)
             FROM owners AS o WHERE o.id IS NOT NULL) "
    };
}
pub(super) use owners;

/// `CROSS JOIN` fixes the order of the loops.
const EPOCHS: &str = concat!(
    owners!(),
    "SELECT e.resource, e.instance, e.opening, e.token
     FROM owners AS o CROSS JOIN json_each(?2) AS r CROSS JOIN epochs AS e
     WHERE e.namespace = ?1 AND e.instance = o.id AND e.resource = r.value"
);

/// `(resource, token, previous, era, spent_by, given_back)`.
type Advanced = (String, i64, Option<i64>, i64, Option<String>, i64);

pub(super) async fn advance(
    connection: &mut SqliteConnection,
    namespace: &str,
    instance: InstanceId,
    era: Era,
    asks: Vec<Ask>,
) -> Result<Vec<Found>, Failure> {
    let batch = json!(
        asks.iter()
            .map(|ask| json!([
                ask.resource.as_str(),
                ask.token.get(),
                ask.spend,
                rows::least(ask),
                ask.needs.present
            ]))
            .collect::<Vec<_>>()
    );
    let rows: Vec<Advanced> = sqlx::query_as(ADVANCE)
        .bind(namespace)
        .bind(era)
        .bind(batch.to_string())
        .fetch_all(&mut *connection)
        .await?;
    let rows: HashMap<&str, &Advanced> = rows.iter().map(|row| (row.0.as_str(), row)).collect();
    let mut opened = Vec::new();
    let mut found = Vec::with_capacity(asks.len());
    for ask in asks {
        let Some((_, mark, previous, row_era, spent_by, given_back)) =
            rows.get(ask.resource.as_str())
        else {
            found.push(rows::not_made(&ask)?);
            continue;
        };
        let is_mark = *mark == ask.token.get();
        if let Some(opening) = ask.opening
            && is_mark
            && *row_era <= era
        {
            opened.push(EpochRow {
                resource: ask.resource,
                instance: instance.clone(),
                opening,
                token: ask.token,
            });
        }
        found.push(Found {
            before: rows::before(*previous)?,
            era: *row_era,
            spent_by: spent_by.clone().filter(|_| is_mark),
            given_back: *given_back,
        });
    }
    if !opened.is_empty() {
        sqlx::query(OPEN_EPOCHS)
            .bind(namespace)
            .bind(epochs_json(&opened))
            .execute(&mut *connection)
            .await?;
    }
    Ok(found)
}

pub(super) async fn epochs(
    connection: &mut SqliteConnection,
    namespace: &str,
    resources: serde_json::Value,
) -> Result<Vec<EpochRow>, Failure> {
    let rows: Vec<EpochColumns> = sqlx::query_as(EPOCHS)
        .bind(namespace)
        .bind(resources.to_string())
        .fetch_all(connection)
        .await?;
    all(rows, rows::epoch)
}

pub(super) async fn close(
    connection: &mut SqliteConnection,
    namespace: &str,
    epochs: String,
) -> Result<(), Failure> {
    sqlx::query(
        "DELETE FROM epochs WHERE namespace = ?1 AND (instance, resource, opening) IN \
         (SELECT e.value ->> 1, e.value ->> 0, e.value ->> 2 FROM json_each(?2) AS e)",
    )
    .bind(namespace)
    .bind(epochs)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn reopen(
    connection: &mut SqliteConnection,
    namespace: &str,
    epochs: String,
) -> Result<(), Failure> {
    sqlx::query(REOPEN_EPOCHS)
        .bind(namespace)
        .bind(epochs)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn give_back(
    connection: &mut SqliteConnection,
    namespace: &str,
    spends: serde_json::Value,
) -> Result<(), Failure> {
    sqlx::query(
        "UPDATE marks SET given_back = given_back + 1, spent_by = NULL FROM json_each(?2) AS s \
         WHERE namespace = ?1 AND resource = s.value ->> 0 AND token = s.value ->> 1 \
         AND spent_by = s.value ->> 2",
    )
    .bind(namespace)
    .bind(spends.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) fn epochs_json(epochs: &[EpochRow]) -> String {
    json!(
        epochs
            .iter()
            .map(|epoch| json!([
                epoch.resource.as_str(),
                epoch.instance.as_str(),
                epoch.opening,
                epoch.token.get()
            ]))
            .collect::<Vec<_>>()
    )
    .to_string()
}
