//! Checks spent tokens (`reuse: once`) after a new connection. Another server may answer by then,
//! one that has the marks and has lost that a token is spent: the token would pass once more, at
//! another proxy. So this instance reads the tokens that it has spent again, where an epoch of its
//! own is still open.

use std::collections::HashMap;

use super::hints::Hints;
use super::{Membership, RETRY};
use crate::fencing::writer::Want;
use crate::routing::{Decision, ResourceKey, Token, judge};
use crate::store::StoreError;

/// The most marks that one read asks for.
const MAX_MARKS: usize = 1024;

impl Membership {
    /// Checks after each change of the server.
    pub(super) async fn spendings(&self, hints: &Hints) {
        loop {
            hints.server_changed().await;
            while let Err(error) = self.check_spendings().await {
                self.metrics.failed(&error);
                tracing::debug!(%error, "what is spent could not be read yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    async fn check_spendings(&self) -> Result<(), StoreError> {
        let spent = self.epoch_table.spent_in_open_epochs();
        for some in spent.chunks(MAX_MARKS) {
            let keys: Vec<ResourceKey> = some.iter().map(|(key, _)| key.clone()).collect();
            let rows = self.store.marks(&keys).await?;
            self.metrics.answered();
            let rows: HashMap<ResourceKey, (Token, bool)> = rows
                .into_iter()
                .map(|row| (row.resource, (row.token, row.spent)))
                .collect();
            for (key, token) in some {
                let found = rows.get(key);
                let stands = found.is_some_and(|(mark, spent)| match judge(Some(*mark), *token) {
                    Decision::Stale { .. } => true,
                    Decision::Current => *spent,
                    Decision::Advanced => false,
                });
                if stands {
                    continue;
                }
                // It may have been given back, or overridden: a statement finds out, under the
                // row's lock.
                let (writer, key, token) = (self.writer.clone(), key.clone(), *token);
                tokio::spawn(async move {
                    let _ = writer.append(&key, token, Want::Raise).await;
                });
            }
        }
        Ok(())
    }
}
