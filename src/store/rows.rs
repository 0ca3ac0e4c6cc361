//! Helpers that both stores share: rows turned into the types of [`store`](super), the range of
//! keys that a prefix spans, and the verdict on a schema's version.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use crate::routing::{ResourceKey, Token};
use crate::store::{Ask, Epoch, Found, InstanceId, InstanceRow, MarkRow, StoreError, Terms};

/// The table in which the migrator records its steps. Not sqlx's default name, since a database may
/// be shared with another program that uses sqlx.
const MIGRATIONS_TABLE: &str = "fencepost_migrations";

/// The migrations of an engine: one so far, which makes all tables. Not `sqlx::migrate!`: for that
/// macro both drivers would be compiled a second time.
pub(super) fn migrator(schema: &'static str) -> Migrator {
    let sql = schema.into_sql_str();
    let first = Migration::new(1, "schema".into(), MigrationType::Simple, sql, false);
    let mut migrator = Migrator::with_migrations(vec![first]);
    migrator.dangerous_set_table_name(MIGRATIONS_TABLE);
    migrator
}

/// Why work inside a store failed, before the engine's own codes have been looked at.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The epochs of a row, which stand in it as triples: instance, opening, token.
pub(super) fn epochs(open: &[i64]) -> Result<Vec<Epoch>, StoreError> {
    let (triples, rest) = open.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(odd("epochs that are not triples"));
    }
    let epoch = |&[instance, opening, token]: &[i64; 3]| {
        Ok(Epoch {
            instance: InstanceId::from_row(instance),
            opening,
            token: number(token)?,
        })
    };
    triples.iter().map(epoch).collect()
}

/// The same for triples that are JSON.
pub(super) fn json_epochs(open: &str) -> Result<Vec<Epoch>, StoreError> {
    let numbers: Vec<i64> = serde_json::from_str(open).map_err(|_| odd(open))?;
    epochs(&numbers)
}

/// The inverse of [`epochs`].
pub(super) fn triples(open: &[Epoch]) -> Vec<i64> {
    let triple = |epoch: &Epoch| [epoch.instance.get(), epoch.opening, epoch.token.get()];
    open.iter().flat_map(triple).collect()
}

/// `(resource, token, spent_by, era, given_back, since_ms, epochs as JSON)`.
pub(super) type LookColumns = (String, i64, Option<String>, i64, i64, i64, String);

pub(super) fn look(
    (resource, token, spent_by, era, given_back, since_ms, open): LookColumns,
) -> Result<(MarkRow, Found), StoreError> {
    let mark = MarkRow {
        resource: key(resource)?,
        token: number(token)?,
        spent: spent_by.is_some(),
        era,
        since_ms,
    };
    let found = Found {
        before: Some(mark.token),
        era,
        spent_by,
        given_back,
        open: json_epochs(&open)?,
    };
    Ok((mark, found))
}

/// `(id, renewals, lease_ms, settle_ms, undelivered_ms, routes, dead, ended)`.
pub(super) type InstanceColumns = (i64, i64, i64, i64, i64, String, bool, bool);

pub(super) fn instance(
    (id, renewals, lease, settle, undelivered, routes, dead, ended): InstanceColumns,
) -> InstanceRow {
    let span = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    InstanceRow {
        id: InstanceId::from_row(id),
        terms: Terms {
            renewals,
            lease: span(lease),
            settle: span(settle),
            undelivered: span(undelivered),
            routes,
        },
        dead,
        ended,
    }
}

pub(super) fn key(text: String) -> Result<ResourceKey, StoreError> {
    ResourceKey::new(&text).map_err(move |error| odd(&format!("the resource {text:?}: {error}")))
}

pub(super) fn number(token: i64) -> Result<Token, StoreError> {
    Token::new(token).ok_or_else(|| odd(&format!("the token {token}")))
}

/// The same for a column without a number where there is no token.
pub(super) fn maybe(token: Option<i64>) -> Result<Option<Token>, StoreError> {
    token.map(number).transpose()
}

/// The least mark at which an ask takes effect, as the statement takes it: above 0.
pub(super) fn least(ask: &Ask) -> Option<i64> {
    ask.needs.least.map(Token::get).filter(|least| *least > 0)
}

/// `(resource, token, previous, era, spent_by, given_back, epochs)`, the epochs as the engine has them.
pub(super) type FoundColumns<O> = (String, i64, Option<i64>, i64, Option<String>, i64, O);

