//! The marks and epochs of the [`Double`].

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::double::{Double, State, held, own, place};
use crate::routing::{ResourceKey, Token};
use crate::store::{
    Ask, Batch, Batched, Cursor, EpochRow, Era, Found, Heard, InstanceId, MarkRow, Marks,
    Notification, Opening, OwnRow, StoreError,
};

fn advance(state: &mut State, instance: &InstanceId, era: Era, asks: Vec<Ask>) -> Vec<Found> {
    let mut all = Vec::new();
    for ask in asks {
        let before = state.marks.get(&ask.resource).cloned();
        if before.is_none() && ask.needs.present {
            all.push(Found {
                before: None,
                era: 0,
                spent_by: None,
                given_back: 0,
            });
            continue;
        }
        let row = state
            .marks
            .entry(ask.resource.clone())
            .or_insert((ask.token, None, 0));
        let given_back = state.given_back.get(&ask.resource).copied();
        let met = ask.needs.met_by(before.as_ref().map(|row| row.0));
        if row.2 <= era && met {
            if row.0 < ask.token {
                (row.0, row.1) = (ask.token, None);
            }
            if row.0 == ask.token {
                row.1 = row.1.take().or(ask.spend);
                if let Some(opening) = ask.opening {
                    state.epochs.push(EpochRow {
                        resource: ask.resource,
                        instance: instance.clone(),
                        opening,
                        token: ask.token,
                    });
                }
            }
        }
        let is_mark = row.0 == ask.token;
        all.push(Found {
            before: before.map(|row| row.0),
            era: row.2,
            spent_by: row.1.clone().filter(|_| is_mark),
            given_back: given_back.unwrap_or_default(),
        });
    }
    all
}

#[async_trait]
impl Marks for Double {
    async fn advance(
        &self,
        instance: &InstanceId,
        era: Era,
        asks: &[Ask],
    ) -> Result<Vec<Found>, StoreError> {
        if asks
            .iter()
            .any(|ask| held(&self.locked).contains(&ask.resource))
        {
            *held(&self.calls).entry("advance").or_default() += 1;
            return Err(StoreError::LockTimeout("locked by the test".into()));
        }
        if asks
            .iter()
            .any(|ask| held(&self.refused).contains(&ask.resource))
        {
            *held(&self.calls).entry("advance").or_default() += 1;
            return Err(StoreError::Statement("refused by the test".into()));
        }
        let most = self.most.load(Ordering::SeqCst);
        if most != 0 && asks.len() > most {
            *held(&self.calls).entry("advance").or_default() += 1;
            return Err(StoreError::Timeout(Duration::from_secs(1)));
        }
        self.note("advance", asks.len());
        let (instance, asks) = (instance.clone(), asks.to_vec());
        self.run("advance", move |state| advance(state, &instance, era, asks))
            .await
    }

    async fn locked(&self, resources: &[ResourceKey]) -> Result<Vec<ResourceKey>, StoreError> {
        let locked = held(&self.locked);
        let seen = !self.unseen.load(Ordering::SeqCst);
        let among = resources.iter();
        let among = among.filter(|key| seen && locked.contains(*key));
        Ok(among.cloned().collect())
    }

    /// The two statements and the deletion, one after the other, so that each can be made to fail.
    async fn batch(&self, batch: Batch<'_>) -> Result<Batched, StoreError> {
        let found = self.advance(batch.instance, batch.era, batch.asks).await?;
        if !batch.closes.is_empty() {
            self.note("ride", batch.closes.len());
            let gone: HashSet<EpochRow> = batch.closes.iter().cloned().collect();
            self.state().epochs.retain(|row| !gone.contains(row));
        }
        let opened = batch.asks.iter().zip(&found).filter(|(ask, found)| {
            ask.opening.is_some()
                && found.era <= batch.era
                && ask.needs.met_by(found.before)
                && found.before.is_none_or(|before| before <= ask.token)
        });
        let opened: Vec<&Ask> = opened.map(|(ask, _)| ask).collect();
        let mut keys = batch.looks.to_vec();
        keys.extend(opened.iter().map(|ask| ask.resource.clone()));
        let (mut epochs, mut lost) = (Ok(Vec::new()), Vec::new());
        if !keys.is_empty() {
            epochs = self.epochs(&keys).await;
        }
        if let Ok(rows) = &epochs {
            let there = |ask: &Ask| rows.iter().any(|row| Some(row.opening) == ask.opening);
            let gone = opened.into_iter().filter(|ask| !there(ask));
            lost.extend(gone.map(|ask| ask.resource.clone()));
        }
        Ok(Batched {
            found,
            epochs,
            lost,
            told: false,
        })
    }

