//! The request path's statements, one function each. Batches travel as one JSON array, so that a batch
//! is a few statements and not a few per row.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use serde::Serializer as _;
use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Either, Executor as _, Row as _, SqliteConnection};

use super::fetch::all;
use crate::routing::Needs;
use crate::store::rows::{self, EpochColumns, Failure};
use crate::store::{Ask, Batch, EpochRow, Era, Found, InstanceId, StoreError};

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

/// What a batch is written by: one statement, so that the driver hands one command to its thread and gets
/// the first word back when all of it is on the disk. A row of the view is an ask, or an epoch to close.
/// Only this connection has them. They rest on the tables, so they come after the migrations.
///
/// Locks are the whole file's here; what counts is that `previous` is the mark before this
/// statement, and that a row of a later era keeps everything. In an UPDATE's SET, columns on the
/// right have their old values. A row whose bytes would not change is not written, and costs no
/// fsync: what it says was fsynced when it was committed.
pub(super) const PREPARE: &str = "
    CREATE TEMP VIEW batch (namespace, instance, era, at, resource, opening, token, spend, least, present, closes) AS
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
    CREATE TEMP TRIGGER ask INSTEAD OF INSERT ON batch
    WHEN NOT NEW.closes AND (NOT NEW.present OR EXISTS (
        SELECT 1 FROM marks WHERE namespace = NEW.namespace AND resource = NEW.resource))
    BEGIN
        INSERT INTO marks (namespace, resource, token, spent_by, era, changed_at)
        VALUES (NEW.namespace, NEW.resource, NEW.token, NEW.spend, 0, NEW.at)
        ON CONFLICT (namespace, resource) DO UPDATE SET
            previous = marks.token,
            token = CASE WHEN marks.era > NEW.era OR marks.token < NEW.least THEN marks.token
                ELSE max(marks.token, NEW.token) END,
            spent_by = CASE
                WHEN marks.era > NEW.era OR NEW.token < marks.token OR marks.token < NEW.least
                    THEN marks.spent_by
                WHEN NEW.token > marks.token THEN NEW.spend
                ELSE coalesce(marks.spent_by, NEW.spend) END,
            changed_at = CASE
                WHEN marks.era <= NEW.era AND NEW.token > marks.token
                    AND marks.token >= coalesce(NEW.least, 0) THEN NEW.at
                ELSE marks.changed_at END;
        INSERT INTO epochs (namespace, resource, instance, opening, token)
        SELECT NEW.namespace, NEW.resource, NEW.instance, NEW.opening, NEW.token FROM marks AS m
        WHERE NEW.opening IS NOT NULL AND m.namespace = NEW.namespace AND m.resource = NEW.resource
            AND m.token = NEW.token AND m.era <= NEW.era;
    END;
    CREATE TEMP TRIGGER closing INSTEAD OF INSERT ON batch WHEN NEW.closes
    BEGIN
        DELETE FROM epochs WHERE namespace = NEW.namespace AND instance = NEW.instance
            AND resource = NEW.resource AND opening = NEW.opening;
    END;";

/// Writes the batch. An array within an array stays binary on its way through `jsonb_each`; `json_each`
/// would write it as text, which is parsed again for each of its values.
macro_rules! write {
    () => {
        "INSERT INTO batch
         SELECT ?1, ?4, ?3, (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)), key, value ->> 1,
             value ->> 2, value ->> 3, value ->> 4, value ->> 5, false
         FROM jsonb_each(?2)
         UNION ALL
         SELECT ?1, value ->> 1, NULL, NULL, value ->> 0, value ->> 2, NULL, NULL, NULL, NULL, true
         FROM jsonb_each(?5); "
    };
}

/// Reads the marks of a batch.
macro_rules! marks {
    () => {
        "SELECT json_group_array(json_array(
             ask.value ->> 0, m.token, m.previous, m.era, m.spent_by, m.given_back))
         FROM jsonb_each(?2) AS ask CROSS JOIN marks AS m
         WHERE m.namespace = ?1 AND m.resource = ask.key"
    };
}

/// A batch that is a transaction of its own. The driver hands a text to its thread in one command, however
/// many statements it has. It takes a number that a statement leaves out for one more argument, so each
/// names all numbers up to its greatest (`IS` is true of NULL too). The reads are behind the commit: that of
/// the epochs as everywhere, though nobody else can have the file, and that of the marks since nobody
/// else writes them.
const BATCH: &str = concat!(
    write!(),
    owners!(),
    "SELECT (",
    marks!(),
    "), json_group_array(json_array(e.resource, e.instance, e.opening, e.token)), octet_length(?6), ?7
     FROM owners AS o CROSS JOIN jsonb_each(CASE WHEN o.id <> ?4 OR ?7 THEN ?6 END) AS r
         CROSS JOIN epochs AS e
     WHERE (?2, ?3, ?5) IS (?2, ?3, ?5) AND (o.id <> ?4 OR r.value)
         AND e.namespace = ?1 AND e.instance = o.id AND e.resource = r.key;
     PRAGMA wal_checkpoint(noop)"
);
/// The same within a transaction.
const BATCH_WITHIN: &str = concat!(write!(), marks!());

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
type AdvancedRow = (usize, i64, Option<i64>, i64, Option<String>, i64);

