//! [`Administration`]: the calls of the start and of operators, and two of requests that are the same for
//! both engines.

use std::time::Duration;

use async_trait::async_trait;

use super::engine::Value::{self, MaybeNumber, MaybeText, Number, Text, Texts};
use super::engine::{Engine, Session, Turn};
use super::instances::{Instances, NOT_SETTLED, TOUCH};
use super::records::{
    AuditRow, Era, Found, InstanceId, InstanceRow, MarkRow, Override, PruneStep, Pruned, Signature,
    StoreError,
};
use super::rows::{self, Failure};
use crate::routing::{ResourceKey, Token};

/// How many marks one transaction of a prune looks at. With `SQLite` requests wait for it; with
/// Postgres it holds the locks of those that it deletes.
const PIECE: i64 = 1000;

/// Begins the namespace's next era, and returns it.
const NEXT_ERA: &str = "INSERT INTO namespaces AS n (namespace, era) VALUES ($1, 1) \
     ON CONFLICT (namespace) DO UPDATE SET era = n.era + 1 RETURNING era";

/// The most marks that one statement counts. Others may share the database, and requests wait for the
/// statement where it is a file.
const COUNTED: i64 = 100_000;

/// How many keys a range has, up to a limit, and the last of them.
const COUNT: &str = "SELECT count(*), max(piece.resource) FROM ( \
         SELECT resource FROM marks WHERE namespace = $1 AND resource >= $2 AND resource < $3 \
         ORDER BY resource LIMIT $4) AS piece";

/// The marks from `$2` to `$3`, both inclusive, that have not changed for `$4` ms, and whether epochs
/// are open.
const UNCHANGED: &str = "SELECT m.resource, {open} <> '[]' FROM marks AS m WHERE m.namespace = $1 \
     AND m.resource >= $2 AND m.resource <= $3 AND m.changed_at < {since} ORDER BY m.resource ";

/// Writes an audit row: resource, action, marks before and after, reason, actor.
const RECORD_AUDIT: &str = "INSERT INTO audit (namespace, resource, action, before, after, reason, \
         actor, at) VALUES ($1, $2, $3, $4, $5, $6, $7, {now})";

/// Any caller may use these. With Postgres they share no connection with the lanes and the renewals;
/// with `SQLite` all calls take turns at one.
#[async_trait]
pub trait Administration: Instances {
    /// The rows of those of these resources that have one, in no order, without the epochs that
    /// are over. One snapshot. In each [`Found`], the mark stands as the one before.
    async fn look(&self, resources: &[ResourceKey]) -> Result<Vec<(MarkRow, Found)>, StoreError> {
        let keys = resources.iter().map(|key| key.as_str().to_owned());
        let keys = vec![Value::Texts(keys.collect())];
        let sql = "SELECT m.resource, m.token, m.spent_by, m.era, m.given_back, {changed_ms}, {open} \
             FROM marks AS m {named}";
        self.engine().fetch(Turn::Look, sql, keys, rows::look).await
    }

    /// Gives a spent token back, if it is still spent under that name.
    async fn give_back(
        &self,
        resource: &ResourceKey,
        token: Token,
        name: &str,
    ) -> Result<(), StoreError> {
        // An update that waited for the row compares the name again when it has it.
        let sql = "UPDATE marks SET given_back = given_back + 1, spent_by = NULL \
             WHERE namespace = $1 AND resource = $2 AND token = $3 AND spent_by = $4";
        let resource = Value::Text(resource.to_string());
        let (token, name) = (Value::Number(token.get()), Value::Text(name.to_owned()));
        let spent = vec![resource, token, name];
        self.engine().change(Turn::Cede, sql, spent).await.map(drop)
    }

