//! [`Engine`] and [`MarkStore`] for [`SqliteStore`].

use async_trait::async_trait;

use super::{SqliteStore, count};
use crate::store::engine::{Engine, OverEngine, Turn, Work};
use crate::store::instances::TOUCH;
use crate::store::{Era, MarkStore, StoreError};

#[async_trait]
impl Engine for SqliteStore {
    fn shared(&self) -> bool {
        false
    }

    async fn work(&self, turn: Turn, work: Work) -> Result<(), StoreError> {
        self.in_turn(move |session| Box::pin(session.run(turn, work)))
            .await
    }

    async fn place(&self) -> Result<String, StoreError> {
        Ok(self.known_place())
    }

    fn known_place(&self) -> String {
        self.boot.clone()
    }
}

#[async_trait]
impl MarkStore for SqliteStore {
    /// An empty transaction would not notice a file that has become read-only.
    async fn prepare(&self) -> Result<(), StoreError> {
        let touched = self
            .engine()
            .fetch(Turn::Write, TOUCH, vec![], |(era,): (Era,)| Ok(era));
        touched.await.map(drop)
    }

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = count::in_place(&lock).await;
        if lock.lost().is_some() {
            // The next turn saves what only the log has: the sooner, the better.
            let nothing: Work = Box::new(|_| Box::pin(async { Ok(()) }));
            let _ = self.work(Turn::Read, nothing).await;
        }
        checked
    }

    async fn disconnect(&self) {
        // The next holder of the lock takes this process for ended, so the process keeps the lock.
        std::mem::forget(self.lock.upgrade());
        SqliteStore::close(self).await;
    }
}