/// A batch that owns what it says.
pub(super) struct BatchJson {
    instance: InstanceId,
    era: Era,
    asks: Vec<Ask>,
    /// As the statements take them.
    columns: [String; 3],
    /// Whether the epochs of this instance are read, too.
    looks: bool,
}

/// What has become of it.
pub(super) struct BatchDone {
    pub(super) found: Vec<Found>,
    pub(super) epochs: Vec<EpochRow>,
    /// How many frames the log has, and how many of them the file has too; `None`: nobody can tell now.
    pub(super) log: Option<(i64, i64)>,
}

impl BatchJson {
    pub(super) fn new(batch: Batch<'_>) -> Self {
        let asks = batch.asks.iter().enumerate().map(|(index, ask)| {
            let Needs { present, .. } = ask.needs;
            let (spend, least) = (ask.spend.as_deref(), rows::least(ask));
            let ask_of = (index, ask.opening, ask.token.get(), spend, least, present);
            (ask.resource.as_str(), ask_of)
        });
        let looks = batch.looks.iter();
        let looks = looks.map(|resource| (resource.as_str(), true));
        let opens = batch.asks.iter().filter(|ask| ask.opening.is_some());
        let opens = opens.filter(|ask| !batch.looks.contains(&ask.resource));
        let opens = opens.map(|ask| (ask.resource.as_str(), false));
        Self {
            instance: batch.instance.clone(),
            era: batch.era,
            asks: batch.asks.to_vec(),
            columns: [
                json_text(|json| json.collect_map(asks)),
                epochs_json(batch.closes),
                json_text(|json| json.collect_map(looks.chain(opens))),
            ],
            looks: !batch.looks.is_empty(),
        }
    }

    /// The resources whose epochs are read.
    pub(super) fn second_read(&self) -> serde_json::Value {
        let [.., looks] = &self.columns;
        let looks: BTreeMap<String, bool> = serde_json::from_str(looks).unwrap_or_default();
        json!(looks.into_keys().collect::<Vec<_>>())
    }

    /// How many marks it has made. Where there was none, and none was to be made, there still is none.
    pub(super) fn made(&self, found: &[Found]) -> usize {
        let asked = self.asks.iter().zip(found);
        asked
            .filter(|(ask, found)| !ask.needs.present && found.before.is_none())
            .count()
    }

    fn found(&self, answer: &str) -> Result<Vec<Found>, StoreError> {
        let rows: Vec<AdvancedRow> = serde_json::from_str(answer).map_err(|_| odd("an advance"))?;
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
    load: &BatchJson,
) -> Result<BatchDone, Failure> {
    let results = command(connection, namespace, load, BATCH).await?;
    // The write, the two reads, the log, and nothing behind it.
    let [_, reads, log, _] = results.as_slice() else {
        return Err(odd("a batch").into());
    };
    let ([reads], [log]) = (reads.as_slice(), log.as_slice()) else {
        return Err(odd("a batch").into());
    };
    let (marks, others): (&str, &str) = (reads.try_get(0)?, reads.try_get(1)?);
    let others: Vec<EpochColumns> =
        serde_json::from_str(others).map_err(|_| odd("a second read"))?;
    // Were the last arguments not bound, nothing would be read.
    let bound: (Option<i64>, Option<bool>) = (reads.try_get(2)?, reads.try_get(3)?);
    let [.., looks] = &load.columns;
    if bound != (i64::try_from(looks.len()).ok(), Some(load.looks)) {
        return Err(odd("a second read").into());
    }
    let (busy, frames, copied): (bool, i64, i64) =
        (log.try_get(0)?, log.try_get(1)?, log.try_get(2)?);
    Ok(BatchDone {
        found: load.found(marks)?,
        epochs: all(others, rows::epoch)?,
        log: (!busy && frames >= 0).then_some((frames, copied)),
    })
}

/// The same within a transaction. The second read is left to [`epochs`].
pub(super) async fn batch_within(
    connection: &mut SqliteConnection,
    namespace: &str,
    load: &BatchJson,
) -> Result<Vec<Found>, Failure> {
    let results = command(connection, namespace, load, BATCH_WITHIN).await?;
    let [_, marks, _] = results.as_slice() else {
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
    load: &BatchJson,
    text: &'static str,
) -> Result<Vec<Vec<SqliteRow>>, Failure> {
    let [asks, closes, looks] = &load.columns;
    let command = sqlx::query(text)
        .bind(namespace)
        .bind(asks)
        .bind(load.era)
        .bind(load.instance.as_str())
        .bind(closes)
        .bind(looks)
        .bind(load.looks);
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
         (SELECT e.value ->> 1, e.value ->> 0, e.value ->> 2 FROM jsonb_each(?2) AS e)",
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
    json_text(|json| {
        json.collect_seq(epochs.iter().map(|epoch| {
            (
                epoch.resource.as_str(),
                epoch.instance.as_str(),
                epoch.opening,
                epoch.token.get(),
            )
        }))
    })
}

/// Writes JSON right from what it is about. Texts and numbers can always be written; nothing at all would be
/// no JSON, and refused by the statement.
fn json_text(
    write: impl FnOnce(&mut serde_json::Serializer<&mut Vec<u8>>) -> serde_json::Result<()>,
) -> String {
    let mut text = Vec::new();
    match write(&mut serde_json::Serializer::new(&mut text)) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => String::new(),
    }
}
