//! [`Texts`]: the statements that [`Administration`](super::Administration) and
//! [`Operations`](super::Operations) run, in the words of each engine. `$1` is the namespace in each.

/// The statements whose texts differ between the engines.
pub(super) struct Texts {
    /// The rows of the keys `$2`, with the epochs that are not over as JSON.
    pub look: &'static str,
    /// Mark and epochs of the resource `$2`. Locks the row: no epoch can be opened before the
    /// transaction ends.
    pub lock: &'static str,
    /// The marks from `$2` to `$3`, both inclusive, that have not changed for `$4` ms, and whether
    /// epochs are open.
    pub unchanged: &'static str,
    /// The same. Locks them, and leaves out those that are locked.
    pub lock_unchanged: &'static str,
    /// The marks from `$2`, inclusive, to `$3`, exclusive; `$4` at most. As [`Self::look`], without the
    /// epochs.
    pub list: &'static str,
    /// Sets the mark of the resource `$2` to `$3`, in the era `$4`.
    pub set_mark: &'static str,
    /// The role, and whether it may delete marks.
    pub right_to_delete: &'static str,
    /// Deletes the marks of the keys `$2`.
    pub delete: &'static str,
    /// Writes an audit row: resource, action, marks before and after, reason, actor.
    pub record_audit: &'static str,
    /// The latest `$3` audit rows of the resource `$2`.
    pub audit: &'static str,
    /// The ids that only epochs know.
    pub unknown: &'static str,
    /// See [`Operations`](super::Operations).
    pub begin: &'static str,
    pub retake: &'static str,
    pub know: &'static str,
    pub settle: &'static str,
    pub expire: &'static str,
}

/// Makes the texts of an engine from its words:
///
/// - `now`: the time, as a column has it; `now_ms`: in milliseconds since the Unix epoch.
/// - `unchanged_since`: the time `$4` ms ago.
/// - `ms`: a macro that turns a column with a time into such milliseconds.
/// - `open`: the epochs of the row `m` that are not over, as JSON.
/// - `rows`: which rows `m` of marks have the keys `$2`; `one_of`: a key is one of them.
/// - `lock`, `skip_locked`: what locks the rows of a read.
macro_rules! texts {
    (@unchanged $open:expr, $since:literal) => {
        concat!(
            "SELECT m.resource, ", $open, " <> '[]' FROM marks AS m WHERE m.namespace = $1 \
             AND m.resource >= $2 AND m.resource <= $3 AND m.changed_at < ", $since,
            " ORDER BY m.resource"
        )
    };
    (
        now: $now:literal,
        now_ms: $now_ms:literal,
        unchanged_since: $since:literal,
        ms: $ms:ident,
        open: $open:expr,
        rows: $rows:literal,
        one_of: $one_of:literal,
        lock: $lock:literal,
        skip_locked: $skip_locked:literal,
        right_to_delete: $right_to_delete:literal,
        unknown: $unknown:literal,
    ) => {
        $crate::store::texts::Texts {
            look: concat!(
                "SELECT m.resource, m.token, m.spent_by IS NOT NULL, m.era, ", $ms!("m.changed_at"), ", ",
                $open, " FROM marks AS m ", $rows
            ),
            lock: concat!(
                "SELECT m.token, ", $open,
                " FROM marks AS m WHERE m.namespace = $1 AND m.resource = $2 ", $lock
            ),
            unchanged: texts!(@unchanged $open, $since),
            lock_unchanged: concat!(texts!(@unchanged $open, $since), " ", $skip_locked),
            list: concat!(
                "SELECT resource, token, spent_by IS NOT NULL, era, ", $ms!("changed_at"), ", '[]' FROM marks \
                 WHERE namespace = $1 AND resource >= $2 AND resource < $3 ORDER BY resource LIMIT $4"
            ),
            set_mark: concat!(
                "UPDATE marks SET previous = token, token = $3, spent_by = NULL, era = $4, \
                 changed_at = ", $now, " WHERE namespace = $1 AND resource = $2"
            ),
            right_to_delete: $right_to_delete,
            delete: concat!("DELETE FROM marks WHERE namespace = $1 AND resource ", $one_of),
            record_audit: concat!(
                "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, ", $now, ")"
            ),
            audit: concat!(
                "SELECT resource, action, before, after, reason, actor, ", $ms!("at"), " FROM audit \
                 WHERE namespace = $1 AND resource = $2 ORDER BY id DESC LIMIT $3"
            ),
            unknown: $unknown,
            begin: concat!(
                "INSERT INTO operations (namespace, resource, operation, attempt, digest, token, \
                     instance, state, since) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, ", $now_ms, ") \
                 ON CONFLICT (namespace, resource, operation) DO UPDATE SET since = operations.since \
                 RETURNING attempt, digest, token, state, answer, COALESCE((SELECT i.state = 2 \
                     FROM instances AS i WHERE i.namespace = $1 AND i.id = instance), false)"
            ),
            retake: concat!(
                "UPDATE operations SET attempt = $4, digest = $5, token = $6, instance = $7, state = 0, \
                     since = ", $now_ms, " \
                 WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $8 AND state < 2"
            ),
            know: concat!(
                "UPDATE operations SET state = 2, answer = $5, since = ", $now_ms, ", \
                     expires = ", $now_ms, " + $6 \
                 WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $4 AND state < 2"
            ),
            settle: concat!(
                "UPDATE operations SET state = 1, since = ", $now_ms, " \
                 WHERE namespace = $1 AND resource = $2 AND operation = $3 AND attempt = $4 AND state = 0"
            ),
            expire: concat!(
                "DELETE FROM operations WHERE namespace = $1 AND (resource, operation) IN ( \
                     SELECT resource, operation FROM operations \
                     WHERE namespace = $1 AND expires < ", $now_ms, " ORDER BY expires LIMIT $2)"
            ),
        }
    };
}
pub(super) use texts;
