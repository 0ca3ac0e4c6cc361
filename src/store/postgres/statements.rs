//! The request path's statements, one function each.
//!
//! Statements that name many rows join them to the keys that they bring along, and their namespace
//! comes with the keys: a subquery that the planner cannot take apart (DISTINCT, `OFFSET 0`). Beside the
//! table it would estimate, without statistics, that a namespace has a few rows only, and read them all.

use sqlx::PgConnection;

use super::notifications;
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, EpochColumns, Failure, MarkColumns};
use crate::store::{EpochRow, MarkRow, Notification};

/// One statement, so that no half of it can be seen or lost.
///
/// `ON CONFLICT DO UPDATE` waits for the row's lock and then sees the row as it is, however old the
/// statement's snapshot (READ COMMITTED); a SELECT joined in the same statement would see the old
/// one. So what was there before is carried out by a column, `previous`. There is no WHERE: the
/// row is written even if nothing changes, so that the commit waits for standbys as any other. The
/// rows are inserted, and so locked, in the order of the SELECT.
///
/// What an ask needs of the mark is compared under the same lock, and only columns of the row get as
/// far as the SET. So `previous` brings it along, below 0. A new row keeps it: below 0 there was no
/// mark. The planner cannot turn the subquery into a hash of the whole table, as it could an EXISTS.
///
/// What has drained goes by its key, in key order, as whoever buries this instance does. The number is
/// the proof of the commit: see [`super::batch`].
macro_rules! advance {
    (ask: $ask:literal, drained: $drained:literal) => {
        concat!(
            "WITH ask AS ",
            $ask,
            r#", up AS (
    INSERT INTO marks AS m (namespace, resource, token, previous, spent_by, era, changed_at)
    SELECT $1, a.resource, a.token, -a.least, a.spend, 0, now()
    FROM ask AS a
    WHERE NOT a.present
        OR (SELECT true FROM marks AS k WHERE k.namespace = $1 AND k.resource = a.resource)
    ORDER BY a.resource COLLATE "C"
    ON CONFLICT (namespace, resource) DO UPDATE SET
        previous = m.token,
        token = CASE WHEN m.era > $2 OR m.token < -EXCLUDED.previous THEN m.token
            ELSE GREATEST(m.token, EXCLUDED.token) END,
        spent_by = CASE
            WHEN m.era > $2 OR EXCLUDED.token < m.token OR m.token < -EXCLUDED.previous
                THEN m.spent_by
            WHEN EXCLUDED.token > m.token THEN EXCLUDED.spent_by
            ELSE COALESCE(m.spent_by, EXCLUDED.spent_by) END,
        changed_at = CASE
            WHEN m.era <= $2 AND EXCLUDED.token > m.token
                AND m.token >= COALESCE(-EXCLUDED.previous, 0) THEN EXCLUDED.changed_at
            ELSE m.changed_at END
    RETURNING m.resource, m.token, m.previous, m.era, m.spent_by, m.given_back
), opened AS (
    INSERT INTO epochs (namespace, resource, instance, opening, token)
    SELECT $1, up.resource, $7, a.opening, a.token
    FROM up JOIN ask AS a ON a.resource = up.resource
    WHERE up.era <= $2 AND up.token = a.token AND a.opening IS NOT NULL
), drained AS (
    DELETE FROM ONLY epochs AS e
"#,
            $drained,
            r#"
)
SELECT up.resource, up.token, up.previous, up.era, up.spent_by, up.given_back, proof.number
FROM (SELECT set_config('fencepost.batch', $10, false) OFFSET 0) AS proof(number)
LEFT JOIN up ON true
"#
        )
    };
}

pub(super) const ADVANCE: &str = advance!(
    ask: "(
    SELECT * FROM unnest(string_to_array($3, chr(10)), $4, $5, string_to_array($6, chr(10), ''), $8, $9)
        AS a(resource, token, opening, spend, least, present)
)",
    drained: "    USING (SELECT $1 AS namespace, d.*
        FROM unnest(string_to_array($11, chr(10)), string_to_array($12, chr(10)), $13)
            AS d(resource, instance, opening) OFFSET 0) AS d
    WHERE e.namespace = d.namespace AND e.resource = d.resource AND e.instance = d.instance
        AND e.opening = d.opening"
);

