//! A batch of requests. It travels as one JSON object, so that it is one statement in all and not
//! one per row.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{Either, Executor as _, FromRow as _, Row as _, SqliteConnection};

use crate::routing::Needs;
use crate::store::engine::json;
use crate::store::rows::{self, Failure, FoundColumns};
use crate::store::{Ask, Batch, Era, Found, InstanceId, Opening, Repair, StoreError};

/// Writes the asks. A lock is for the whole file here. `previous` becomes the mark before this
/// statement; where there was none it has the mark that was needed, below 0. In an UPDATE's SET,
/// columns on the right have their old values. A row whose bytes would not change is not written:
/// it was fsynced when it was committed.
///
/// `takes`: the mark, its era and the ask's needs allow it. `free`: the row has no epoch, or a single
/// own one that is out of use, as nearly always. `jsonb_each` keeps an array within an object
/// binary; `json_each` would write it as text, which is parsed again for each of its values.
///
/// It is a whole transaction. The driver gives a text to its thread in one command, however many
/// statements it has. If one fails, the others are not run. The count of transactions
/// is read before the commit and believed after it: a batch that was decided on overwritten marks
/// is committed, and its answer is not believed.
const BATCH: &str = concat!(
    "BEGIN IMMEDIATE; INSERT INTO marks AS m
         (namespace, resource, token, previous, spent_by, era, changed_at, open)
     SELECT ?1, key, value ->> 0, value ->> 1, value ->> 2, 0,
         (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)), value ->> 3
     FROM jsonb_each(?2)
     WHERE NOT value ->> 4 OR EXISTS (
         SELECT 1 FROM marks AS k WHERE k.namespace = ?1 AND k.resource = key)
     ON CONFLICT (namespace, resource) DO UPDATE SET
         (previous, token, spent_by, changed_at, open) = (SELECT
             m.token,
             CASE WHEN takes THEN excluded.token ELSE m.token END,
             CASE WHEN NOT takes THEN m.spent_by
                 WHEN excluded.token > m.token THEN excluded.spent_by
                 ELSE coalesce(m.spent_by, excluded.spent_by) END,
             CASE WHEN takes AND excluded.token > m.token THEN excluded.changed_at
                 ELSE m.changed_at END,
             CASE WHEN free AND (takes OR ?7) THEN excluded.open
                 WHEN free THEN '[]'
                 ELSE (SELECT ",
    array!(),
    "                FROM (
                     SELECT * FROM ",
    triples!("m.open"),
    "                WHERE CASE instance
                         WHEN ?4 THEN opening >= ?5
                             OR opening IN (SELECT value FROM json_each(?6))
                         ELSE ",
    not_over!(),
    "                    END
                     UNION SELECT * FROM ",
    triples!("excluded.open"),
    "                WHERE takes OR ?7)) END
         FROM (SELECT
             m.era <= ?3 AND excluded.token >= m.token
                 AND m.token >= coalesce(-excluded.previous, 0) AS takes,
             m.open = '[]' OR (json_array_length(m.open) = 3
                 AND m.open ->> 0 = ?4 AND m.open ->> 1 < ?5
                 AND m.open ->> 1 NOT IN (SELECT value FROM json_each(?6))) AS free))
     RETURNING resource, token, previous, era, spent_by, given_back, open;
     UPDATE commits SET count = count + 1 RETURNING count; COMMIT; PRAGMA wal_checkpoint(noop)"
);

/// A batch with owned contents.
pub(super) struct BatchJson {
    instance: InstanceId,
    era: Era,
    next: Opening,
    asks: Vec<Ask>,
    /// The asks and the openings in use, as the statement takes them.
    columns: [String; 2],
    /// The epochs are added whatever the mark and the era.
    repairs: bool,
}

impl BatchJson {
    pub(super) fn new(batch: Batch<'_>) -> Self {
        let open = |ask: &Ask| match ask.opening {
            Some(opening) => vec![batch.instance.get(), opening, ask.token.get()],
            None => Vec::new(),
        };
        Self {
            instance: batch.instance,
            era: batch.era,
            next: batch.next,
            asks: batch.asks.to_vec(),
            columns: [columns(batch.asks, open), json(batch.used)],
            repairs: false,
        }
    }

    /// A batch of one, which drops no epoch but those that are over.
    pub(super) fn of_repair(repair: &Repair) -> Self {
        let asks = vec![Ask {
            resource: repair.resource.clone(),
            token: repair.token,
            opening: None,
            spend: repair.spend.clone(),
            needs: Needs::default(),
        }];
        let open = |_: &Ask| rows::triples(&repair.open);
        Self {
            instance: InstanceId::from_row(0),
            era: repair.era,
            next: 0,
            columns: [columns(&asks, open), "[]".to_owned()],
            asks,
            repairs: true,
        }
    }

    /// The answers in the order asked.
    fn found(&self, answers: &[SqliteRow]) -> Result<Vec<Found>, Failure> {
        let answers: Result<Vec<_>, _> = answers.iter().map(FoundColumns::from_row).collect();
        let asked = self.asks.iter();
        let asked = asked.map(|ask| (&ask.resource, ask.token, ask.needs.present));
        let epochs = |open: &String| rows::json_epochs(open);
        Ok(rows::found(&answers?, asked, epochs)?)
    }
}

/// The asks, with the epochs that each opens.
fn columns(asks: &[Ask], open: impl Fn(&Ask) -> Vec<i64>) -> String {
    let asks = asks.iter().map(|ask| {
        let (token, spend) = (ask.token.get(), ask.spend.as_deref());
        let previous = rows::least(ask).map(|least| -least);
        let columns = (token, previous, spend, open(ask), ask.needs.present);
        (ask.resource.as_str(), columns)
    });
    json(&asks.collect::<BTreeMap<_, _>>())
}

/// Runs a batch in its own transaction. Returns the count of transactions and the length of the
/// log, too.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    namespace: &str,
    load: &BatchJson,
) -> Result<(Vec<Found>, i64, Option<(i64, i64)>), Failure> {
    let [asks, used] = &load.columns;
    let command = sqlx::query(BATCH)
        .bind(namespace)
        .bind(asks)
        .bind(load.era)
        .bind(load.instance.get())
        .bind(load.next)
        .bind(used)
        .bind(load.repairs);
    let mut results = vec![Vec::new()];
    let mut answers = connection.fetch_many(command);
    while let Some(answer) = answers.try_next().await? {
        match (answer, results.last_mut()) {
            (Either::Right(row), Some(rows)) => rows.push(row),
            (Either::Right(_), None) => {}
            (Either::Left(_), _) => results.push(Vec::new()),
        }
    }
    // One for each statement, and nothing behind the last.
    let results: Vec<&[SqliteRow]> = results.iter().map(Vec::as_slice).collect();
    let [_, asks, [count], _, [log], _] = results[..] else {
        let why = "a batch was answered with something else".to_owned();
        return Err(StoreError::Statement(why).into());
    };
    let (busy, frames, copied): (bool, i64, i64) = <_>::from_row(log)?;
    let log = (!busy && frames >= 0).then_some((frames, copied));
    Ok((load.found(asks)?, count.try_get(0)?, log))
}
