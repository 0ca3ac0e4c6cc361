//! [`MarkStore`] for [`SqliteStore`]: each call hands owned arguments to the task that does its work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::statements::{BatchJson, epochs_json};
use super::unbroken::Unbroken;
use super::{Beat, SqliteStore, connection, life, operators, own, statements};
use crate::routing::{ResourceKey, Token};
use crate::store::rows;
use crate::store::{
    AuditRow, Batch, Batched, Burial, Count, Cursor, EpochRow, Era, Heard, InstanceId, InstanceRow,
    MarkRow, MarkStore, Notification, Opening, Override, OwnRow, RecordedRoutes, Renewal,
    StoreError, Terms,
};

#[async_trait]
impl MarkStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn shared(&self) -> bool {
        false
    }

    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let load = BatchJson::new(batch);
        let (session, known) = (Arc::clone(&self.session), Arc::clone(&self.known));
        // As every other call, but in the task of its caller.
        let work = Unbroken::new(|begun| async move {
            let mut session = session.lock_owned().await;
            begun.set();
            let (done, log) = session.batch(&known, load).await?;
            if log.is_some_and(connection::is_long) {
                // Nobody waits for this.
                tokio::spawn(async move { session.tidy_if(log).await });
            } else {
                session.tidy_if(log).await;
            }
            Ok(done)
        });
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(StoreError::Timeout(self.timeout)),
        }
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        let resources = keys_json(resources);
        self.read(move |connection, namespace| {
            Box::pin(statements::epochs(connection, namespace, resources))
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = epochs_json(epochs);
        self.write(move |connection, namespace| {
            Box::pin(statements::close(connection, namespace, epochs))
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = epochs_json(epochs);
        self.write(move |connection, namespace| {
            Box::pin(statements::reopen(connection, namespace, epochs))
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let spends = json!(
            spends
                .iter()
                .map(|(resource, token, name)| json!([resource.as_str(), token.get(), name]))
                .collect::<Vec<_>>()
        );
        self.write(move |connection, namespace| {
            Box::pin(statements::give_back(connection, namespace, spends))
        })
        .await
    }

    async fn announce(&self, _news: &[Notification]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        let (instance, after) = (instance.clone(), after.cloned());
        self.read(move |connection, namespace| {
            Box::pin(own::page(connection, namespace, instance, after, limit))
        })
        .await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        let (instance, resources) = (instance.clone(), keys_json(resources));
        self.read(move |connection, namespace| {
            Box::pin(own::of(connection, namespace, instance, resources))
        })
        .await
    }

    async fn close_own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
        kept: &[Opening],
    ) -> Result<Option<Cursor>, StoreError> {
        let (instance, after, kept) = (instance.clone(), after.cloned(), json!(kept));
        self.write(move |connection, namespace| {
            Box::pin(own::close(
                connection, namespace, instance, after, limit, kept,
            ))
        })
        .await
    }

    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let (instance, terms) = (instance.clone(), terms.clone());
        let known = Arc::clone(&self.known);
        self.expect_beats(terms.lease).await;
        // What this instance forwards from now on is missed without the log.
        let beat = Beat::Of(instance.clone(), terms.renewals);
        self.turn(Some(beat), move |connection, namespace| {
            Box::pin(async move {
                life::join(connection, namespace, &known.boot, instance, terms).await
            })
        })
        .await
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        let (instance, digest) = (instance.clone(), digest.to_owned());
        self.write(move |connection, namespace| {
            Box::pin(life::set_routes(connection, namespace, instance, digest))
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        let instance = instance.clone();
        let beat = Beat::Of(instance.clone(), renewals);
        self.turn(Some(beat), move |connection, namespace| {
            Box::pin(life::standing(connection, namespace, instance))
        })
        .await
    }

    fn proven(&self) -> Option<Duration> {
        let began = self.known.proven.load(Ordering::Acquire);
        (began > 0).then(|| Duration::from_nanos(began))
    }

    async fn in_place(&self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.upgrade() else {
            return Err(StoreError::Connection("the store was closed".to_owned()));
        };
        let checked = lock.check_aside().await;
        if lock.lost().is_some() {
            // The next turn saves what only the log has: the sooner, the better.
            let _ = self.read(|_, _| Box::pin(async { Ok(()) })).await;
        }
        checked
    }

    async fn disconnect(&self) {
        // Whoever has the lock next takes this process for ended: it goes with the process.
        std::mem::forget(self.lock.upgrade());
        SqliteStore::close(self).await;
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.write(move |connection, namespace| {
            Box::pin(life::raise_era(connection, namespace, era))
        })
        .await
    }

    fn connections(&self) -> u64 {
        0
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let known = Arc::clone(&self.known);
        self.read(move |connection, namespace| {
            Box::pin(async move { life::instances(connection, namespace, &known.boot).await })
        })
        .await
    }

    fn instances_over(&self) -> u64 {
        0
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let instance = instance.clone();
        self.write(move |connection, namespace| {
            Box::pin(life::declare_dead(
                connection, namespace, instance, renewals,
            ))
        })
        .await
    }

    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        let (instance, first, after) = (instance.clone(), keys_json(first), after.cloned());
        self.write(move |connection, namespace| {
            Box::pin(life::bury(connection, namespace, instance, first, after))
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let instance = instance.clone();
        self.write(move |connection, namespace| {
            Box::pin(life::leave(connection, namespace, instance))
        })
        .await
    }

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

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        let resources = json!(
            resources
                .iter()
                .map(ResourceKey::as_str)
                .collect::<Vec<_>>()
        );
        self.read(move |connection, namespace| {
            Box::pin(operators::marks(connection, namespace, resources))
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

    fn listen(&self) -> Option<tokio::sync::mpsc::Receiver<Heard>> {
        None
    }
}

fn keys_json(resources: &[ResourceKey]) -> serde_json::Value {
    json!(
        resources
            .iter()
            .map(ResourceKey::as_str)
            .collect::<Vec<_>>()
    )
}