/// The same for one ask and at most one epoch that has drained. Its plan has no sets of rows to start,
/// so it costs the server much less. A request that comes alone waits for all of that.
pub(super) const ADVANCE_ONE: &str = advance!(
    ask: "NOT MATERIALIZED (
    SELECT $3 AS resource, $4 AS token, $5 AS opening, $6 AS spend, $8 AS least, $9 AS present
)",
    drained: "    WHERE e.namespace = $1 AND e.resource = $11 AND e.instance = $12 AND e.opening = $13"
);

pub(super) async fn epochs(
    connection: &mut PgConnection,
    namespace: &str,
    resources: &[ResourceKey],
) -> Result<Vec<EpochRow>, Failure> {
    let rows: Vec<EpochColumns> = sqlx::query_as(
        "SELECT e.resource, e.instance, e.opening, e.token FROM epochs AS e JOIN ( \
             SELECT DISTINCT $1::text AS namespace, k.resource FROM unnest($2::text[]) AS k(resource) \
         ) AS k ON e.namespace = k.namespace AND e.resource = k.resource",
    )
    .bind(namespace)
    .bind(texts(resources.iter().map(ResourceKey::as_str)))
    .fetch_all(connection)
    .await?;
    super::fetch::all(rows, rows::epoch)
}

/// By key, and in key order, as whoever buries this instance does.
pub(super) async fn close(
    connection: &mut PgConnection,
    namespace: &str,
    epochs: &[EpochRow],
) -> Result<(), Failure> {
    let mut epochs = epochs.to_vec();
    epochs.sort();
    let (resources, instances, openings, _) = columns(&epochs);
    sqlx::query(
        "DELETE FROM epochs AS e \
         USING (SELECT $1::text AS namespace, k.* \
             FROM unnest($2::text[], $3::text[], $4::bigint[]) AS k(resource, instance, opening) \
             OFFSET 0) AS d \
         WHERE e.namespace = d.namespace AND e.resource = d.resource AND e.instance = d.instance \
         AND e.opening = d.opening",
    )
    .bind(namespace)
    .bind(resources)
    .bind(instances)
    .bind(openings)
    .execute(connection)
    .await?;
    Ok(())
}

/// [`close`], and who waits for these rows is told with the commit: see there for the order and the join.
///
/// That commit is not waited for to be flushed, nor for a standby. A crash can bring such a row back, and
/// nothing worse: the log has one order, so whatever was committed after the row had gone is lost, too, or
/// the row stays gone. A row that has come back is one that nobody uses; its owner finds it when it
/// connects again.
pub(super) async fn close_wanted(
    connection: &mut PgConnection,
    namespace: &str,
    epochs: &[EpochRow],
    channel: &str,
    payloads: &[String],
) -> Result<(), Failure> {
    let mut epochs = epochs.to_vec();
    epochs.sort();
    let (resources, instances, openings, _) = columns(&epochs);
    sqlx::query(
        "WITH gone AS ( \
             DELETE FROM epochs AS e \
             USING (SELECT $1::text AS namespace, k.* \
                 FROM unnest($2::text[], $3::text[], $4::bigint[]) AS k(resource, instance, opening) \
                 OFFSET 0) AS d \
             WHERE e.namespace = d.namespace AND e.resource = d.resource \
             AND e.instance = d.instance AND e.opening = d.opening) \
         SELECT pg_notify($5, payload), set_config('synchronous_commit', 'off', true) \
         FROM unnest($6::text[]) AS payload",
    )
    .bind(namespace)
    .bind(resources)
    .bind(instances)
    .bind(openings)
    .bind(channel)
    .bind(payloads)
    .execute(connection)
    .await?;
    Ok(())
}

