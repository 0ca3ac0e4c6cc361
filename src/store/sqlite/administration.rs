//! The start over an embedded database, and what operators ask of it: [`Administration`] for [`SqliteStore`]. Each call
//! hands owned arguments to the task that does its work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::fetch::keys_json;
use super::{SqliteStore, operators, statements};
use crate::routing::{ResourceKey, Token};
use crate::store::rows;
use crate::store::{
    Administration, AuditRow, Count, EpochRow, InstanceRow, MarkRow, Marks, Override,
    RecordedRoutes, StoreError,
};

#[async_trait]
impl Administration for SqliteStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        // The schema was looked at when the file was opened.
        self.check().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        // An empty transaction would not notice a file that has become read-only.
        self.write(move |connection, namespace| Box::pin(operators::check(connection, namespace)))
            .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let Some(span) = rows::span(prefix, after) else {
            return Ok(Vec::new());
        };
        self.look(move |connection, namespace| {
            Box::pin(operators::list(connection, namespace, span, limit))
        })
        .await
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        let resource = resource.clone();
        self.read(move |connection, namespace| {
            Box::pin(operators::mark(connection, namespace, resource))
        })
        .await
    }

    async fn view(
        &self,
        resource: &ResourceKey,
    ) -> Result<Option<(MarkRow, Vec<EpochRow>)>, StoreError> {
        let resource = resource.clone();
        self.look(move |connection, namespace| {
            Box::pin(async move {
                let epochs = keys_json(std::slice::from_ref(&resource));
                let Some(mark) = operators::mark(connection, namespace, resource).await? else {
                    return Ok(None);
                };
                Ok(Some((
                    mark,
                    statements::epochs(connection, namespace, epochs).await?,
                )))
            })
        })
        .await
    }

    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError> {
        self.epochs(std::slice::from_ref(resource)).await
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        let resource = resource.clone();
        let (reason, actor) = (reason.to_owned(), actor.to_owned());
        self.write(move |connection, namespace| {
            Box::pin(operators::override_mark(
                connection, namespace, resource, token, reason, actor,
            ))
        })
        .await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        let row = row.clone();
        self.write(move |connection, namespace| {
            Box::pin(operators::record_audit(connection, namespace, row))
        })
        .await
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let resource = resource.clone();
        self.look(move |connection, namespace| {
            Box::pin(operators::audit(connection, namespace, resource, limit))
        })
        .await
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        let known = Arc::clone(&self.known);
        if known.miscounted.load(Ordering::Acquire) {
            self.read(move |connection, namespace| {
                Box::pin(async move {
                    let (marks, _) = operators::count(connection, namespace).await?;
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

    async fn routes(&self) -> Result<RecordedRoutes, StoreError> {
        self.read(move |connection, namespace| Box::pin(operators::routes(connection, namespace)))
            .await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        let (known, document) = (known.map(str::to_owned), document.to_owned());
        self.write(move |connection, namespace| {
            Box::pin(operators::record_routes(
                connection, namespace, known, document,
            ))
        })
        .await
    }

    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        let document = document.to_owned();
        self.write(move |connection, namespace| {
            Box::pin(operators::replace_routes(connection, namespace, document))
        })
        .await
    }
}
