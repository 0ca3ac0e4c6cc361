//! The epochs in the row of a resource: a JSON array of triples, and the SQL for it.

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
