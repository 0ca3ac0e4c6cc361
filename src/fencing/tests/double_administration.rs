//! The operators' side of the [`Double`].

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::double::Double;
use crate::routing::{ResourceKey, Token};
use crate::store::{
    Administration, AuditRow, Count, EpochRow, Era, InstanceId, InstanceRow, MarkRow, MarkStore,
    Marks, Override, PruneStep, Pruned, StoreError,
};

#[async_trait]
impl Administration for Double {
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.run("list", move |state| {
            let keys = state.marks.keys();
            let keys = keys.filter(|key| key.as_str().starts_with(&prefix));
            let keys =
                keys.filter(|key| after.as_ref().is_none_or(|after| key.as_str() > &**after));
            let rows = keys.filter_map(|key| state.mark(key));
            rows.take(limit as usize).collect()
        })
        .await
    }

    async fn count_marks(&self) -> Result<Count, StoreError> {
        Ok(Count {
            marks: 0,
            more: false,
        })
    }

    fn counted(&self) -> Option<u64> {
        None
    }

    async fn mark(&self, resource: &ResourceKey) -> Result<Option<MarkRow>, StoreError> {
        let resource = resource.clone();
        self.run("mark", move |state| state.mark(&resource)).await
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
        let key = resource.clone();
        let (reason, actor) = (reason.to_owned(), actor.to_owned());
        self.run("override_mark", move |state| {
            let open = state.epochs.iter().filter(|row| row.resource == key);
            let open: Vec<EpochRow> = open.cloned().collect();
            if !open.is_empty() {
                return Override::EpochsOpen(open);
            }
            let Some(row) = state.marks.get_mut(&key) else {
                return Override::Absent;
            };
            state.era += 1;
            let before = row.0;
            *row = (token, None, state.era);
            state.audit.push(AuditRow {
                resource: key,
                action: "override".into(),
                before: Some(before),
                after: Some(token),
                reason,
                actor,
                at_ms: 0,
            });
            Override::Done {
                before,
                era: state.era,
            }
        })
        .await
    }

    async fn announce_prune(&self, me: &InstanceId) -> Result<(Era, Duration), StoreError> {
        let me = me.clone();
        self.run("announce_prune", move |state| {
            state.era += 1;
            let others = state.instances.values();
            let others = others.filter(|row| row.id != me && !row.dead);
            let longest = others.map(|row| row.lease).max();
            (state.era, longest.unwrap_or_default())
        })
        .await
    }

    /// Every mark is old enough.
    async fn prune(&self, step: &PruneStep) -> Result<Pruned, StoreError> {
        let step = step.clone();
        self.run("prune", move |state| {
            let open = |key: &ResourceKey| state.epochs.iter().any(|row| row.resource == *key);
            let keys = state.marks.keys();
            let keys = keys.filter(|key| key.as_str().starts_with(&step.prefix));
            let (open, free): (Vec<_>, Vec<_>) = keys.cloned().partition(open);
            let mut done = Pruned {
                deleted: free.len() as u64,
                open: open.len() as u64,
                ..Pruned::default()
            };
            if !step.dry_run && !free.is_empty() {
                state.era += 1;
                done.era = Some(state.era);
                for key in free {
                    state.marks.remove(&key);
                }
            }
            done
        })
        .await
    }

    async fn record_audit(&self, row: &AuditRow) -> Result<(), StoreError> {
        let row = row.clone();
        self.run("record_audit", move |state| state.audit.push(row))
            .await
    }

    async fn audit(&self, resource: &ResourceKey, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let resource = resource.clone();
        self.run("audit", move |state| {
            let rows = state.audit.iter().rev();
            let rows = rows.filter(|row| row.resource == resource);
            rows.take(limit as usize).cloned().collect()
        })
        .await
    }

    async fn routes(&self) -> Result<Option<String>, StoreError> {
        self.run("routes", |state| state.routes.clone()).await
    }

    async fn record_routes(&self, known: Option<&str>, document: &str) -> Result<bool, StoreError> {
        let (known, document) = (known.map(str::to_owned), document.to_owned());
        self.run("record_routes", move |state| {
            let same = state.routes == known;
            if same {
                state.routes = Some(document);
            }
            same
        })
        .await
    }

    async fn replace_routes(&self, document: &str) -> Result<Vec<InstanceRow>, StoreError> {
        let document = document.to_owned();
        self.run("replace_routes", move |state| {
            if state.instances.is_empty() {
                state.routes = Some(document);
            }
            state.instances.values().cloned().collect()
        })
        .await
    }
}

impl MarkStore for Double {
    fn kind(&self) -> &'static str {
        "double"
    }

    fn shared(&self) -> bool {
        !self.alone.load(Ordering::SeqCst)
    }
}
