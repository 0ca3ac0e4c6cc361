//! After a new connection it may be another server that answers, one that has the marks and has lost what is
//! spent (`reuse: once`). The token would pass once more, at another proxy. So this instance then looks at what
//! it has spent, where an epoch of its own is still open.

use std::collections::HashMap;

use super::hints::Hints;
use super::{Membership, RETRY};
use crate::fencing::writer::Want;
use crate::routing::{Decision, ResourceKey, Token, judge};
use crate::store::StoreError;

/// The most marks that one read asks for.
const MOST: usize = 1024;

impl Membership {
    /// Looks whenever it is told to.
    pub(super) async fn spendings(&self, hints: &Hints) {
        loop {
            hints.server_changed().await;
            while let Err(error) = self.check_spendings().await {
                self.meters.failed(&error);
                tracing::debug!(%error, "what is spent could not be read yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    async fn check_spendings(&self) -> Result<(), StoreError> {
        let spent = self.epoch_table.spent_in_open_epochs();
        for some in spent.chunks(MOST) {
            let keys: Vec<ResourceKey> = some.iter().map(|(key, _)| key.clone()).collect();
            let rows = self.store.marks(&keys).await?;
            self.meters.answered();
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
                // It may have been given back, or overridden: a statement finds out, under the row's lock.
                let (writer, key, token) = (self.writer.clone(), key.clone(), *token);
                tokio::spawn(async move {
                    let _ = writer.ask(&key, token, Want::Raise).await;
                });
            }
        }
        Ok(())
    }
}
