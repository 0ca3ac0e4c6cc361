//! The epochs in the row of a resource: a JSON array of triples, and the SQL for it. The words of the
//! statements that both engines share.

use crate::store::engine::Words;

/// Reads the epochs of a row, which stand in it as a JSON array of triples.
macro_rules! triples {
    ($open:literal) => {
        concat!(
            "(SELECT ",
            $open,
            " ->> key AS instance, ",
            $open,
            " ->> (key + 1) AS opening, ",
            $open,
            " ->> (key + 2) AS token FROM json_each(",
            $open,
            ") WHERE key % 3 = 0)"
        )
    };
}

/// Writes epochs as they stand in a row.
macro_rules! array {
    () => {
        "'[' || coalesce(group_concat(concat_ws(',', instance, opening, token)), '') || ']'"
    };
}

/// True of an epoch that is not over. What the instances have left open is read once per statement.
macro_rules! not_over {
    () => {
        "((opening < (SELECT n.closed_below FROM instances AS n
                      WHERE n.namespace = ?1 AND n.id = instance)) IS NOT TRUE
          OR (instance, opening) IN (SELECT n.id, l.value
                      FROM instances AS n, json_each(n.left_open) AS l
                      WHERE n.namespace = ?1 AND n.state < 2))"
    };
}

/// The epochs in the row `m` that are not over.
macro_rules! open {
    () => {
        concat!(
            "(SELECT ",
            array!(),
            " FROM ",
            triples!("m.open"),
            " WHERE ",
            not_over!(),
            ")"
        )
    };
}

/// Times are milliseconds already. A lock is for the whole file here.
pub(super) const WORDS: Words = &[
    ("{now}", "{now_ms}"),
    ("{since}", "{now_ms} - $4"),
    ("{now_ms}", "CAST(unixepoch('subsec') * 1000 AS INTEGER)"),
    ("{changed_ms}", "m.changed_at"),
    ("{at_ms}", "at"),
    ("{open}", open!()),
    ("{named}", "WHERE m.namespace = $1 AND m.resource {one_of}"),
    ("{one_of}", "IN (SELECT value FROM json_each($2))"),
    ("{lock}", ""),
    ("{skip_locked}", ""),
    ("{right_to_delete}", "SELECT '', $1 IS NOT NULL"),
    (
        "{unknown}",
        "SELECT DISTINCT e.value FROM marks AS m, json_each(m.open) AS e \
         WHERE m.namespace = $1 AND e.key % 3 = 0 AND NOT EXISTS ( \
             SELECT 1 FROM instances AS i WHERE i.namespace = $1 AND i.id = e.value)",
    ),
];
