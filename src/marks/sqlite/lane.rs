//! The request path's statements, one function each. Batches travel as one JSON array, so that a batch
//! is a few statements and not a few per row.

use futures_util::TryStreamExt as _;
use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Either, Executor as _, Row as _, SqliteConnection};

use super::people::all;
use crate::marks::rows::{self, EpochColumns, Failure};
use crate::marks::store::{Ask, Batch, EpochRow, Era, Found, InstanceId, StoreError};

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

/// The statements of a batch, with what comes before them and behind them. The driver hands a text to its
/// thread in one command, however many statements it has. It takes a number that a statement leaves out
/// for one more argument, so each names all numbers up to its greatest (`IS` is true of NULL too).
macro_rules! batch {
    ($before:literal, $behind:expr) => {
        concat!(
            $before,
            "INSERT INTO marks AS m (namespace, resource, token, previous, spent_by, era, changed_at)
             SELECT ?1, ask.value ->> 0, ask.value ->> 1, -(ask.value ->> 3), ask.value ->> 2, 0,
                    CAST(unixepoch('subsec') * 1000 AS INTEGER)
             FROM json_each(?2) AS ask
             WHERE NOT (ask.value ->> 4) OR EXISTS (
                 SELECT 1 FROM marks AS k WHERE k.namespace = ?1 AND k.resource = ask.value ->> 0)
             ON CONFLICT (namespace, resource) DO UPDATE SET
                 previous = m.token,
                 token = CASE WHEN m.era > ?3 OR m.token < -excluded.previous THEN m.token
                     ELSE max(m.token, excluded.token) END,
                 spent_by = CASE
                     WHEN m.era > ?3 OR excluded.token < m.token OR m.token < -excluded.previous
                         THEN m.spent_by
                     WHEN excluded.token > m.token THEN excluded.spent_by
                     ELSE coalesce(m.spent_by, excluded.spent_by) END,
                 changed_at = CASE
                     WHEN m.era <= ?3 AND excluded.token > m.token
                         AND m.token >= coalesce(-excluded.previous, 0) THEN excluded.changed_at
                     ELSE m.changed_at END;
             INSERT INTO epochs (namespace, resource, instance, opening, token)
             SELECT ?1, ask.value ->> 0, ?4, ask.value ->> 5, ask.value ->> 1
             FROM json_each(?2) AS ask CROSS JOIN marks AS m
             WHERE ask.value ->> 5 IS NOT NULL AND m.namespace = ?1 AND m.resource = ask.value ->> 0
                 AND m.token = ask.value ->> 1 AND m.era <= ?3;
             DELETE FROM epochs WHERE (?2, ?3, ?4) IS (?2, ?3, ?4)
                 AND namespace = ?1 AND (instance, resource, opening) IN (SELECT e.value ->> 1, e.value ->> 0, e.value ->> 2 FROM json_each(?5) AS e);
             SELECT json_group_array(json_array(
                 ask.key, m.token, m.previous, m.era, m.spent_by, m.given_back))
             FROM json_each(?2) AS ask CROSS JOIN marks AS m
             WHERE m.namespace = ?1 AND m.resource = ask.value ->> 0;",
            $behind
        )
    };
}

/// Locks are the whole file's here; what counts is that `previous` is the mark before this
/// statement, and that a row of a later era keeps everything. In an UPDATE's SET, columns on the
/// right have their old values. A row whose bytes would not change is not written, and costs no
/// fsync: what it says was fsynced when it was committed. What an ask needs of the mark comes in by
/// `previous`, below 0, as in the statement for Postgres. The last SELECT is behind the commit, as the
/// second read is everywhere, though nobody else can have the file.
const BATCH: &str = batch!(
    "BEGIN IMMEDIATE; ",
    concat!(
        "COMMIT; ",
        owners!(),
        "SELECT json_group_array(json_array(e.resource, e.instance, e.opening, e.token)),
             json_array_length(?6)
         FROM owners AS o CROSS JOIN json_each(?6) AS r CROSS JOIN epochs AS e
         WHERE (?2, ?3, ?5) IS (?2, ?3, ?5) AND (r.value ->> 1 OR o.id <> ?4)
             AND e.namespace = ?1 AND e.instance = o.id AND e.resource = r.value ->> 0;
         PRAGMA wal_checkpoint(noop)"
    )
);
/// The same within a transaction.
const BATCH_WITHIN: &str = batch!("", "");

const REOPEN_EPOCHS: &str = "
    INSERT INTO epochs (namespace, resource, instance, opening, token)
    SELECT ?1, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3
    FROM json_each(?2) AS e
    WHERE true
    ON CONFLICT DO NOTHING";

/// `CROSS JOIN` fixes the order of the loops.
const EPOCHS: &str = concat!(
    owners!(),
    "SELECT e.resource, e.instance, e.opening, e.token
     FROM owners AS o CROSS JOIN json_each(?2) AS r CROSS JOIN epochs AS e
     WHERE e.namespace = ?1 AND e.instance = o.id AND e.resource = r.value"
);

/// `(index of the ask, token, previous, era, spent_by, given_back)`.
type Advanced = (usize, i64, Option<i64>, i64, Option<String>, i64);

/// A batch that owns what it says.
pub(super) struct Load {
    instance: InstanceId,
    era: Era,
    asks: Vec<Ask>,
    /// As the statements take them.
    columns: [String; 3],
    /// Of how many resources the epochs are read.
    reads: usize,
}

