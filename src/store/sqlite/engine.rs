//! [`Engine`] for [`SqliteStore`].

use async_trait::async_trait;

use super::SqliteStore;
use crate::store::StoreError;
use crate::store::engine::{Engine, Turn, Work};

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
