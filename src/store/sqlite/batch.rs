//! A batch of requests, with the second read behind it. It travels as one JSON array, so that it is
//! a few statements in all and not a few per row.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use serde::Serializer as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{Either, Executor as _, Row as _, SqliteConnection};

use crate::routing::Needs;
use crate::store::rows::{self, EpochColumns, Failure};
use crate::store::{Ask, Batch, Batched, EpochRow, Era, Found, InstanceId, StoreError};

/// Reads the ids in the epoch rows by leaping from one to the next. So this costs as much as there
/// are instances, not epochs.
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

/// A view and its triggers, which write a batch in one statement. So the driver gives its thread
/// one command, and the first answer comes when all of it is on the disk. A row of the view is an
/// ask, an epoch to close, or the transaction to count (`closes` is NULL). Only this connection has
/// them. They need the tables, so they are created after the migrations.
///
/// A lock is for the whole file here. `previous` must be the mark before this statement, and a row
/// of a later era must stay as it is. In an UPDATE's SET, columns on the right have their old
/// values. A row whose bytes would not change is not written, and costs no fsync: it was fsynced
/// when it was committed.
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
    END;
    CREATE TEMP TRIGGER counting INSTEAD OF INSERT ON batch WHEN NEW.closes IS NULL
    BEGIN
        UPDATE commits SET count = count + 1;
    END;";

/// Writes the batch. `jsonb_each` keeps an array within an array binary; `json_each` would write it
/// as text, which is parsed again for each of its values.
macro_rules! write {
    () => {
        "INSERT INTO batch
         SELECT ?1, ?4, ?3, (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)), key, value ->> 1,
             value ->> 2, value ->> 3, value ->> 4, value ->> 5, false
         FROM jsonb_each(?2)
         UNION ALL
         SELECT ?1, value ->> 1, NULL, NULL, value ->> 0, value ->> 2, NULL, NULL, NULL, NULL, true
         FROM jsonb_each(?5)"
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

/// A batch that is a whole transaction. The driver gives a text to its thread in one command,
/// however many statements it has. It takes a number that a statement leaves out for one more
/// argument, so each statement names all numbers up to its greatest (`IS` is true of NULL too). The
/// reads are behind the commit: that of the epochs as in Postgres, though no other process can have
/// the file, and that of the marks because nothing else writes them.
///
/// The count is read behind the commit, too: a batch that was decided on overwritten marks is
/// committed, and its answer is not believed.
const BATCH: &str = concat!(
    write!(),
    " UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL; ",
    owners!(),
    "SELECT (",
    marks!(),
    "), json_group_array(json_array(e.resource, e.instance, e.opening, e.token)), octet_length(?6), ?7,
         (SELECT count FROM commits)
     FROM owners AS o CROSS JOIN jsonb_each(CASE WHEN o.id <> ?4 OR ?7 THEN ?6 END) AS r
         CROSS JOIN epochs AS e
     WHERE (?2, ?3, ?5) IS (?2, ?3, ?5) AND (o.id <> ?4 OR r.value)
         AND e.namespace = ?1 AND e.instance = o.id AND e.resource = r.key;
     PRAGMA wal_checkpoint(noop)"
);
/// The same within a transaction.
const BATCH_WITHIN: &str = concat!(write!(), "; ", marks!());

/// Every epoch of the resources in a JSON array. `CROSS JOIN` fixes the order of the loops.
pub(super) const EPOCHS: &str = concat!(
    owners!(),
    "SELECT e.resource, e.instance, e.opening, e.token
     FROM owners AS o CROSS JOIN json_each(?2) AS r CROSS JOIN epochs AS e
     WHERE e.namespace = ?1 AND e.instance = o.id AND e.resource = r.value"
);

/// `(index of the ask, token, previous, era, spent_by, given_back)`.
type AdvancedRow = (usize, i64, Option<i64>, i64, Option<String>, i64);

/// A batch with owned contents.
pub(super) struct BatchJson {
    instance: InstanceId,
    era: Era,
    asks: Vec<Ask>,
    /// The asks, the closes and the second read, as the statements take them.
    columns: [String; 3],
    /// True if the epochs of this instance are read, too.
    looks: bool,
}

/// How many frames the log has, and how many of them the file has too; `None`: unknown.
pub(super) type LogLength = Option<(i64, i64)>;

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

    /// The resources whose epochs are read, as [`epochs`] takes them.
    pub(super) fn second_read(&self) -> String {
        let [.., looks] = &self.columns;
        let looks: BTreeMap<String, bool> = serde_json::from_str(looks).unwrap_or_default();
        json_text(|json| json.collect_seq(looks.keys()))
    }

    /// How many marks it has made. An ask that needs a mark makes none.
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

/// Runs a batch in its own transaction, with the second read behind the commit. Returns the count of
/// transactions and the length of the log, too.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    namespace: &str,
    load: &BatchJson,
) -> Result<(Batched, i64, LogLength), Failure> {
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
    // If the last arguments were not bound, the second read would be empty.
    let bound: (Option<i64>, Option<bool>) = (reads.try_get(2)?, reads.try_get(3)?);
    let [.., looks] = &load.columns;
    if bound != (i64::try_from(looks.len()).ok(), Some(load.looks)) {
        return Err(odd("a second read").into());
    }
    let (busy, frames, copied): (bool, i64, i64) =
        (log.try_get(0)?, log.try_get(1)?, log.try_get(2)?);
    let epochs = rows::all(others, rows::epoch)?;
    let batched = batched(load.found(marks)?, Ok(epochs));
    let log = (!busy && frames >= 0).then_some((frames, copied));
    Ok((batched, reads.try_get(4)?, log))
}

/// The answer to a batch. No other process can have lost an epoch, or has to be notified.
pub(super) fn batched(found: Vec<Found>, epochs: Result<Vec<EpochRow>, StoreError>) -> Batched {
    Batched {
        found,
        epochs,
        lost: Vec::new(),
        told: false,
    }
}

/// Runs a batch within an open transaction. [`epochs`] is the second read then.
pub(super) async fn run_within(
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

/// Every epoch of the resources in a JSON array.
pub(super) async fn epochs(
    connection: &mut SqliteConnection,
    namespace: &str,
    resources: &str,
) -> Result<Vec<EpochRow>, Failure> {
    let rows: Vec<EpochColumns> = sqlx::query_as(EPOCHS)
        .bind(namespace)
        .bind(resources)
        .fetch_all(connection)
        .await?;
    Ok(rows::all(rows, rows::epoch)?)
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

/// Writes JSON without building a value first. Texts and numbers can always be written; an empty
/// text is not JSON, and the statement would refuse it.
fn json_text(
    write: impl FnOnce(&mut serde_json::Serializer<&mut Vec<u8>>) -> serde_json::Result<()>,
) -> String {
    let mut text = Vec::new();
    match write(&mut serde_json::Serializer::new(&mut text)) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => String::new(),
    }
}