/// [`close_wanted`], of rows that turn out to be below their mark. The mark may rise meanwhile; it is the one in
/// the answer that counts.
pub(super) async fn cede(
    connection: &mut PgConnection,
    namespace: &str,
    epochs: &[EpochRow],
    channel: &str,
) -> Result<Vec<MarkRow>, Failure> {
    let mut epochs = epochs.to_vec();
    epochs.sort();
    let payloads = epochs.iter().map(|row| {
        let resource = row.resource.clone();
        notifications::encode(&Notification::Closed { resource }).unwrap_or_default()
    });
    let payloads: Vec<String> = payloads.collect();
    let (resources, instances, openings, tokens) = columns(&epochs);
    let rows: Vec<MarkColumns> = sqlx::query_as(
        "WITH d AS ( \
             SELECT k.*, m.token AS mark, m.spent_by IS NOT NULL AS spent, m.era, m.changed_at \
             FROM (SELECT $1::text AS namespace, k.* \
                 FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[]) \
                     AS k(resource, instance, opening, token, payload) OFFSET 0) AS k \
             JOIN marks AS m ON m.namespace = k.namespace AND m.resource = k.resource \
         ), gone AS ( \
             DELETE FROM epochs AS e USING d \
             WHERE e.namespace = d.namespace AND e.resource = d.resource \
             AND e.instance = d.instance AND e.opening = d.opening AND d.mark > d.token \
         ), told AS ( \
             SELECT pg_notify($7, d.payload), set_config('synchronous_commit', 'off', true) FROM d \
             WHERE d.mark > d.token) \
         SELECT d.resource, d.mark, d.spent, d.era, \
             floor(extract(epoch FROM d.changed_at) * 1000)::bigint \
         FROM d WHERE (SELECT count(*) FROM told) >= 0",
    )
    .bind(namespace)
    .bind(resources)
    .bind(instances)
    .bind(openings)
    .bind(tokens)
    .bind(payloads)
    .bind(channel)
    .fetch_all(connection)
    .await?;
    super::fetch::all(rows, rows::mark)
}

pub(super) async fn reopen(
    connection: &mut PgConnection,
    namespace: &str,
    epochs: &[EpochRow],
) -> Result<(), Failure> {
    let (resources, instances, openings, tokens) = columns(epochs);
    sqlx::query(
        "INSERT INTO epochs (namespace, resource, instance, opening, token) \
         SELECT $1, e.resource, e.instance, e.opening, e.token \
         FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) \
             AS e(resource, instance, opening, token) \
         ORDER BY e.resource COLLATE \"C\", e.instance COLLATE \"C\", e.opening \
         ON CONFLICT (namespace, resource, instance, opening) DO UPDATE SET token = epochs.token",
    )
    .bind(namespace)
    .bind(resources)
    .bind(instances)
    .bind(openings)
    .bind(tokens)
    .execute(connection)
    .await?;
    Ok(())
}

/// Locks in key order first: these are the rows that advances lock. Both halves look at the name,
/// since each sees the row as it is when its lock is had.
pub(super) async fn give_back(
    connection: &mut PgConnection,
    namespace: &str,
    spends: &[(ResourceKey, Token, String)],
) -> Result<(), Failure> {
    sqlx::query(
        "WITH mine AS ( \
             SELECT m.resource, s.token, s.name FROM marks AS m \
             JOIN (SELECT $1::text AS namespace, k.* \
                 FROM unnest($2::text[], $3::bigint[], $4::text[]) AS k(resource, token, name) \
                 OFFSET 0) AS s \
                 ON m.namespace = s.namespace AND m.resource = s.resource \
                 AND m.token = s.token AND m.spent_by = s.name \
             ORDER BY m.resource FOR UPDATE OF m) \
         UPDATE marks AS m SET given_back = m.given_back + 1, spent_by = NULL FROM mine \
         WHERE m.namespace = $1 AND m.resource = mine.resource \
         AND m.token = mine.token AND m.spent_by = mine.name",
    )
    .bind(namespace)
    .bind(texts(spends.iter().map(|(resource, ..)| resource.as_str())))
    .bind(
        spends
            .iter()
            .map(|(_, token, _)| token.get())
            .collect::<Vec<_>>(),
    )
    .bind(texts(spends.iter().map(|(.., name)| name.as_str())))
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn notify(
    connection: &mut PgConnection,
    channel: &str,
    payloads: &[String],
) -> Result<(), Failure> {
    sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload")
        .bind(channel)
        .bind(payloads)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) fn texts<'a>(column: impl Iterator<Item = &'a str>) -> Vec<String> {
    column.map(str::to_owned).collect()
}

/// Resources, instances, openings, tokens.
type Columns = (Vec<String>, Vec<String>, Vec<i64>, Vec<i64>);

fn columns(epochs: &[EpochRow]) -> Columns {
    (
        texts(epochs.iter().map(|epoch| epoch.resource.as_str())),
        texts(epochs.iter().map(|epoch| epoch.instance.as_str())),
        epochs.iter().map(|epoch| epoch.opening).collect(),
        epochs.iter().map(|epoch| epoch.token.get()).collect(),
    )
}
