//! The statements over the rows of marks. `$1` is the namespace in each.
//!
//! A statement that names many rows joins them to the keys that it brings along. The namespace
//! comes with the keys, from a subquery that the planner cannot take apart (DISTINCT, GROUP BY,
//! `OFFSET 0`). If it stood beside the table, the planner would estimate, without statistics, that
//! a namespace has only a few rows, and read them all.
//!
//! A statement that has waited for a row's lock computes what it writes and returns from the
//! newest version of that row (READ COMMITTED), whatever its snapshot shows. Only what it reads of
//! the instances is from the snapshot. An epoch that is over stays over, so an older snapshot only
//! keeps an epoch for longer.

use crate::store::engine::Words;

/// The epochs of a row (`m`, or `EXCLUDED`) for which a condition holds, in their order. In the
/// condition, `s.i` is where the epoch's triple begins.
macro_rules! epochs {
    ($row:literal, $condition:expr) => {
        concat!(
            "ARRAY(SELECT unnest(",
            $row,
            ".open[s.i:s.i + 2]) FROM generate_series(1, cardinality(",
            $row,
            ".open), 3) AS s(i) WHERE ",
            $condition,
            ")"
        )
    };
}

/// True for an epoch that is not over, and for one of an instance that is not on record. A scalar
/// subquery: the planner cannot turn it into a scan of all instances.
macro_rules! not_over {
    () => {
        "(SELECT m.open[s.i + 1] < i.closed_below AND m.open[s.i + 1] <> ALL (i.left_open) \
          FROM instances AS i WHERE i.namespace = $1 AND i.id = m.open[s.i]) IS NOT TRUE"
    };
}

/// The epochs of the row `m` that are not over.
macro_rules! open {
    () => {
        epochs!("m", not_over!())
    };
}

/// True if the row `m` may take the token of `EXCLUDED`: it is not of a later era than `$2`, and
/// its mark is neither above the token nor below the mark that is needed. `EXCLUDED.previous` is
/// the latter, as a number below 0; NULL if none is.
macro_rules! takes {
    () => {
        "m.era <= $2 AND EXCLUDED.token >= m.token AND m.token >= COALESCE(-EXCLUDED.previous, 0)"
    };
}

/// The columns of a row that takes a token or not, except its epochs.
macro_rules! raise {
    () => {
        concat!(
            "previous = m.token,
    token = CASE WHEN ",
            takes!(),
            " THEN EXCLUDED.token ELSE m.token END,
    spent_by = CASE WHEN NOT (",
            takes!(),
            ") THEN m.spent_by
        WHEN EXCLUDED.token > m.token THEN EXCLUDED.spent_by
        ELSE COALESCE(m.spent_by, EXCLUDED.spent_by) END,
    changed_at = CASE WHEN EXCLUDED.token > m.token AND ",
            takes!(),
            " THEN EXCLUDED.changed_at ELSE m.changed_at END"
        )
    };
}

/// The columns of `FoundColumns`.
macro_rules! returning {
    () => {
        "
RETURNING m.resource, m.token, m.previous, m.era, m.spent_by, m.given_back, m.open"
    };
}

/// One statement, so that no half of it can be seen or lost. Its arguments: the era, the instance,
/// its next opening, its openings in use, and the columns of the asks.
///
/// `ON CONFLICT DO UPDATE` waits for the row's lock and then sees the current row, however old the
/// statement's snapshot is (READ COMMITTED). A SELECT joined in the same statement would see the
/// old row. So a column, `previous`, returns the mark from before. There is no WHERE: the row is
/// written even if nothing changes, so that the commit waits for standbys like any other. The rows
/// are inserted, and so locked, in the order of the SELECT.
///
/// The mark that an ask needs is compared under the same lock. Only columns of the row reach the
/// SET, so `previous` carries it, as a number below 0. A new row keeps that number: below 0 there
/// was no mark. The planner cannot turn the subquery into a hash of the whole table, as it could an
/// EXISTS. It locks what it finds, so that no prune deletes it before the upsert gets there.
///
/// Most rows have no epoch, or one of this instance that is no longer in use. For those nothing is
/// looked up.
macro_rules! advance {
    ($asks:literal, $order:literal) => {
        concat!(
            "INSERT INTO marks AS m (namespace, resource, token, previous, spent_by, era, changed_at, open)
SELECT $1, a.resource, a.token, -a.least, a.spend, 0, now(),
    CASE WHEN a.opening IS NULL THEN '{}' ELSE ARRAY[$3, a.opening, a.token] END
FROM ", $asks, " AS a(resource, token, opening, spend, least, present)
WHERE NOT a.present
    OR (SELECT true FROM marks AS k WHERE k.namespace = $1 AND k.resource = a.resource
        FOR KEY SHARE)",
            $order,
            "
ON CONFLICT (namespace, resource) DO UPDATE SET ", raise!(), ",
    open = CASE
        WHEN cardinality(m.open) = 0 OR cardinality(m.open) = 3
            AND m.open[1] = $3 AND m.open[2] < $4 AND m.open[2] <> ALL ($5) THEN '{}'
        ELSE ",
            epochs!("m", concat!(
                "NOT (m.open[s.i] = $3 AND m.open[s.i + 1] < $4 AND m.open[s.i + 1] <> ALL ($5)) AND ",
                not_over!()
            )),
            " END
        || CASE WHEN ",
            takes!(),
            " THEN EXCLUDED.open ELSE '{}' END",
            returning!()
        )
    };
}

pub(super) const ADVANCE: &str = advance!(
    "unnest($6::text[], $7::bigint[], $8::bigint[], $9::text[], $10::bigint[], $11::boolean[])",
    "
ORDER BY a.resource COLLATE \"C\""
);

/// The same for one ask. Its plan starts no sets of rows, so it costs the server less. A request
/// that comes alone waits for all of that cost.
pub(super) const ADVANCE_ONE: &str = advance!(
    "(SELECT ($6::text[])[1], ($7::bigint[])[1], ($8::bigint[])[1], ($9::text[])[1], ($10::bigint[])[1],
    ($11::boolean[])[1])",
    ""
);