    /// Marks whose key starts with `prefix` and sorts (bytewise) after `after`, in key order.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let sql = "SELECT resource, token, spent_by, era, given_back, {changed_ms}, '[]' FROM marks AS m \
             WHERE namespace = $1 AND resource >= $2 AND resource < $3 ORDER BY resource LIMIT $4";
        let (from, until) = rows::span(prefix, after);
        let range = vec![Text(from), Text(until), Number(limit.into())];
        let rows = self.engine().fetch(Turn::Read, sql, range, rows::look);
        Ok(rows.await?.into_iter().map(|(mark, _)| mark).collect())
    }

    /// Counts the marks of the namespace whose key sorts (bytewise) after `after`: as many as one
    /// call may. Returns the last key that was counted, too, if there may be more behind it.
    async fn count_marks(&self, after: Option<&str>) -> Result<(u64, Option<String>), StoreError> {
        let (from, until) = rows::span("", after);
        let range = vec![Text(from), Text(until), Number(COUNTED)];
        let piece = |(marks, last): (i64, Option<String>)| Ok((marks, last));
        let piece = self.engine().fetch(Turn::Read, COUNT, range, piece);
        let (marks, last) = rows::only(piece.await?)?;
        Ok((marks.unsigned_abs(), last.filter(|_| marks >= COUNTED)))
    }

    /// Sets a mark, in one transaction: refused while any epoch of the resource is open; clears
    /// `spent`; adds one to the namespace's era and stamps it on the row; writes the audit row.
    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        by: &Signature,
    ) -> Result<Override, StoreError> {
        let (resource, by) = (resource.to_string(), by.clone());
        self.engine()
            .run(Turn::Transaction, move |mut session| {
                Box::pin(async move {
                    // Locks the row: no epoch can be opened before the transaction ends.
                    let sql = "SELECT m.token, {open} FROM marks AS m \
                     WHERE m.namespace = $1 AND m.resource = $2 {lock}";
                    let key = vec![Text(resource.clone())];
                    let locked: Vec<(i64, String)> = session.rows(sql, key).await?;
                    let Some((before, open)) = locked.into_iter().next() else {
                        return Ok(Override::Absent);
                    };
                    let open = rows::json_epochs(&open)?;
                    if !open.is_empty() {
                        return Ok(Override::EpochsOpen(open));
                    }
                    let (era,) = session.one(NEXT_ERA, vec![]).await?;
                    let change = vec![Text(resource.clone()), Number(token.get()), Number(era)];
                    let sql = "UPDATE marks SET previous = token, token = $3, spent_by = NULL, \
                     era = $4, changed_at = {now} WHERE namespace = $1 AND resource = $2";
                    session.execute(sql, change).await?;
                    let before = rows::number(before)?;
                    let marks = (Some(before), Some(token));
                    let entry = audit_entry(resource, "override", marks, &by);
                    session.execute(RECORD_AUDIT, entry).await?;
                    Ok(Override::Done { before, era })
                })
            })
            .await
    }

    /// Adds one to the namespace's era, so that every instance forgets the marks that it knows.
    /// Returns the era, and the longest lease of the other instances that are not dead: once it has
    /// passed, each of them has forgotten, or may not forward.
    ///
    /// The leases are read behind the commit of the era: an instance that joins later reads it.
    async fn announce_prune(&self, me: InstanceId) -> Result<(Era, Duration), StoreError> {
        let shared = self.shared();
        self.engine()
            .run(Turn::Write, move |mut session| {
                Box::pin(async move {
                    let (era,) = session.one(NEXT_ERA, vec![]).await?;
                    if !shared {
                        return Ok((era, Duration::ZERO));
                    }
                    let sql = "SELECT COALESCE(max(lease_ms), 0) FROM instances \
                     WHERE namespace = $1 AND id <> $2 AND state = 0";
                    let (longest,): (i64,) = session.one(sql, vec![Number(me.get())]).await?;
                    Ok((era, Duration::from_millis(longest.unsigned_abs())))
                })
            })
            .await
    }

    /// Deletes marks, as many as one transaction may: those that have not changed for long, and
    /// whose resource has no epoch open. Adds one to the namespace's era and writes an audit row in
    /// the same transaction. Rows that are locked are left out.
    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        let step = step.clone();
        let turn = if step.dry_run {
            Turn::Read
        } else {
            Turn::Transaction
        };
        let work = self
            .engine()
            .run(turn, move |session| Box::pin(prune(session, step)));
        work.await
    }

    /// Writes an audit row for an operator's other actions, with the marks before and after.
    async fn record_audit(
        &self,
        resource: &ResourceKey,
        action: &str,
        marks: (Option<Token>, Option<Token>),
        by: &Signature,
    ) -> Result<(), StoreError> {
        let entry = audit_entry(resource.to_string(), action, marks, by);
        let written = self.engine().change(Turn::Write, RECORD_AUDIT, entry);
        written.await.map(drop)
    }

    /// The audit rows of a resource, the latest first.
    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let values = vec![Text(resource.to_string()), Number(limit.into())];
        let sql = "SELECT resource, action, before, after, reason, actor, {at_ms} FROM audit \
             WHERE namespace = $1 AND resource = $2 ORDER BY id DESC LIMIT $3";
        let row = |(resource, action, before, after, reason, actor, at_ms)| {
            Ok(AuditRow {
                resource: rows::key(resource)?,
                action,
                before: rows::maybe(before)?,
                after: rows::maybe(after)?,
                reason,
                actor,
                at_ms,
            })
        };
        self.engine().fetch(Turn::Read, sql, values, row).await
    }

    /// The route table on record, as `config::RouteTable` writes it; `None`: none is on record.
    async fn routes(&self) -> Result<Option<String>, StoreError> {
        let sql = "SELECT routes FROM namespaces WHERE namespace = $1";
        let documents = self
            .engine()
            .fetch(Turn::Read, sql, vec![], |(document,)| Ok(document));
        Ok(documents.await?.pop().flatten())
    }

    /// Records a route table if `known` is still the one on record; says whether.
    ///
    /// An update that waited for the row compares it again when it has it.
    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        let values = vec![
            MaybeText(known.map(str::to_owned)),
            Text(document.to_owned()),
        ];
        let changed = self.engine().change(
            Turn::Write,
            "INSERT INTO namespaces AS n (namespace, era, routes) \
             SELECT $1, 0, $3 WHERE $2 IS NULL \
                 OR EXISTS (SELECT 1 FROM namespaces AS o WHERE o.namespace = $1) \
             ON CONFLICT (namespace) DO UPDATE SET routes = EXCLUDED.routes \
             WHERE n.routes IS NOT DISTINCT FROM $2 RETURNING 1",
            values,
        );
        Ok(changed.await? == 1)
    }

    /// Records a route table if no instance of the namespace may have anything in flight, in one
    /// transaction that no instance can join during. Otherwise returns the instances: those on
    /// record that have not settled, or else the ids that only epochs know, for which it reads all
    /// marks.
    ///
    /// Locks the namespace's row first. Every join does, in the transaction that inserts its
    /// instance. So an instance that is not seen here does not join before this commits. The
    /// instances are read by a later statement, whose snapshot shows all that have joined.
    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        let (place, document) = (self.engine().known_place(), document.to_owned());
        self.engine()
            .run(Turn::Transaction, move |mut session| {
                Box::pin(async move {
                    let _: (Era,) = session.one(TOUCH, vec![]).await?;
                    let present = session.rows(NOT_SETTLED, vec![Text(place)]).await?;
                    let present = present.into_iter().map(rows::instance);
                    let mut present: Vec<InstanceRow> = present.collect();
                    if present.is_empty() {
                        let ids: Vec<(i64,)> = session.rows("{unknown}", vec![]).await?;
                        let row = |(id,)| InstanceRow::unknown(InstanceId::from_row(id));
                        present = ids.into_iter().map(row).collect();
                    }
                    if present.is_empty() {
                        let sql = "UPDATE namespaces SET routes = $2 WHERE namespace = $1";
                        session.execute(sql, vec![Text(document)]).await?;
                    }
                    Ok(present)
                })
            })
            .await
    }
}

