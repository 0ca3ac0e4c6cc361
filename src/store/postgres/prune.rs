//! Prunes marks: see [`Administration::prune`](crate::store::Administration::prune).

use sqlx::PgConnection;

use super::administration::{NEXT_ERA, commit_audited, run};
use super::statements::LOCK_UNCHANGED;
use super::{PostgresStore, only};
use crate::store::rows;
use crate::store::{Era, PruneStep, Pruned, StoreError};

/// How many marks one transaction looks at. It holds the locks of those that it deletes.
const PIECE: usize = 1000;

impl PostgresStore {
    /// Locks the marks' rows first: see [`LOCK_UNCHANGED`].
    ///
    /// Any error leaves the transaction open. The connection is then dropped, which ends it.
    pub(super) async fn prune_step(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        let Some(span) = rows::span(&step.prefix, step.after.as_deref()) else {
            return Ok(Pruned::default());
        };
        let piece = self
            .query_as(
                "SELECT count(*), max(piece.resource) FROM ( \
                     SELECT resource FROM marks WHERE namespace = $1 AND resource >= $2 \
                     AND ($3::text IS NULL OR resource > $3) AND ($4::text IS NULL OR resource < $4) \
                     ORDER BY resource LIMIT $5) AS piece",
            )
            .bind(span.from.clone())
            .bind(span.after.clone())
            .bind(span.until)
            .bind(i64::try_from(PIECE).unwrap_or(i64::MAX));
        let lock = self
            .query_as(LOCK_UNCHANGED)
            .bind(span.from)
            .bind(span.after);
        let unchanged = rows::millis(step.unchanged);
        let delete = self.query("DELETE FROM marks WHERE namespace = $1 AND resource = ANY($2)");
        let era = self.query_as(NEXT_ERA);
        self.on(&self.operators, async |c| {
            let (found, last): (i64, Option<String>) = only(piece.fetch_all(&mut *c).await?)?;
            let Some(last) = last else {
                return Ok(Pruned::default());
            };
            run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            let lock = lock.bind(last.clone()).bind(unchanged);
            let old: Vec<(String, bool)> = lock.fetch_all(&mut *c).await?;
            let all = old.len();
            let old = old.into_iter().filter(|(_, open)| !open);
            let old: Vec<String> = old.map(|(resource, _)| resource).collect();
            let mut done = Pruned {
                deleted: old.len() as u64,
                open: (all - old.len()) as u64,
                next: (found.unsigned_abs() >= PIECE as u64).then_some(last),
                era: None,
            };
            if step.dry_run || old.is_empty() {
                run(c, "ROLLBACK").await?;
                return Ok(done);
            }
            may_delete(c).await?;
            let (era,): (Era,) = only(era.fetch_all(&mut *c).await?)?;
            delete.bind(old).execute(&mut *c).await?;
            let (keys, reason) = (step.audited_as(), step.audited_reason(done.deleted));
            let entry = self.audit_entry(&keys, "prune", (None, None), &reason, &step.actor);
            commit_audited(c, entry).await?;
            done.era = Some(era);
            Ok(done)
        })
        .await
    }
}

/// The role at run time has no right to delete a mark, unless it owns the table: see
/// [`roles`](super::roles).
async fn may_delete(connection: &mut PgConnection) -> Result<(), rows::Failure> {
    let found: Vec<(String, bool)> =
        sqlx::query_as("SELECT quote_ident(current_user), has_table_privilege('marks', 'DELETE')")
            .fetch_all(connection)
            .await?;
    let (role, allowed) = only(found)?;
    if allowed {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "the role {role} may not delete marks, as it should be. For the time of a prune: GRANT DELETE ON TABLE \
         marks TO {role}; and after it: REVOKE DELETE ON TABLE marks FROM {role}"
    ))
    .into())
}
