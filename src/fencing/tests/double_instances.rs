//! The instances of the [`Double`].

use std::time::Duration;

use async_trait::async_trait;

use super::double::{Double, held, own, place};
use crate::routing::ResourceKey;
use crate::store::{
    Burial, Cursor, Era, InstanceId, InstanceRow, Instances, Renewal, StoreError, Terms,
};

/// How many epochs one step of a reaping deletes here.
const MAX_PER_BURIAL: usize = 10;

#[async_trait]
impl Instances for Double {
    async fn join(&self, instance: &InstanceId, terms: &Terms) -> Result<Era, StoreError> {
        let row = InstanceRow {
            id: instance.clone(),
            renewals: terms.renewals,
            lease: terms.lease,
            settle: terms.settle,
            undelivered: terms.undelivered,
            routes: terms.routes.clone(),
            dead: false,
            elsewhere: false,
        };
        self.run("join", move |state| {
            if state.instances.contains_key(&row.id) {
                return Err(StoreError::Statement("the id is taken".into()));
            }
            state.instances.insert(row.id.clone(), row);
            Ok(state.era)
        })
        .await?
    }

    async fn set_routes(&self, instance: &InstanceId, digest: &str) -> Result<(), StoreError> {
        let (instance, digest) = (instance.clone(), digest.to_owned());
        self.run("set_routes", move |state| {
            if let Some(row) = state.instances.get_mut(&instance) {
                row.routes = digest;
            }
        })
        .await
    }

    async fn renew(&self, instance: &InstanceId, renewals: i64) -> Result<Renewal, StoreError> {
        let instance = instance.clone();
        self.run("renew", move |state| {
            let era = state.era;
            match state.instances.get_mut(&instance) {
                Some(row) if !row.dead => {
                    row.renewals = row.renewals.max(renewals);
                    Renewal::Alive(era)
                }
                Some(_) => Renewal::Dead,
                None => Renewal::Unknown,
            }
        })
        .await
    }

    async fn raise_era(&self, era: Era) -> Result<(), StoreError> {
        self.run("raise_era", move |state| state.era = state.era.max(era))
            .await
    }

    fn connections(&self) -> u64 {
        held(&self.state).connections
    }

    async fn recorded(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.run("instances", |state| {
            state.instances.values().cloned().collect()
        })
        .await
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.note("orphans", 0);
        self.run("instances", |state| {
            let mut rows: Vec<InstanceRow> = state.instances.values().cloned().collect();
            for epoch in &state.epochs {
                if rows.iter().all(|row| row.id != epoch.instance) {
                    rows.push(InstanceRow {
                        id: epoch.instance.clone(),
                        renewals: 0,
                        lease: Duration::ZERO,
                        settle: Duration::ZERO,
                        undelivered: Duration::ZERO,
                        routes: String::new(),
                        dead: true,
                        elsewhere: false,
                    });
                }
            }
            rows
        })
        .await
    }

    fn instances_over(&self) -> u64 {
        held(&self.state).instances_over
    }

    async fn declare_dead(&self, instance: &InstanceId, renewals: i64) -> Result<bool, StoreError> {
        let instance = instance.clone();
        self.run("declare_dead", move |state| {
            state.instances.get_mut(&instance).is_none_or(|row| {
                row.dead |= row.renewals == renewals;
                row.dead
            })
        })
        .await
    }

    async fn bury(
        &self,
        instance: &InstanceId,
        first: &[ResourceKey],
        after: Option<&Cursor>,
    ) -> Result<Burial, StoreError> {
        self.note("bury", first.len());
        let (instance, first, after) = (instance.clone(), first.to_vec(), after.cloned());
        self.run("bury", move |state| {
            if state.instances.get(&instance).is_some_and(|row| !row.dead) {
                return Burial::default();
            }
            let rows = own(state, &instance).into_iter().map(|(row, _)| row);
            let (mut doomed, mut rest): (Vec<_>, Vec<_>) =
                rows.partition(|row| first.contains(&row.resource));
            rest.retain(|row| after.as_ref().is_none_or(|after| place(row) > *after));
            rest.truncate(MAX_PER_BURIAL);
            let next = rest.get(MAX_PER_BURIAL - 1).map(place);
            doomed.extend(rest);
            if next.is_none() {
                state.instances.remove(&instance);
            }
            state.epochs.retain(|row| !doomed.contains(row));
            let freed = doomed.into_iter().map(|row| row.resource).collect();
            Burial { freed, next }
        })
        .await
    }

    async fn leave(&self, instance: &InstanceId) -> Result<(), StoreError> {
        let instance = instance.clone();
        self.run("leave", move |state| {
            if state.epochs.iter().any(|row| row.instance == instance) {
                if let Some(row) = state.instances.get_mut(&instance) {
                    row.dead = true;
                }
            } else {
                state.instances.remove(&instance);
            }
        })
        .await
    }
}
