//! One turn of the writer in one message: a transaction with the advance and the deletion of
//! drained epochs, its commit, and the second read behind it. One round trip, one commit.
//!
//! The second read also notifies the owners of the older epochs that it finds. They then read the
//! mark, and find it, since the advance has committed before. A full queue of notifications must
//! fail no batch: then no instance is notified, and the others poll.
//!
//! The driver does not pipeline, but a message of the simple protocol may have several statements.
//! Its literals are numbers, text of bytes that mean nothing to SQL ([`is_plain`]), and any other
//! text as the hex digits of its bytes. So nothing that comes from a request is ever SQL. The
//! statements are prepared once per connection ([`prepare`]), and each execution names them, so the
//! server plans nothing. There are two of each: for any number of rows, and for one.
//!
//! Each statement in READ COMMITTED has its own snapshot, and that of the second read is taken
//! after the commit. A snapshot from before the commit, or the advance's own, would miss an epoch
//! that was opened while the advance waited for a row's lock.
//!
//! A COMMIT that finds its transaction failed answers ROLLBACK, which is no error, and the driver
//! does not pass the answer's tag on. So the advance leaves a number in a setting of the session,
//! and the second read returns it. A rollback undoes the setting. Only the number of this very
//! batch proves the commit.

use std::collections::HashMap;
use std::fmt::Write as _;

use futures_util::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row as _};

use super::advance::{ADVANCE, ADVANCE_ONE};
use crate::routing::ResourceKey;
use crate::store::rows::{self, Failure};
use crate::store::{Ask, Batch, Batched, EpochRow, Found, InstanceId, StoreError};

/// Separates keys, which have no control characters.
const BREAK: char = '\n';

/// The types of [`ADVANCE`]'s arguments.
const ADVANCE_TYPES: &str = "text, bigint, text, bigint[], bigint[], text, text, bigint[], boolean[], text, text, text, bigint[]";
/// The types of [`ADVANCE_ONE`]'s.
const ADVANCE_ONE_TYPES: &str =
    "text, bigint, text, bigint, bigint, text, text, bigint, boolean, text, text, text, bigint";

/// The types of [`SECOND_READ`]'s arguments.
const SECOND_READ_TYPES: &str = "text, text, text, text, bigint[], bigint[], text, bigint";
/// The types of [`SECOND_READ_ONE`]'s.
const SECOND_READ_ONE_TYPES: &str = "text, text, text, bigint, text, bigint";

/// The columns of the second read. The arguments are the ask's token, the channel and the era. It
/// notifies an owner that lives, if the ask has raised the mark or found it at its token.
macro_rules! read {
    ($newer:literal, $channel:literal, $era:literal) => {
        concat!(
            "
SELECT current_setting('fencepost.batch', true),
    array_agg(o.resource), array_agg(o.instance), array_agg(o.opening), array_agg(o.token),
    count(pg_notify(",
            $channel,
            ", json_build_object('k', 'newer', 'r', o.resource, 't', ",
            $newer,
            "::text, 'e', ",
            $era,
            ", 'o', o.instance)::text)::text) FILTER (
            WHERE o.token < ",
            $newer,
            "
            AND ",
            $newer,
            " = (SELECT m.token FROM marks AS m
                WHERE m.namespace = $1 AND m.resource = o.resource)
            AND (SELECT NOT i.dead FROM instances AS i
                WHERE i.namespace = $1 AND i.id = o.instance)
            AND o.instance <> $3 AND pg_notification_queue_usage() < 0.9)"
        )
    };
}

/// Reads the rows of other instances, and leaps over this one's own, which are most and are known.
/// Of the resources in `looks` it reads all rows.
///
/// Each key is looked up by itself, so that the plan, which is kept, suits any number of keys and
/// of open epochs. The bound on the instance names the resource too: only the index that begins
/// with the resource can be searched by both. The other index begins with the instance. While
/// nothing is open, the planner may think it as good, and would later read everything that other
/// instances have open. Each scan begins at an end of the resource's rows and stops at the own
/// ones.
const SECOND_READ: &str = concat!(
    read!("o.newer", "$7", "$8"),
    "
FROM (
    SELECT e.*, k.newer FROM unnest(string_to_array($2, chr(10)), $5) AS k(resource, newer)
    CROSS JOIN LATERAL (
        (SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e
         WHERE e.namespace = $1 AND e.resource = k.resource
             AND (e.resource, e.instance) < (k.resource, $3) OFFSET 0)
        UNION ALL
        (SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e
         WHERE e.namespace = $1 AND e.resource = k.resource
             AND (e.resource, e.instance) > (k.resource, $3)
         ORDER BY e.instance DESC OFFSET 0)) AS e
    UNION ALL
    SELECT e.*, k.newer FROM unnest(string_to_array($4, chr(10)), $6) AS k(resource, newer)
    CROSS JOIN LATERAL (
        SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e
        WHERE e.namespace = $1 AND e.resource = k.resource OFFSET 0) AS e
) AS o"
);

