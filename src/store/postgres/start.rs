//! [`MarkStore`] for [`PostgresStore`]: the start, and the count of the marks.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::count::PIECE;
use super::{PostgresStore, options, schema};
use crate::config::Secret;
use crate::store::administration::COUNT;
use crate::store::engine::Value::{Number, Text};
use crate::store::engine::{Engine as _, Turn};
use crate::store::instances::TOUCH;
use crate::store::rows::{self, Failure, Schema, Span};
use crate::store::{Count, Era, MarkStore, StoreError};

#[async_trait]
impl MarkStore for PostgresStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(false)).await? {
            Schema::Current => {}
            Schema::Behind if self.migrate => super::migrate(self.address.clone()).await?,
            Schema::Behind => return Err(rows::schema_behind()),
        }
        self.check().await?;
        // The configuration's checks have already warned of a URL in it.
        if matches!(self.address.url, Secret::File(_)) && options::is_open_to_others(&self.address)
        {
            tracing::warn!(
                "the server that store.url_file names is not verified: any machine on the way to it can \
                 read and change marks"
            );
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(true)).await? {
            Schema::Current => Ok(()),
            Schema::Behind => Err(rows::schema_behind()),
        }
    }

    fn servers(&self) -> u64 {
        self.connector.servers()
    }

    fn instances_over(&self) -> u64 {
        self.instances_over.load(Ordering::Relaxed)
    }

    /// Counts one piece, at most [`PIECE`] marks.
    async fn count_marks(&self) -> Result<Count, StoreError> {
        let Some(Span { from, until }) = rows::span("", self.count.after().as_deref()) else {
            unreachable!("no prefix has no NUL")
        };
        let piece = i64::try_from(PIECE).unwrap_or(i64::MAX);
        let range = vec![Text(from), Text(until), Number(piece)];
        let counted = self.fetch(Turn::Read, COUNT, range, Ok);
        let (marks, last): (i64, Option<String>) = rows::only(counted.await?)?;
        let marks = marks.unsigned_abs();
        Ok(self.count.counted((marks, last.filter(|_| marks >= PIECE))))
    }

    fn counted(&self) -> Option<u64> {
        self.count.whole()
    }
}

impl PostgresStore {
    /// Proves a new connection, and reads the schema's version. `write` proves too that rows may be
    /// written.
    async fn prove(&self, write: bool) -> Result<Schema, StoreError> {
        let mut turn = self.operators.fresh().await?;
        let schema = turn
            .run(async |c| {
                let schema = schema(c).await?;
                if write && schema == Schema::Current {
                    all_are_logged(c).await?;
                    let _: (Era,) = self.session(c).one(TOUCH, vec![]).await?;
                }
                Ok(schema)
            })
            .await?;
        turn.done();
        Ok(schema)
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
