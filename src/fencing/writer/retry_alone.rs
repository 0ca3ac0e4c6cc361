//! Retries resources that met a row lock one by one, each in a statement and on a connection of its
//! own, so that one locked row stops no other resource.

use std::sync::Arc;

use super::batch::{self, BatchLoad};
use super::closes::Riders;
use super::command::WriterCommand;
use super::state::Writer;
use super::waiter::Waiter;
use crate::routing::ResourceKey;
use crate::store::Notification;

impl Writer {
    pub(super) fn isolate(&mut self, key: &ResourceKey, waiters: Vec<Waiter>) {
        if let Some(already) = self.isolated.under_way.get_mut(key) {
            already.extend(waiters);
            return;
        }
        self.isolated.under_way.insert(key.clone(), Vec::new());
        self.retry_alone(key, waiters);
    }

    /// Sends one resource's statement in a task (and on a connection) of its own. Its answer
    /// returns to the writer as a command, so that only the writer changes the epoch table.
    fn retry_alone(&mut self, key: &ResourceKey, waiters: Vec<Waiter>) {
        let waiting = waiters
            .into_iter()
            .map(|waiter| (key.clone(), waiter))
            .collect();
        let (era, by) = (
            self.context.epoch_table.era(),
            self.context.lease.identity(),
        );
        let groups = self.fold(waiting, &by);
        let tx = self.context.tx.clone();
        let (store, metrics) = (
            Arc::clone(&self.context.store),
            Arc::clone(&self.context.metrics),
        );
        let statements = Arc::clone(&self.isolated.statements);
        tokio::spawn(async move {
            let _permit = statements.acquire_owned().await;
            let load = BatchLoad {
                groups,
                riders: Riders::default(),
                rereads: Vec::new(),
            };
            let outcome = batch::send(&store, &metrics, load, era, by).await;
            if let Some(tx) = tx.upgrade() {
                let _ = tx.send(WriterCommand::Retried(Box::new(outcome)));
            }
        });
    }

    /// Enters the answer of a resource that was retried alone.
    pub(super) fn retried(&mut self, outcome: batch::Outcome) {
        let Some(key) = outcome
            .groups
            .first()
            .map(|group| group.ask.resource.clone())
        else {
            return;
        };
        for notification in self.enter(outcome, true) {
            // Sent with the next read, which also finds out whether it is still needed.
            if let Notification::Newer { resource, .. } = notification {
                self.rereads.push(resource);
            }
        }
        match self.isolated.under_way.remove(&key) {
            Some(waiters) if !waiters.is_empty() => {
                self.isolated.under_way.insert(key.clone(), Vec::new());
                self.retry_alone(&key, waiters);
            }
            _ => {}
        }
    }
}