/// The same for one key, with no `looks`.
const SECOND_READ_ONE: &str = concat!(
    read!("$4", "$5", "$6"),
    "
FROM (
    (SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e
     WHERE e.namespace = $1 AND e.resource = $2
         AND (e.resource, e.instance) < ($2, $3) OFFSET 0)
    UNION ALL
    (SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e
     WHERE e.namespace = $1 AND e.resource = $2
         AND (e.resource, e.instance) > ($2, $3)
     ORDER BY e.instance DESC OFFSET 0)
) AS o"
);

/// Lets the server keep the plans of this connection's statements. Each finds its rows by their
/// keys, whatever the table's estimated size. Only speed rests on it.
const KEEP_PLANS: &str = "SELECT set_config('plan_cache_mode', 'force_generic_plan', false) \
    FROM pg_settings WHERE name = 'plan_cache_mode'";

/// Prepares the statements on a new connection of the writer.
pub(super) async fn prepare(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    match sqlx::raw_sql(KEEP_PLANS).execute(&mut *connection).await {
        Err(sqlx::Error::Database(error)) => {
            tracing::debug!(%error, "the server keeps its own planner settings");
        }
        other => other.map(drop)?,
    }
    let statements = format!(
        "PREPARE fencepost_advance({ADVANCE_TYPES}) AS {ADVANCE};\n\
         PREPARE fencepost_second_read({SECOND_READ_TYPES}) AS {SECOND_READ};\n\
         PREPARE fencepost_advance_one({ADVANCE_ONE_TYPES}) AS {ADVANCE_ONE};\n\
         PREPARE fencepost_second_read_one({SECOND_READ_ONE_TYPES}) AS {SECOND_READ_ONE}"
    );
    let prepared = sqlx::raw_sql(AssertSqlSafe(statements));
    prepared.execute(connection).await.map(drop)
}

/// `number` is used by no other batch over this connection.
pub(super) async fn run(
    connection: &mut PgConnection,
    (namespace, channel): (&str, &str),
    batch: Batch<'_>,
    number: u64,
) -> Result<Batched, Failure> {
    let message = match batch {
        Batch {
            asks: [ask],
            closes: [] | [_],
            looks: [],
            ..
        } => message_of_one(namespace, channel, batch, ask, number),
        _ => message(namespace, channel, batch, number),
    };
    let mut results = vec![Vec::new()];
    let mut answers = sqlx::raw_sql(AssertSqlSafe(message)).fetch_many(connection);
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Right(row) => results
                .last_mut()
                .map(|rows: &mut Vec<PgRow>| rows.push(row)),
            Either::Left(_) => {
                results.push(Vec::new());
                None
            }
        };
    }
    // BEGIN, the haste, the advance, COMMIT, the second read, and nothing behind it.
    let expected = 5 + usize::from(batch.hasty);
    let (true, [.., advanced, _, read, _]) = (results.len() == expected, results.as_slice()) else {
        return Err(odd("this number of results", &results.len()).into());
    };
    let [read] = read.as_slice() else {
        return Err(odd("this number of rows of the second read", &read.len()).into());
    };
    let proof: Option<&str> = read.try_get(0)?;
    if proof != Some(number.to_string().as_str()) {
        return Err(odd("another batch's proof of its commit", &proof).into());
    }
    Ok(Batched {
        found: found(batch, advanced)?,
        epochs: epochs(read),
        lost: Vec::new(),
        told: true,
    })
}

fn odd(what: &str, value: &dyn std::fmt::Debug) -> StoreError {
    StoreError::Statement(format!("a batch was answered with {what}: {value:?}"))
}

/// Limits the wait of a [`Batch::hasty`] one for row locks, in milliseconds.
const HASTE: &str = "SET LOCAL lock_timeout = 100; ";

/// Shows operators who look at the server's activity what runs.
const FIRST_WORDS: &str = "/* INSERT INTO marks AS m */ ";

