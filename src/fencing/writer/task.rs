//! The writer's own task: gather, send, enter the answers in the epoch table, answer, clean up.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::batch::{BatchLoad, Group, send};
use super::closes::TICK;
use super::command::WriterCommand;
use super::own::OwnRows;
use super::request::Want;
use super::state::Writer;
use crate::fencing::epochs::Recalled;
use crate::fencing::lease::Identity;
use crate::fencing::refused::Refused;
use crate::metrics::DecidedBy;
use crate::routing::ResourceKey;

/// The most resources that one statement names.
const MAX_PER_BATCH: usize = 1024;
/// The most drained epochs that are taken in at once.
const MAX_DRAINED: usize = 2048;

impl Writer {
    /// Runs until [`stop`](super::WriterHandle::stop) is called, or until every handle is gone.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let own_rows = OwnRows::new(&self.context, Arc::clone(&self.walk.0));
        let mut own_rows = AbortOnDropHandle::new(tokio::spawn(own_rows.run()));
        loop {
            let mut upkeep = false;
            if self.is_idle() {
                let close = self.closes.due();
                tokio::select! {
                    command = self.commands.recv() => match command {
                        Some(command) => self.take(command),
                        None => return,
                    },
                    Some(drained) = self.drained.recv() => self.close_drained(drained),
                    () = tokio::time::sleep_until(close.unwrap_or_else(Instant::now)),
                        if close.is_some() => {}
                    _ = tick.tick() => upkeep = true,
                    // Without it superseded epochs would stay open.
                    _ = &mut own_rows => return,
                }
            }
            while self.queue.waiting.len() < MAX_PER_BATCH {
                match self.commands.try_recv() {
                    Ok(command) => self.take(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.turn(upkeep).await;
            if let Some(done) = self.stop.take() {
                drop(own_rows);
                self.close_all().await;
                let _ = done.send(());
                return;
            }
        }
    }

    fn is_idle(&self) -> bool {
        let waits = !self.queue.waiting.is_empty() || self.locks.has_alone();
        !waits && self.rereads.is_empty() && !self.repairs.due
    }

    fn take(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Append(key, waiter) => self.queue.waiting.push_back((key, waiter)),
            WriterCommand::GiveBack { spend, reply } => self.gives.push((spend, reply)),
            WriterCommand::Reread(key) => self.rereads.push(key),
            WriterCommand::Closed(keys, judged) => {
                self.rereads.push_closed(keys, &self.context.epoch_table);
                let _ = judged.send(());
            }
            WriterCommand::Unclaimed(rows, judged) => {
                self.disown(rows);
                let _ = judged.send(());
            }
            WriterCommand::Missing(rows, incarnation, judged) => {
                self.miss(&rows, incarnation);
                let _ = judged.send(());
            }
            WriterCommand::Stop(done) => self.stop = Some(done),
        }
    }

    /// Receives drained epochs, but only as many as delay no request.
    fn drain_some(&mut self) {
        for _ in 0..MAX_DRAINED {
            let Ok(drained) = self.drained.try_recv() else {
                return;
            };
            self.close_drained(drained);
        }
    }

    async fn turn(&mut self, upkeep: bool) {
        self.park_locked().await;
        // The era is read before the known marks. If an override is learned of in between, the
        // statement is asked again. In the other order, a mark of the previous era would be missing
        // in the new one, and be taken for lost.
        let era = self.context.epoch_table.era();
        let by = self.context.lease.identity();
        let others = self.locks.one_alone(&mut self.queue.waiting);
        let groups = self.gather(&by);
        self.queue.waiting.extend(others);
        let rereads = self.rereads.take(MAX_PER_BATCH);
        let batch = groups.len();
        if !groups.is_empty() || !rereads.is_empty() {
            let now = Instant::now();
            self.drain_some();
            let riders = self.closes.riders(batch, now);
            self.closes.asked(now);
            let suspect = |group: &Group| self.locks.is_suspect(&group.ask.resource);
            let load = BatchLoad {
                hasty: groups.iter().any(suspect),
                groups,
                riders,
                rereads,
            };
            let outcome = send(&self.context.store, &self.context.metrics, load, era, by).await;
            let notifications = self.enter(outcome);
            self.context.announce(notifications).await;
        }
        self.give_back().await;
        self.drain_some();
        self.close_some(batch).await;
        if upkeep {
            self.look_for_late_openings(Instant::now());
        }
        if upkeep || std::mem::take(&mut self.repairs.due) {
            self.repair().await;
        }
    }

    /// Takes the requests whose row is locked out of the queue. They are tried again every
    /// [`TICK`], until their callers leave.
    async fn park_locked(&mut self) {
        let room = MAX_PER_BATCH.saturating_sub(self.queue.waiting.len());
        self.queue.waiting.extend(self.locks.unpark(room));
        let waiting = self.queue.waiting.iter().map(|(key, _)| key);
        let asked: HashSet<&ResourceKey> =
            waiting.filter(|key| self.locks.is_suspect(key)).collect();
        let asked: Vec<ResourceKey> = asked.into_iter().cloned().collect();
        if asked.is_empty() {
            return;
        }
        let locked = match self.context.store.locked(&asked).await {
            Ok(locked) => locked,
            Err(error) => {
                self.context.metrics.failed(&error);
                asked.clone()
            }
        };
        let waiting = self.queue.waiting.drain(..);
        let (parked, free): (Vec<_>, Vec<_>) = waiting.partition(|(key, _)| locked.contains(key));
        let free = free.into_iter();
        let free = free.filter_map(|request| self.locks.take_alone(request));
        self.queue.waiting.extend(free);
        self.locks.park(parked);
    }

    /// Folds the waiting requests into a batch. A request that memory can answer by now needs no
    /// statement.
    fn gather(&mut self, by: &Identity) -> Vec<Group> {
        let mut fresh = Vec::with_capacity(self.queue.waiting.len());
        for (key, waiter) in self.queue.waiting.drain(..) {
            if waiter.reply.is_closed() {
                continue;
            }
            let epoch_table = &self.context.epoch_table;
            match epoch_table.recall(&key, waiter.token, by.incarnation) {
                Err(Refused::Stale { mark, .. }) => {
                    let stale = Refused::stale(mark, DecidedBy::Store);
                    waiter.reply.send(Err(stale));
                }
                Ok(Recalled::Open) if waiter.want == Want::Open => waiter.reply.send(Ok(false)),
                // A quarantined resource is asked for nevertheless, because the statement finds out
                // more.
                Ok(_) | Err(_) => fresh.push((key, waiter)),
            }
        }
        self.fold(fresh, by)
    }
}
