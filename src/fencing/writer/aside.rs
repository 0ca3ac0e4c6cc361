//! Beside the writer: resources that ran into a row lock are asked about one by one, in statements (and on
//! connections) of their own, so that one locked row stops nobody else.

use std::sync::Arc;

use super::batch::{self, BatchLoad};
use super::closes::Riders;
use super::command::WriterCommand;
use super::state::Writer;
use super::waiter::Waiter;
use crate::routing::ResourceKey;
use crate::store::Notification;

impl Writer {
    pub(super) fn set_aside(&mut self, key: &ResourceKey, waiters: Vec<Waiter>) {
        if let Some(already) = self.aside.get_mut(key) {
            already.extend(waiters);
            return;
        }
        self.aside.insert(key.clone(), Vec::new());
        self.ask_aside(key, waiters);
    }

    /// Sends one resource's statement in a task (and on a connection) of its own; its answer comes back
    /// to the writer as a command, so that only the writer ever enters one in the epoch table.
    pub(super) fn ask_aside(&mut self, key: &ResourceKey, waiters: Vec<Waiter>) {
        let waiting = waiters
            .into_iter()
            .map(|waiter| (key.clone(), waiter))
            .collect();
        let (era, by, tx) = (
            self.epoch_table.era(),
            self.lease.identity(),
            self.tx.clone(),
        );
        let groups = self.fold(waiting, &by);
        let (store, meters) = (Arc::clone(&self.store), self.meters.clone());
        let room = Arc::clone(&self.aside_room);
        tokio::spawn(async move {
            let _place = room.acquire_owned().await;
            let load = BatchLoad {
                groups,
                riders: Riders::default(),
                looks: Vec::new(),
            };
            let outcome = batch::send(&store, &meters, load, era, by).await;
            if let Some(tx) = tx.upgrade() {
                let _ = tx.send(WriterCommand::Aside(Box::new(outcome)));
            }
        });
    }

    pub(super) fn aside_done(&mut self, outcome: batch::Outcome) {
        let Some(key) = outcome
            .groups
            .first()
            .map(|group| group.ask.resource.clone())
        else {
            return;
        };
        for news in self.enter(outcome, true) {
            // Told with the next look, which also finds out whether it is still needed.
            if let Notification::Newer { resource, .. } = news {
                self.look(resource);
            }
        }
        match self.aside.remove(&key) {
            Some(waiters) if !waiters.is_empty() => {
                self.aside.insert(key.clone(), Vec::new());
                self.ask_aside(&key, waiters);
            }
            _ => {}
        }
    }
}
