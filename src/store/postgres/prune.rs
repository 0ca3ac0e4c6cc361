//! Prunes marks: see [`Administration::prune`](crate::store::Administration::prune).

use std::time::Duration;

use sqlx::PgConnection;

use super::administration::{NEXT_ERA, commit_audited, run};
use super::{PostgresStore, only};
use crate::store::rows;
use crate::store::{Era, InstanceId, PruneStep, Pruned, StoreError};

/// How many marks one transaction looks at. It holds the locks of those that it deletes.
const PIECE: usize = 1000;

impl PostgresStore {
    /// The leases are read behind the commit of the era: an instance that joins later reads it.
    pub(super) async fn announce_prune_of(
        &self,
        me: &InstanceId,
    ) -> Result<(Era, Duration), StoreError> {
        let era = self.query_as(NEXT_ERA);
        let longest = self
            .query_as(
                "SELECT COALESCE(max(lease_ms), 0) FROM instances \
                 WHERE namespace = $1 AND id <> $2 AND NOT dead",
            )
            .bind(me.as_str());
        self.on(&self.operators, async |c| {
            let (era,): (Era,) = only(era.fetch_all(&mut *c).await?)?;
            let (longest,): (i64,) = only(longest.fetch_all(c).await?)?;
            Ok((era, Duration::from_millis(longest.unsigned_abs())))
        })
        .await
    }

    /// Locks the mark's rows *first*. An advance holds that lock before it opens an epoch. So once
    /// the locks are held, no epoch can be opened before this commits. The epochs are read by a
    /// statement of its own after that, whose snapshot shows all that were opened.
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
            .query_as(
                "SELECT resource FROM marks WHERE namespace = $1 AND resource >= $2 \
                 AND ($3::text IS NULL OR resource > $3) AND resource <= $4 \
                 AND changed_at < now() - $5 * interval '1 millisecond' \
                 ORDER BY resource FOR UPDATE SKIP LOCKED",
            )
            .bind(span.from)
            .bind(span.after);
        let unchanged = rows::millis(step.unchanged);
        let open = self.query_as(
            "SELECT DISTINCT resource FROM epochs WHERE namespace = $1 AND resource = ANY($2)",
        );
        let delete = self.query("DELETE FROM marks WHERE namespace = $1 AND resource = ANY($2)");
        let era = self.query_as(NEXT_ERA);
        let entry = self
            .query_as(
                "INSERT INTO audit (namespace, resource, action, reason, actor, at) \
                 VALUES ($1, $2, 'prune', $3, $4, now()) RETURNING id",
            )
            .bind(step.audited_as());
        self.on(&self.operators, async |c| {
            let (found, last): (i64, Option<String>) = only(piece.fetch_all(&mut *c).await?)?;
            let Some(last) = last else {
                return Ok(Pruned::default());
            };
            run(c, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            let lock = lock.bind(last.clone()).bind(unchanged);
            let old: Vec<(String,)> = lock.fetch_all(&mut *c).await?;
            let mut old: Vec<String> = old.into_iter().map(|(resource,)| resource).collect();
            let open: Vec<(String,)> = open.bind(old.clone()).fetch_all(&mut *c).await?;
            old.retain(|resource| !open.contains(&(resource.clone(),)));
            let mut done = Pruned {
                deleted: old.len() as u64,
                open: open.len() as u64,
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
            let entry = entry
                .bind(step.audited_reason(done.deleted))
                .bind(step.actor.clone());
            let (entry,): (i64,) = only(entry.fetch_all(&mut *c).await?)?;
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