/// `batch` has this ask, at most one epoch to close, and no `looks`.
fn message_of_one(
    namespace: &str,
    channel: &str,
    batch: Batch<'_>,
    ask: &Ask,
    number: u64,
) -> String {
    let mut sql = Message(String::with_capacity(1024));
    sql.0.push_str(FIRST_WORDS);
    sql.begin(&batch);
    sql.0.push_str("EXECUTE fencepost_advance_one(");
    sql.text(namespace);
    let _ = write!(sql.0, ",{},", batch.era);
    sql.text(ask.resource.as_str());
    let _ = write!(sql.0, ",{},", ask.token.get());
    sql.number(ask.opening);
    sql.0.push(',');
    sql.some_text(ask.spend.as_deref());
    sql.0.push(',');
    sql.text(batch.instance.as_str());
    sql.0.push(',');
    sql.number(rows::least(ask));
    let _ = write!(sql.0, ",{},'{number}',", ask.needs.present);
    let close = batch.closes.first();
    sql.some_text(close.map(|row| row.resource.as_str()));
    sql.0.push(',');
    sql.some_text(close.map(|row| row.instance.as_str()));
    sql.0.push(',');
    sql.number(close.map(|row| row.opening));
    sql.0
        .push_str("); COMMIT; EXECUTE fencepost_second_read_one(");
    sql.text(namespace);
    sql.0.push(',');
    sql.some_text(ask.opening.map(|_| ask.resource.as_str()));
    sql.0.push(',');
    sql.text(batch.instance.as_str());
    let _ = write!(sql.0, ",{},", ask.token.get());
    sql.text(channel);
    let _ = write!(sql.0, ",{})", batch.era);
    sql.0
}

fn message(namespace: &str, channel: &str, batch: Batch<'_>, number: u64) -> String {
    let Batch {
        instance,
        era,
        asks,
        closes,
        looks,
        ..
    } = batch;
    let column = asks.iter();
    let mut sql = Message(String::with_capacity(1024 + 256 * asks.len()));
    sql.0.push_str(FIRST_WORDS);
    sql.begin(&batch);
    sql.0.push_str("EXECUTE fencepost_advance(");
    sql.text(namespace);
    let _ = write!(sql.0, ",{era},");
    sql.list(column.clone().map(|ask| ask.resource.as_str()));
    sql.numbers(column.clone().map(|ask| Some(ask.token.get())));
    sql.numbers(column.clone().map(|ask| ask.opening));
    sql.list(
        column
            .clone()
            .map(|ask| ask.spend.as_deref().unwrap_or_default()),
    );
    sql.text(instance.as_str());
    sql.0.push(',');
    sql.numbers(column.clone().map(rows::least));
    sql.array(column.map(|ask| ask.needs.present));
    let _ = write!(sql.0, "'{number}',");
    let mut closes: Vec<&EpochRow> = closes.iter().collect();
    closes.sort();
    sql.list(closes.iter().map(|row| row.resource.as_str()));
    sql.list(closes.iter().map(|row| row.instance.as_str()));
    sql.numbers(closes.iter().map(|row| Some(row.opening)));
    sql.0.pop();
    sql.0.push_str("); COMMIT; EXECUTE fencepost_second_read(");
    sql.text(namespace);
    sql.0.push(',');
    let opens = asks.iter().filter(|ask| ask.opening.is_some());
    let opens: Vec<&Ask> = opens.collect();
    let newer = |resource: &ResourceKey| {
        let ask = opens.iter().find(|ask| ask.resource == *resource);
        ask.map_or(0, |ask| ask.token.get())
    };
    let unseen = opens.iter().filter(|ask| !looks.contains(&ask.resource));
    sql.list(unseen.clone().map(|ask| ask.resource.as_str()));
    sql.text(instance.as_str());
    sql.0.push(',');
    sql.list(looks.iter().map(ResourceKey::as_str));
    sql.numbers(unseen.map(|ask| Some(ask.token.get())));
    sql.numbers(looks.iter().map(|resource| Some(newer(resource))));
    sql.text(channel);
    let _ = write!(sql.0, ",{era})");
    sql.0
}

/// Literals of SQL.
struct Message(String);

impl Message {
    fn begin(&mut self, batch: &Batch<'_>) {
        self.0.push_str("BEGIN; ");
        if batch.hasty {
            self.0.push_str(HASTE);
        }
    }

    fn text(&mut self, text: &str) {
        self.joined(std::iter::once(text));
    }

