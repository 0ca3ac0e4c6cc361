//! The statement that checks tokens and advances marks: for any number of asks, and for one.

/// One statement, so that no half of it can be seen or lost.
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
/// EXISTS.
///
/// Drained epochs are deleted by key, in key order, as a reaping of this instance does. The number
/// proves the commit: see [`super::batch`].
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

/// The same for one ask and at most one drained epoch. Its plan starts no sets of rows, so it costs
/// the server much less. A request that comes alone waits for all of that cost.
pub(super) const ADVANCE_ONE: &str = advance!(
    ask: "NOT MATERIALIZED (
    SELECT $3 AS resource, $4 AS token, $5 AS opening, $6 AS spend, $8 AS least, $9 AS present
)",
    drained: "    WHERE e.namespace = $1 AND e.resource = $11 AND e.instance = $12 AND e.opening = $13"
);
