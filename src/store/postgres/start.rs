//! [`MarkStore`] for [`PostgresStore`]: the start.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::connect::Phase;
use super::{PostgresStore, options, schema};
use crate::config::Secret;
use crate::store::instances::TOUCH;
use crate::store::rows::{self, Failure, Schema};
use crate::store::{Era, MarkStore, StoreError};

#[async_trait]
impl MarkStore for PostgresStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        let address = &self.connector.address;
        let mut schema = self.prove().await?;
        if schema == Schema::Behind && self.migrate {
            super::migrate(address.clone()).await?;
            schema = self.prove().await?;
        }
        if schema == Schema::Behind {
            return Err(rows::schema_behind());
        }
        // The configuration's checks have already warned of a URL in it.
        if matches!(address.url, Secret::File(_)) && options::is_open_to_others(address) {
            tracing::warn!(
                "the server that store.url_file names is not verified: any machine on the way to it can \
                 read and change marks"
            );
        }
        Ok(())
    }

    fn servers(&self) -> u64 {
        self.connector.servers()
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }
}

impl PostgresStore {
    /// Proves a new connection, and reads the schema's version. Where that is current, rows can be
    /// written.
    async fn prove(&self) -> Result<Schema, StoreError> {
        let proof = self.operators.run(Phase::Start, async |c, _| {
            let schema = schema(c).await?;
            if schema == Schema::Current {
                all_are_logged(c).await?;
                let _: (Era,) = self.session(c).one(TOUCH, vec![]).await?;
            }
            Ok(schema)
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