    fn some_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.0.push_str("NULL"),
        }
    }

    /// Texts without a [`BREAK`] in them, as one.
    fn list<'a>(&mut self, texts: impl Iterator<Item = &'a str> + Clone) {
        self.joined(texts);
        self.0.push(',');
    }

    fn joined<'a>(&mut self, texts: impl Iterator<Item = &'a str> + Clone) {
        if texts.clone().all(is_plain) {
            self.0.push('\'');
            for (index, text) in texts.enumerate() {
                if index > 0 {
                    self.0.push(BREAK);
                }
                self.0.push_str(text);
            }
            self.0.push('\'');
            return;
        }
        self.0.push_str("convert_from(decode('");
        for (index, text) in texts.enumerate() {
            if index > 0 {
                self.hex(BREAK.encode_utf8(&mut [0; 4]));
            }
            self.hex(text);
        }
        self.0.push_str("','hex'),'UTF8')");
    }

    fn hex(&mut self, text: &str) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in text.bytes() {
            self.0.push(char::from(DIGITS[usize::from(byte >> 4)]));
            self.0.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }

    fn number(&mut self, number: Option<i64>) {
        let _ = match number {
            Some(number) => write!(self.0, "{number}"),
            None => write!(self.0, "NULL"),
        };
    }

    fn numbers(&mut self, numbers: impl Iterator<Item = Option<i64>>) {
        self.0.push_str("'{");
        for (index, number) in numbers.enumerate() {
            let part = if index > 0 { "," } else { "" };
            let _ = match number {
                Some(number) => write!(self.0, "{part}{number}"),
                None => write!(self.0, "{part}NULL"),
            };
        }
        self.0.push_str("}',");
    }

    fn array(&mut self, values: impl Iterator<Item = bool>) {
        self.0.push_str("'{");
        for (index, value) in values.enumerate() {
            let part = if index > 0 { "," } else { "" };
            let _ = write!(self.0, "{part}{value}");
        }
        self.0.push_str("}',");
    }
}

/// True if every byte is literal within quotes, whatever the server's settings: no quote, no
/// backslash, nothing beyond ASCII.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/._-%".contains(&byte);
    text.bytes().all(plain)
}

/// `(token, previous, era, spent_by, given_back)`.
type AdvancedColumns = (i64, Option<i64>, i64, Option<String>, i64);

fn found(batch: Batch<'_>, answers: &[PgRow]) -> Result<Vec<Found>, Failure> {
    let mut by_key: HashMap<&str, AdvancedColumns> = HashMap::with_capacity(answers.len());
    for row in answers {
        // Without one, no row was made or found.
        if let Some(resource) = row.try_get::<Option<&str>, _>(0)? {
            let rest = (
                row.try_get(1)?,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
                row.try_get(5)?,
            );
            by_key.insert(resource, rest);
        }
    }
    let found = batch.asks.iter().map(|ask| {
        let Some((mark, previous, era, spent_by, given_back)) =
            by_key.remove(ask.resource.as_str())
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
    let found: Result<Vec<Found>, StoreError> = found.collect();
    Ok(found?)
}

fn epochs(row: &PgRow) -> Result<Vec<EpochRow>, StoreError> {
    let unreadable = |error: sqlx::Error| StoreError::Statement(error.to_string());
    // Without a row, the aggregates are NULL.
    let Some(resources) = row
        .try_get::<Option<Vec<String>>, _>(1)
        .map_err(unreadable)?
    else {
        return Ok(Vec::new());
    };
    let instances: Vec<String> = row.try_get(2).map_err(unreadable)?;
    let openings: Vec<i64> = row.try_get(3).map_err(unreadable)?;
    let tokens: Vec<i64> = row.try_get(4).map_err(unreadable)?;
    let rows = resources.iter().zip(instances).zip(openings).zip(tokens);
    let epochs = rows.map(|(((resource, instance), opening), token)| {
        Ok(EpochRow {
            resource: rows::key(resource)?,
            instance: InstanceId::from_row(&instance),
            opening,
            token: rows::number(token)?,
        })
    });
    epochs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_text_stands_in_a_message_as_it_is() {
        let literal = |texts: &[&str]| {
            let mut message = Message(String::new());
            message.joined(texts.iter().copied());
            message.0
        };
        assert_eq!(
            literal(&["order:7", "a_b-c/d.e%20"]),
            "'order:7\na_b-c/d.e%20'"
        );
        assert_eq!(literal(&[]), "''");
        let odd = ('\u{1}'..='\u{7f}').chain("éß字".chars());
        let odd = odd.filter(|c| !c.is_ascii_alphanumeric() && !":/._-%".contains(*c));
        for c in odd {
            let text = format!("order:{c}");
            let hex = text.bytes().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            let expected = format!("convert_from(decode('{hex}','hex'),'UTF8')");
            assert_eq!(literal(&[&text]), expected);
        }
        let mixed = "convert_from(decode('610a27','hex'),'UTF8')";
        assert_eq!(literal(&["a", "'"]), mixed);
    }
}
