//! [`Engine`] and [`MarkStore`] for [`SqliteStore`].

use std::sync::Arc;

use async_trait::async_trait;

use super::{SqliteStore, count, schema};
use crate::store::counting::Counting;
use crate::store::engine::{Engine, Turn, Work};
use crate::store::instances::TOUCH;
use crate::store::rows::{self, Schema};
use crate::store::texts::{Texts, texts};
use crate::store::{Era, MarkStore, StoreError};

/// Times are such milliseconds already.
macro_rules! millis {
    ($column:literal) => {
        $column
    };
}

/// A lock is for the whole file here.
impl Engine for SqliteStore {
    const TEXTS: Texts = texts! {
        now: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        now_ms: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        unchanged_since: "CAST(unixepoch('subsec') * 1000 AS INTEGER) - $4",
        ms: millis,
        open: open!(),
        rows: "WHERE m.namespace = $1 AND m.resource IN (SELECT value FROM json_each($2))",
        one_of: "IN (SELECT value FROM json_each($2))",
        lock: "",
        skip_locked: "",
        right_to_delete: "SELECT '', $1 IS NOT NULL",
        unknown: "SELECT DISTINCT e.value FROM marks AS m, json_each(m.open) AS e \
             WHERE m.namespace = $1 AND e.key % 3 = 0 AND NOT EXISTS ( \
                 SELECT 1 FROM instances AS i WHERE i.namespace = $1 AND i.id = e.value)",
    };
    const SHARED: bool = false;

    async fn run<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl Work<T>,
    ) -> Result<T, StoreError> {
        self.in_turn(move |session| {
            Box::pin(async move {
                let done = session.run(turn, work).await?;
                Ok((done, turn.only_reads().then_some((0, 0))))
            })
        })
        .await
    }

    async fn place(&self) -> Result<String, StoreError> {
        Ok(self.known_place())
    }

    fn known_place(&self) -> String {
        self.boot.clone()
    }

    fn counting(&self) -> &Arc<Counting> {
        &self.counting
    }
}

#[async_trait]
impl MarkStore for SqliteStore {
    async fn prepare(&self) -> Result<(), StoreError> {
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
}