impl<E: Engine> Administration for E {}

/// The values of an audit row.
fn audit_entry(
    resource: String,
    action: &str,
    (before, after): (Option<Token>, Option<Token>),
    by: &Signature,
) -> Vec<Value> {
    vec![
        Text(resource),
        Text(action.to_owned()),
        MaybeNumber(before.map(Token::get)),
        MaybeNumber(after.map(Token::get)),
        Text(by.reason.clone()),
        Text(by.actor.clone()),
    ]
}

/// Within a transaction, unless it is a dry run. Locks the marks' rows first, and leaves out those
/// that are locked.
async fn prune(mut session: Session<'_>, step: PruneStep) -> Result<Pruned, Failure> {
    let (from, until) = rows::span(&step.prefix, step.after.as_deref());
    let range = vec![Text(from.clone()), Text(until), Number(PIECE)];
    let (found, last): (i64, Option<String>) = session.one(COUNT, range).await?;
    let Some(last) = last else {
        return Ok(Pruned::default());
    };
    let unchanged = Number(rows::millis(step.unchanged));
    let range = vec![Text(from), Text(last.clone()), unchanged];
    let lock = if step.dry_run { "" } else { "{skip_locked}" };
    let old: Vec<(String, bool)> = session.rows(&[UNCHANGED, lock].concat(), range).await?;
    let all = old.len();
    let old = old.into_iter().filter(|(_, open)| !open);
    let old: Vec<String> = old.map(|(resource, _)| resource).collect();
    let mut done = Pruned {
        deleted: old.len() as u64,
        open: (all - old.len()) as u64,
        next: (found >= PIECE).then_some(last),
        era: None,
    };
    if step.dry_run || old.is_empty() {
        return Ok(done);
    }
    // The role at run time has no right to delete a mark, unless it owns the table.
    let (role, allowed): (String, bool) = session.one("{right_to_delete}", vec![]).await?;
    if !allowed {
        return Err(StoreError::Unfit(format!(
            "the role {role} may not delete marks, as it should be. For the time of a prune: GRANT DELETE ON TABLE \
             marks TO {role}; and after it: REVOKE DELETE ON TABLE marks FROM {role}"
        ))
        .into());
    }
    let (era,) = session.one(NEXT_ERA, vec![]).await?;
    done.era = Some(era);
    let sql = "DELETE FROM marks WHERE namespace = $1 AND resource {one_of}";
    session.execute(sql, vec![Texts(old)]).await?;
    let (deleted, unchanged) = (done.deleted, humantime::format_duration(step.unchanged));
    let mut by = step.by;
    by.reason = format!("{deleted} marks, unchanged for {unchanged}: {}", by.reason);
    let prefix = format!("{}*", step.prefix);
    let entry = audit_entry(prefix, "prune", (None, None), &by);
    session.execute(RECORD_AUDIT, entry).await?;
    Ok(done)
}
