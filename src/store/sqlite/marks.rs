//! [`Marks`] for [`SqliteStore`]: the statements of requests.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::SqliteConnection;
use tokio::sync::mpsc;

use super::SqliteStore;
use super::batch::{self, BatchJson, json};
use super::epochs::epochs;
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, Failure};
use crate::store::{
    Batch, Epoch, Found, Heard, Lane, MarkRow, Marks, Notification, Repair, StoreError,
};

/// `(resource, token, spent, era, since_ms, open)`.
type LookRow = (String, i64, bool, i64, i64, String);

#[async_trait]
impl Marks for SqliteStore {
    fn lanes(&self) -> usize {
        1
    }

    async fn advance(&self, _: Lane, batch: Batch<'_>) -> Result<Vec<Found>, StoreError> {
        let load = BatchJson::new(batch);
        self.in_turn(move |session, known| Box::pin(session.batch(known, load)))
            .await
    }

    async fn look(
        &self,
        resources: &[ResourceKey],
    ) -> Result<Vec<(MarkRow, Vec<Epoch>)>, StoreError> {
        let keys = json(resources);
        self.read(move |connection, namespace| {
            Box::pin(async move { look(connection, namespace, &keys).await })
        })
        .await
    }

    async fn cede(&self, ceded: &[(ResourceKey, Epoch)]) -> Result<Vec<ResourceKey>, StoreError> {
        const CEDE: &str = concat!(
            "UPDATE marks AS m SET open = (SELECT ",
            array!(),
            " FROM ",
            triples!("m.open"),
            " WHERE (m.resource, instance, opening) NOT IN (
                  SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?2)))
              WHERE namespace = ?1 AND resource IN (SELECT value ->> 0 FROM json_each(?2))
              RETURNING resource"
        );
        let ceded = ceded
            .iter()
            .map(|(resource, epoch)| (resource, epoch.instance.get(), epoch.opening));
        let ceded = json(&ceded.collect::<Vec<_>>());
        self.write(|connection, namespace| {
            Box::pin(async move {
                let written = sqlx::query_scalar(CEDE).bind(namespace).bind(ceded);
                let written: Vec<String> = written.fetch_all(connection).await?;
                Ok(rows::all(written, |resource| rows::key(&resource))?)
            })
        })
        .await
    }

    async fn repair(&self, repairs: &[Repair]) -> Result<Vec<Found>, StoreError> {
        let (repairs, known) = (repairs.to_vec(), Arc::clone(&self.known));
        self.write(|connection, namespace| {
            Box::pin(async move {
                let mut done = Vec::with_capacity(repairs.len());
                for repair in &repairs {
                    let load = BatchJson::of_repair(repair);
                    done.extend(batch::run_within(connection, namespace, &load).await?);
                }
                known.adds(done.iter().filter(|found| found.before.is_none()).count());
                Ok(done)
            })
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let spends = spends
            .iter()
            .map(|(resource, token, name)| (resource, token.get(), name));
        let update = self
            .query(
                "UPDATE marks SET given_back = given_back + 1, spent_by = NULL \
                 FROM json_each(?2) AS s WHERE namespace = ?1 AND resource = s.value ->> 0 \
                 AND token = s.value ->> 1 AND spent_by = s.value ->> 2",
            )
            .bind(json(&spends.collect::<Vec<_>>()));
        self.execute(update).await.map(drop)
    }

    async fn notify(&self, _notifications: &[Notification]) -> Result<(), StoreError> {
        Ok(())
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        None
    }
}

/// The marks of the keys in a JSON array, and their epochs that are not over.
pub(super) async fn look(
    connection: &mut SqliteConnection,
    namespace: &str,
    keys: &str,
) -> Result<Vec<(MarkRow, Vec<Epoch>)>, Failure> {
    let rows: Vec<LookRow> = sqlx::query_as(concat!(
        "SELECT resource, token, spent_by IS NOT NULL, era, changed_at, ",
        open!(),
        " FROM marks AS m WHERE namespace = ?1 AND resource IN (SELECT value FROM json_each(?2))"
    ))
    .bind(namespace)
    .bind(keys)
    .fetch_all(connection)
    .await?;
    let look = |(resource, token, spent, era, since_ms, open): LookRow| {
        let mark = rows::mark((resource, token, spent, era, since_ms))?;
        Ok((mark, epochs(&open)?))
    };
    Ok(rows::all(rows, look)?)
}
