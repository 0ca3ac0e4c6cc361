//! [`Engine`] and [`MarkStore`] for [`SqliteStore`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::session::Kind;
use super::{SqliteStore, count, schema};
use crate::store::engine::{Engine, Texts, Turn, Work};
use crate::store::instances::TOUCH;
use crate::store::operations::texts;
use crate::store::rows::{self, Failure, Schema};
use crate::store::{Count, Era, MarkStore, StoreError};

/// See [`Texts::unchanged`].
const UNCHANGED: &str = concat!(
    "SELECT resource, ",
    open!(),
    " <> '[]' FROM marks AS m WHERE namespace = $1 AND resource >= $2 AND resource <= $3 \
              AND changed_at < ",
    now!(),
    " - $4 ORDER BY resource"
);

/// A lock is for the whole file here.
impl Engine for SqliteStore {
    const TEXTS: Texts = Texts {
        look: concat!(
            "SELECT resource, token, spent_by IS NOT NULL, era, changed_at, ",
            open!(),
            " FROM marks AS m WHERE namespace = $1 \
              AND resource IN (SELECT value FROM json_each($2))"
        ),
        lock: concat!(
            "SELECT token, ",
            open!(),
            " FROM marks AS m WHERE namespace = $1 AND resource = $2"
        ),
        unchanged: UNCHANGED,
        lock_unchanged: UNCHANGED,
        list: "SELECT resource, token, spent_by IS NOT NULL, era, changed_at FROM marks \
             WHERE namespace = $1 AND resource >= $2 AND resource < $3 ORDER BY resource LIMIT $4",
        set_mark: concat!(
            "UPDATE marks SET previous = token, token = $3, spent_by = NULL, era = $4, changed_at = ",
            now!(),
            " WHERE namespace = $1 AND resource = $2"
        ),
        right_to_delete: "SELECT '', $1 IS NOT NULL",
        delete: "DELETE FROM marks WHERE namespace = $1 \
             AND resource IN (SELECT value FROM json_each($2))",
        record_audit: concat!(
            "INSERT INTO audit (namespace, resource, action, before, after, reason, actor, at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, ",
            now!(),
            ")"
        ),
        audit: "SELECT resource, action, before, after, reason, actor, at FROM audit \
             WHERE namespace = $1 AND resource = $2 ORDER BY id DESC LIMIT $3",
        unknown: "SELECT DISTINCT e.value FROM marks AS m, json_each(m.open) AS e \
             WHERE m.namespace = $1 AND e.key % 3 = 0 AND NOT EXISTS ( \
                 SELECT 1 FROM instances AS i WHERE i.namespace = $1 AND i.id = e.value)",
        operations: texts!("CAST(unixepoch('subsec') * 1000 AS INTEGER)"),
    };
    const SHARED: bool = false;

    async fn run<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl Work<T>,
    ) -> Result<T, StoreError> {
        let kind = match turn {
            Turn::Look | Turn::Read | Turn::Watch => Kind::Read,
            // Without the log, all that a new instance forwards is missing.
            Turn::Join | Turn::Renew => Kind::Heartbeat,
            _ => Kind::Write,
        };
        self.in_turn(move |session, known| {
            Box::pin(async move {
                let done = session.run(known, kind, work).await?;
                Ok((done, (kind == Kind::Read).then_some((0, 0))))
            })
        })
        .await
    }

    async fn place(&self) -> Result<String, StoreError> {
        Ok(self.known_place())
    }

    fn known_place(&self) -> String {
        self.known.boot.to_string()
    }

    fn pruned(&self, marks: u64) {
        let less = |known: u64| Some(known.saturating_sub(marks));
        let (set, read) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.known.marks.fetch_update(set, read, less);
    }
}

#[async_trait]
impl MarkStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        // The schema was checked when the file was opened.
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        // An empty transaction would not notice a file that has become read-only.
        self.run(Turn::Write, |mut session| {
            Box::pin(async move {
                let _: (Era,) = session.one(TOUCH, vec![]).await?;
                match schema(session.sqlite()).await? {
                    Schema::Current => Ok(()),
                    Schema::Behind => Err(rows::schema_behind().into()),
                }
            })
        })
        .await
    }

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = count::in_place(&lock).await;
        if lock.lost().is_some() {
            // The next turn saves what only the log has: the sooner, the better.
            let _ = self.run(Turn::Read, |_| Box::pin(async { Ok(()) })).await;
        }
        checked
    }

    async fn disconnect(&self) {
        // The next holder of the lock takes this process for ended, so the process keeps the lock.
        std::mem::forget(self.lock.upgrade());
        SqliteStore::close(self).await;
    }

    fn servers(&self) -> u64 {
        0
    }

    fn instances_over(&self) -> u64 {
        0
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        let known = Arc::clone(&self.known);
        if known.miscounted.load(Ordering::Acquire) {
            self.run(Turn::Read, move |mut session| {
                Box::pin(async move {
                    let namespace = session.namespace;
                    let (marks, _) = count_all(session.sqlite(), namespace).await?;
                    // Within the turn: nothing is added meanwhile.
                    known.marks.store(marks, Ordering::Release);
                    known.miscounted.store(false, Ordering::Release);
                    Ok(())
                })
            })
            .await?;
        }
        Ok(Count {
            marks: self.counted().unwrap_or_default(),
            more: false,
        })
    }

    fn counted(&self) -> Option<u64> {
        Some(self.known.marks.load(Ordering::Acquire))
    }
}

/// The marks of a namespace, and when one of them last changed.
pub(super) async fn count_all(
    connection: &mut SqliteConnection,
    namespace: &str,
) -> Result<(u64, Option<i64>), Failure> {
    let (marks, latest_ms): (i64, Option<i64>) =
        sqlx::query_as("SELECT count(*), max(changed_at) FROM marks WHERE namespace = ?1")
            .bind(namespace)
            .fetch_one(connection)
            .await?;
    Ok((marks.unsigned_abs(), latest_ms))
}
