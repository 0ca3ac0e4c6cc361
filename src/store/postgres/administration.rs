//! The start over a Postgres, and what operators ask of it: [`Administration`] for [`PostgresStore`].

use async_trait::async_trait;

use super::{PostgresStore, operators, options, statements};
use crate::config::settings::Secret;
use crate::routing::{ResourceKey, Token};
use crate::store::rows::{self, Schema};
use crate::store::{
    Administration, AuditRow, Count, EpochRow, InstanceRow, MarkRow, Override, RecordedRoutes,
    StoreError,
};

#[async_trait]
impl Administration for PostgresStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        match self.bounded(self.prove(false)).await? {
            Schema::Current => {}

            Schema::Behind if self.migrate => super::migrate(self.address.clone()).await?,
            Schema::Behind => return Err(rows::schema_behind()),
        }
        self.check().await?;
        // Of a URL in the configuration its checks have told already.
        if matches!(self.address.url, Secret::File(_)) && options::is_open_to_others(&self.address)
        {
            tracing::warn!(
                "the server that store.url_file names is not verified: what is on the way to it can read and \
                 change marks"
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

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let Some(span) = rows::span(prefix, after) else {
            return Ok(Vec::new());
        };
        self.on(&self.people, async |c| {
            operators::list(c, &self.namespace, &span, limit).await
        })
        .await
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        let after = self.count.after();
        let counted = self
            .on(&self.people, async |c| {
                operators::count(c, &self.namespace, after.as_deref()).await
            })
            .await?;
        Ok(self.count.counted(counted))
    }

    fn counted(&self) -> Option<u64> {
        self.count.whole()
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::mark(c, &self.namespace, resource).await
        })
        .await
    }

    async fn open_epochs(&self, resource: &ResourceKey) -> Result<Vec<EpochRow>, StoreError> {
        self.on(&self.people, async |c| {
            statements::epochs(c, &self.namespace, std::slice::from_ref(resource)).await
        })
        .await
    }

    async fn override_mark(
        &self,
        resource: &ResourceKey,
        token: Token,
        reason: &str,
        actor: &str,
    ) -> Result<Override, StoreError> {
        self.on(&self.people, async |c| {
            operators::override_mark(c, &self.namespace, resource, token, reason, actor).await
        })
        .await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        self.on(&self.people, async |c| {
            operators::record_audit(c, &self.namespace, row).await
        })
        .await
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::audit(c, &self.namespace, resource, limit).await
        })
        .await
    }

    async fn routes(&self) -> Result<RecordedRoutes, StoreError> {
        self.on(&self.people, async |c| {
            operators::routes(c, &self.namespace).await
        })
        .await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        self.on(&self.people, async |c| {
            operators::record_routes(c, &self.namespace, known, document).await
        })
        .await
    }

    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        self.on(&self.people, async |c| {
            operators::replace_routes(c, &self.namespace, document).await
        })
        .await
    }
}