    async fn epochs(&self, resources: &[ResourceKey]) -> Result<Vec<EpochRow>, StoreError> {
        let resources = resources.to_vec();
        self.run("epochs", move |state| {
            let rows = state.epochs.iter();
            rows.filter(|row| resources.contains(&row.resource))
                .cloned()
                .collect()
        })
        .await
    }

    async fn close(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        self.note("close", epochs.len());
        let gone: HashSet<EpochRow> = epochs.iter().cloned().collect();
        self.run("close", move |state| {
            state.epochs.retain(|row| !gone.contains(row));
        })
        .await
    }

    async fn own(
        &self,
        instance: &InstanceId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<OwnRow>, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.note("own", limit);
        let (instance, after) = (instance.clone(), after.cloned());
        self.run("own", move |state| {
            let mut rows = own(state, &instance);
            rows.retain(|(row, _)| after.as_ref().is_none_or(|after| place(row) > *after));
            rows.truncate(limit);
            rows
        })
        .await
    }

    async fn own_of(
        &self,
        instance: &InstanceId,
        resources: &[ResourceKey],
    ) -> Result<Vec<OwnRow>, StoreError> {
        self.note("own_of", resources.len());
        let instance = instance.clone();
        let resources: HashSet<ResourceKey> = resources.iter().cloned().collect();
        self.run("own_of", move |state| {
            let mut rows = own(state, &instance);
            rows.retain(|(row, _)| resources.contains(&row.resource));
            rows
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
        let (instance, after, kept) = (instance.clone(), after.cloned(), kept.to_vec());
        self.run("close_own", move |state| {
            let mut rows = own(state, &instance);
            rows.retain(|(row, _)| after.as_ref().is_none_or(|after| place(row) > *after));
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let next = rows.get(limit - 1).map(|(row, _)| place(row));
            rows.truncate(limit);
            let gone: HashSet<EpochRow> = rows.into_iter().map(|(row, _)| row).collect();
            state
                .epochs
                .retain(|row| kept.contains(&row.opening) || !gone.contains(row));
            next
        })
        .await
    }

    async fn reopen(&self, epochs: &[EpochRow]) -> Result<(), StoreError> {
        let epochs = epochs.to_vec();
        self.run("reopen", move |state| {
            for row in epochs {
                if !state.epochs.contains(&row) {
                    state.epochs.push(row);
                }
            }
        })
        .await
    }

    async fn give_back(&self, spends: &[(ResourceKey, Token, String)]) -> Result<(), StoreError> {
        let spends = spends.to_vec();
        self.run("give_back", move |state| {
            for (key, token, name) in spends {
                if let Some(row) = state.marks.get_mut(&key)
                    && row.0 == token
                    && row.1.as_ref() == Some(&name)
                {
                    row.1 = None;
                    *state.given_back.entry(key).or_default() += 1;
                }
            }
        })
        .await
    }

    async fn announce(&self, notifications: &[Notification]) -> Result<(), StoreError> {
        self.note("announce", notifications.len());
        let announced = notifications.to_vec();
        self.run("announce", |_| ()).await?;
        let listeners = held(&self.listeners).clone();
        for notification in announced {
            held(&self.announced).push(notification.clone());
            for listener in &listeners {
                let _ = listener.try_send(Heard::Notification(notification.clone()));
            }
        }
        Ok(())
    }

    async fn marks(&self, resources: &[ResourceKey]) -> Result<Vec<MarkRow>, StoreError> {
        let resources = resources.to_vec();
        self.run("marks", move |state| {
            let rows = resources.into_iter();
            rows.filter_map(|resource| state.mark(&resource)).collect()
        })
        .await
    }

    fn listen(&self) -> Option<mpsc::Receiver<Heard>> {
        let (tx, rx) = mpsc::channel(64);
        held(&self.listeners).push(tx);
        Some(rx)
    }
}