/// The answers to asks (resource, token, whether a mark must be there), from rows in any order. Such an
/// ask has no row if there is no mark. `previous` is below 0 if there was none.
pub(super) fn found<'a, O>(
    rows: &[FoundColumns<O>],
    asked: impl Iterator<Item = (&'a ResourceKey, Token, bool)>,
    epochs: impl Fn(&O) -> Result<Vec<Epoch>, StoreError>,
) -> Result<Vec<Found>, StoreError> {
    let by_key = rows.iter().map(|row| (row.0.as_str(), row));
    let by_key: HashMap<_, _> = by_key.collect();
    let answer = |(resource, asked, present): (&ResourceKey, Token, bool)| {
        let Some((_, token, previous, era, spent_by, given_back, open)) =
            by_key.get(resource.as_str())
        else {
            return if present {
                Ok(Found::default())
            } else {
                Err(StoreError::Statement(format!("no answer for {resource}")))
            };
        };
        Ok(Found {
            before: maybe(previous.filter(|mark| *mark >= 0))?,
            era: *era,
            spent_by: spent_by.clone().filter(|_| *token == asked.get()),
            given_back: *given_back,
            open: epochs(open)?,
        })
    };
    asked.map(answer).collect()
}

/// A row that no version of this program writes.
pub(super) fn odd(what: &str) -> StoreError {
    StoreError::Statement(format!(
        "a row holds a value that fencepost never writes: {what}"
    ))
}

/// Whole milliseconds, rounded up: a wait must not get shorter on its way through the store.
pub(super) fn millis(span: Duration) -> i64 {
    let ms = span.as_nanos().div_ceil(1_000_000);
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// The range of the keys that start with a prefix and sort after another key: its start, inclusive,
/// and its end, exclusive.
///
/// A text that sorts between a prefix and the longest text that starts with it starts with it too.
/// Keys hold no control characters, so none starts with a prefix that has one, and `\u{1}` may stand
/// for NUL, which Postgres refuses in any text. A key that sorts after `a` does not sort before
/// `a\u{1}`.
pub(super) fn span(prefix: &str, after: Option<&str>) -> (String, String) {
    let [prefix, after] =
        [prefix, after.unwrap_or_default()].map(|text| text.replace('\0', "\u{1}"));
    let until = prefix.clone() + &"\u{10FFFF}".repeat(ResourceKey::MAX_BYTES);
    (format!("{after}\u{1}").max(prefix), until)
}

/// The one row of a statement that always returns one.
pub(super) fn only<T>(rows: Vec<T>) -> Result<T, StoreError> {
    let mut rows = rows.into_iter();
    match (rows.next(), rows.next()) {
        (Some(row), None) => Ok(row),
        _ => Err(StoreError::Statement(
            "not the one row that was asked for".to_owned(),
        )),
    }
}

/// `(version, checksum, success)` of each migration applied.
pub(super) type Applied = (i64, Vec<u8>, bool);

/// Compares what was applied with what this program knows. `false`: the schema is missing.
///
/// # Errors
///
/// [`StoreError::Unfit`] where the schema is another one, or was left half made.
pub(super) fn is_current(migrator: &Migrator, applied: &[Applied]) -> Result<bool, StoreError> {
    if applied.is_empty() {
        return Ok(false);
    }
    let known = migrator.iter();
    let known = known.map(|known| (known.version, known.checksum.to_vec(), true));
    if known.eq(applied.iter().cloned()) {
        return Ok(true);
    }
    Err(StoreError::Unfit(format!(
        "the store's schema is not the one that this fencepost knows: it was made by another version or build, which \
         has to serve it, or it was left half made, and has to be restored (see the table {MIGRATIONS_TABLE})"
    )))
}

pub(super) fn not_migrated(error: &MigrateError) -> StoreError {
    StoreError::Unfit(format!(
        "the schema could not be brought up to date: {error}"
    ))
}

/// The refusal of a schema that is behind, if the program may not migrate.
pub(super) fn schema_behind() -> StoreError {
    StoreError::Unfit(
        "the store's schema is missing or behind this fencepost, and store.migrate is off: run \
         `fencepost migrate` first. (A Postgres role does not find it either if its search_path does not lead to it.)"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_keys_that_start_with_its_prefix_and_sort_after_another() {
        for (prefix, after, within, without) in [
            ("", None, vec!["a", "\u{10FFFF}\u{10FFFF}"], vec![""]),
            (
                "a",
                None,
                vec!["a", "a ", "ab", "a\u{10FFFF}b"],
                vec!["A", "b"],
            ),
            ("a", Some("ab"), vec!["ab ", "ac"], vec!["a", "ab", "b"]),
            ("b", Some("a"), vec!["b", "ba"], vec!["a", "ab", "c"]),
            (
                "\u{D7FF}",
                None,
                vec!["\u{D7FF}a"],
                vec!["\u{D7FE}", "\u{E000}"],
            ),
            ("a\0", None, vec![], vec!["a", "a ", "b"]),
            ("", Some("a\0b"), vec!["a ", "ab", "b"], vec!["A", "a"]),
        ] {
            let (from, until) = span(prefix, after);
            assert!(!from.contains('\0') && !until.contains('\0'));
            let holds = |key: &&str| *key >= from.as_str() && *key < until.as_str();
            assert!(within.iter().all(holds), "{prefix:?} {after:?}");
            assert!(!without.iter().any(holds), "{prefix:?} {after:?}");
        }
    }

    #[test]
    fn spans_of_time_are_rounded_up() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(30)), 30);
        assert_eq!(millis(Duration::MAX), i64::MAX);
    }
}