/// What has become of it.
pub(super) struct Done {
    pub(super) found: Vec<Found>,
    pub(super) epochs: Vec<EpochRow>,
    /// How many frames the log has, and how many of them the file has too; `None`: nobody can tell now.
    pub(super) log: Option<(i64, i64)>,
}

impl Load {
    pub(super) fn new(batch: Batch<'_>) -> Self {
        let asks = batch.asks.iter().map(|ask| {
            json!([
                ask.resource.as_str(),
                ask.token.get(),
                ask.spend,
                rows::least(ask),
                ask.needs.present,
                ask.opening,
            ])
        });
        let looks = batch.looks.iter();
        let looks = looks.map(|resource| json!([resource.as_str(), true]));
        let opens = batch.asks.iter().filter(|ask| ask.opening.is_some());
        let opens = opens.filter(|ask| !batch.looks.contains(&ask.resource));
        let opens = opens.map(|ask| json!([ask.resource.as_str(), false]));
        let reads: Vec<serde_json::Value> = looks.chain(opens).collect();
        Self {
            instance: batch.instance.clone(),
            era: batch.era,
            asks: batch.asks.to_vec(),
            columns: [
                json!(asks.collect::<Vec<_>>()).to_string(),
                epochs_json(batch.closes),
                json!(reads).to_string(),
            ],
            reads: reads.len(),
        }
    }

    /// The resources whose epochs are read.
    pub(super) fn second_read(&self) -> serde_json::Value {
        let [.., looks] = &self.columns;
        let looks: Vec<(String, bool)> = serde_json::from_str(looks).unwrap_or_default();
        json!(
            looks
                .into_iter()
                .map(|(resource, _)| resource)
                .collect::<Vec<_>>()
        )
    }

    /// How many marks it has made. Where there was none, and none was to be made, there still is none.
    pub(super) fn made(&self, found: &[Found]) -> usize {
        let asked = self.asks.iter().zip(found);
        asked
            .filter(|(ask, found)| !ask.needs.present && found.before.is_none())
            .count()
    }

    fn found(&self, answer: &str) -> Result<Vec<Found>, StoreError> {
        let rows: Vec<Advanced> = serde_json::from_str(answer).map_err(|_| odd("an advance"))?;
        let mut rows = rows.into_iter().peekable();
        let asks = self.asks.iter().enumerate().map(|(index, ask)| {
            let Some((_, mark, previous, era, spent_by, given_back)) =
                rows.next_if(|row| row.0 == index)
            else {
                return rows::not_made(ask);
            };
            Ok(Found {
                before: rows::before(previous)?,
                era,
                spent_by: spent_by.filter(|_| mark == ask.token.get()),
                given_back,
            })
        });
        asks.collect()
    }
}

fn odd(what: &str) -> StoreError {
    StoreError::Statement(format!("{what} was answered with something else"))
}

/// A batch in a transaction of its own, with the second read behind its commit.
pub(super) async fn batch(
    connection: &mut SqliteConnection,
    namespace: &str,
    load: &Load,
) -> Result<Done, Failure> {
    let results = command(connection, namespace, load, BATCH).await?;
    // BEGIN, three that write, the marks, COMMIT, the epochs, the log, and nothing behind it.
    let [_, _, _, _, marks, _, epochs, log, _] = results.as_slice() else {
        return Err(odd("a batch").into());
    };
    let ([marks], [epochs], [log]) = (marks.as_slice(), epochs.as_slice(), log.as_slice()) else {
        return Err(odd("a batch").into());
    };
    let others: Vec<EpochColumns> =
        serde_json::from_str(epochs.try_get(0)?).map_err(|_| odd("a second read"))?;
    // Were the last argument not bound, nothing would be read.
    if epochs.try_get::<Option<i64>, _>(1)? != i64::try_from(load.reads).ok() {
        return Err(odd("a second read").into());
    }
    let (busy, frames, copied): (bool, i64, i64) =
        (log.try_get(0)?, log.try_get(1)?, log.try_get(2)?);
    Ok(Done {
        found: load.found(marks.try_get(0)?)?,
        epochs: all(others, rows::epoch)?,
        log: (!busy && frames >= 0).then_some((frames, copied)),
    })
}

/// The same within a transaction. The second read is left to [`epochs`].
pub(super) async fn batch_within(
    connection: &mut SqliteConnection,
    namespace: &str,
    load: &Load,
) -> Result<Vec<Found>, Failure> {
    let results = command(connection, namespace, load, BATCH_WITHIN).await?;
    let [_, _, _, marks, _] = results.as_slice() else {
        return Err(odd("a batch").into());
    };
    let [marks] = marks.as_slice() else {
        return Err(odd("a batch").into());
    };
    Ok(load.found(marks.try_get(0)?)?)
}

async fn command(
    connection: &mut SqliteConnection,
    namespace: &str,
    load: &Load,
    text: &'static str,
) -> Result<Vec<Vec<SqliteRow>>, Failure> {
    let [asks, closes, looks] = &load.columns;
    let command = sqlx::query(text)
        .bind(namespace)
        .bind(asks)
        .bind(load.era)
        .bind(load.instance.as_str())
        .bind(closes)
        .bind(looks);
    let mut results = vec![Vec::new()];
    let mut answers = connection.fetch_many(command);
    while let Some(answer) = answers.try_next().await? {
        match (answer, results.last_mut()) {
            (Either::Right(row), Some(rows)) => rows.push(row),
            (Either::Right(_), None) => {}
            (Either::Left(_), _) => results.push(Vec::new()),
        }
    }
    Ok(results)
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
