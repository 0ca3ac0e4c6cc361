//! The proof that a server can hold marks, at the start.

use sqlx::PgConnection;

use super::connect::Phase;
use super::{PostgresStore, is_current};
use crate::store::instances::TOUCH;
use crate::store::rows::Failure;
use crate::store::{Era, StoreError};

impl PostgresStore {
    /// Proves a new connection. Returns whether the schema is current; then rows can be written.
    pub(super) async fn prove(&self) -> Result<bool, StoreError> {
        let proof = self.operators.run(Phase::Start, async |c, _| {
            let current = is_current(c).await?;
            if current {
                all_are_logged(c).await?;
                let _: (Era,) = self.session(c).one(TOUCH, vec![]).await?;
            }
            Ok(current)
        });
        proof.await
    }
}

/// Fails if a crash of the server would empty one of the tables, since it is not in the server's
/// log, nor on a standby.
async fn all_are_logged(connection: &mut PgConnection) -> Result<(), Failure> {
    let unlogged: Vec<String> = sqlx::query_scalar(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relpersistence <> 'p' AND c.oid IN \
         (to_regclass('namespaces'), to_regclass('marks'), to_regclass('instances'))",
    )
    .fetch_all(connection)
    .await?;
    let Some(table) = unlogged.first() else {
        return Ok(());
    };
    Err(Failure::Store(StoreError::Unfit(format!(
        "the table {table} is UNLOGGED: a crash of the server empties it, and a standby does not have it. Run as its \
         owner: ALTER TABLE {table} SET LOGGED"
    ))))
}