pub(super) const WORDS: Words = &[
    ("{now}", "now()"),
    ("{since}", "now() - $4 * interval '1 millisecond'"),
    (
        "{now_ms}",
        "floor(extract(epoch FROM now()) * 1000)::bigint",
    ),
    (
        "{changed_ms}",
        "floor(extract(epoch FROM m.changed_at) * 1000)::bigint",
    ),
    ("{at_ms}", "floor(extract(epoch FROM at) * 1000)::bigint"),
    ("{open}", concat!("array_to_json(", open!(), ")::text")),
    (
        "{named}",
        "JOIN (SELECT DISTINCT $1::text AS namespace, k.resource \
         FROM unnest($2::text[]) AS k(resource)) AS k \
         ON m.namespace = k.namespace AND m.resource = k.resource",
    ),
    ("{one_of}", "= ANY($2)"),
    ("{lock}", "FOR UPDATE"),
    ("{skip_locked}", "FOR UPDATE SKIP LOCKED"),
    (
        "{right_to_delete}",
        "SELECT quote_ident(current_user), has_table_privilege('marks', 'DELETE')",
    ),
    (
        "{unknown}",
        "SELECT DISTINCT m.open[s.i] FROM marks AS m \
         CROSS JOIN LATERAL generate_series(1, cardinality(m.open), 3) AS s(i) \
         WHERE m.namespace = $1 AND (SELECT true FROM instances AS i \
             WHERE i.namespace = $1 AND i.id = m.open[s.i]) IS NULL",
    ),
];

/// The epochs of `m` that a row `k` of arrays does not name.
macro_rules! not_named {
    () => {
        epochs!(
            "m",
            "NOT EXISTS (SELECT 1 FROM unnest(k.instances, k.openings) AS n(instance, opening) \
             WHERE n.instance = m.open[s.i] AND n.opening = m.open[s.i + 1])"
        )
    };
}

/// Locks the rows first, in key order, without waiting for any. A row that has none of the epochs is
/// written as it is.
///
/// This commit does not wait for a flush, nor for a standby. A crash can only bring an epoch back:
/// the log has one order, so everything that was committed after the removal is lost too.
pub(super) const CEDE: &str = concat!(
    "WITH named AS ( \
         SELECT $1::text AS namespace, n.resource, array_agg(n.instance) AS instances, \
             array_agg(n.opening) AS openings \
         FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS n(resource, instance, opening) \
         GROUP BY n.resource \
     ), locked AS ( \
         SELECT k.* FROM named AS k \
         JOIN marks AS m ON m.namespace = k.namespace AND m.resource = k.resource \
         ORDER BY m.resource FOR UPDATE OF m SKIP LOCKED \
     ), ceded AS ( \
         UPDATE marks AS m SET open = ",
    not_named!(),
    " FROM locked AS k WHERE m.namespace = k.namespace AND m.resource = k.resource \
         RETURNING m.resource) \
     SELECT c.resource, set_config('synchronous_commit', 'off', true), \
         pg_notify($5, json_build_object('r', c.resource)::text) FROM ceded AS c"
);

/// The second argument is the era of all of them. It does not become that of a row that is made: an
/// instance that has learned the mark in an earlier one would take it for overridden. The epochs of
/// a row are a text, since an array of arrays has one length for all.
pub(super) const REPAIR: &str = concat!(
    "INSERT INTO marks AS m (namespace, resource, token, spent_by, era, changed_at, open)
SELECT $1, r.resource, r.token, r.spend, 0, now(), r.open::bigint[]
FROM unnest($3::text[], $4::bigint[], $5::text[], $6::text[]) AS r(resource, token, spend, open)
ORDER BY r.resource COLLATE \"C\"
ON CONFLICT (namespace, resource) DO UPDATE SET ",
    raise!(),
    ", open = ",
    open!(),
    " || ",
    epochs!(
        "EXCLUDED",
        "NOT EXISTS (SELECT 1 FROM generate_series(1, cardinality(m.open), 3) AS o(i) \
         WHERE m.open[o.i] = EXCLUDED.open[s.i] AND m.open[o.i + 1] = EXCLUDED.open[s.i + 1])"
    ),
    returning!()
);
