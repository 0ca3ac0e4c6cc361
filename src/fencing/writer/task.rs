//! The writer's own task: gather, send, enter the answers in the epoch table, answer, clean up.

use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::batch::{self, BatchLoad, Group};
use super::bounds::TICK;
use super::command::WriterCommand;
use super::own::OwnRows;
use super::request::{Answer, Want};
use super::state::Writer;
use crate::fencing::epochs::Look;
use crate::fencing::lease::Identity;
use crate::routing::ResourceKey;

/// The most resources that one statement names.
const MOST_PER_BATCH: usize = 1024;
/// The most drained epochs that are taken in at once.
const MOST_DRAINED: usize = 2048;
impl Writer {
    /// Runs until [`stop`](super::WriterHandle::stop) is called, or until every handle is gone.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let own = OwnRows::new(&self).run();
        let mut own = AbortOnDropHandle::new(tokio::spawn(own));
        loop {
            let mut upkeep = false;
            if self.waiting.is_empty() && self.looks.is_empty() && !self.repair {
                let close = self.closes.due();
                tokio::select! {
                    command = self.rx.recv() => match command {
                        Some(command) => self.take(command),
                        None => return,
                    },
                    Some(drained) = self.drained.recv() => self.drain(drained),
                    () = tokio::time::sleep_until(close.unwrap_or_else(Instant::now)),
                        if close.is_some() => {}
                    _ = tick.tick() => upkeep = true,
                    // Without it nobody would look for what others have superseded.
                    _ = &mut own => return,
                }
            }
            while self.waiting.len() < MOST_PER_BATCH {
                match self.rx.try_recv() {
                    Ok(command) => self.take(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.turn(upkeep).await;
            if let Some(done) = self.stop.take() {
                drop(own);
                self.close_all().await;
                let _ = done.send(());
                return;
            }
        }
    }

    fn take(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Ask(key, waiter) => {
                if self.aside.contains_key(&key) || self.trouble.contains_key(&key) {
                    self.set_aside(&key, vec![waiter]);
                } else {
                    self.waiting.push_back((key, waiter));
                }
            }
            WriterCommand::GiveBack { spend, reply } => self.gives.push((spend, reply)),
            WriterCommand::Look(key) => self.look(key),
            WriterCommand::Closed(mut keys, judged) => {
                keys.retain(|key| self.epoch_table.waits_for_others(key));
                for key in &keys {
                    if self.looks.insert(key.clone()) {
                        self.quiet.insert(key.clone());
                    }
                }
                self.closed.push((keys, judged));
            }
            WriterCommand::Unclaimed(rows, judged) => {
                self.disown(rows);
                let _ = judged.send(());
            }
            WriterCommand::Missing(rows, generation, judged) => {
                self.miss(&rows, generation);
                let _ = judged.send(());
            }
            WriterCommand::Stop(done) => self.stop = Some(done),
            WriterCommand::Aside(outcome) => self.aside_done(*outcome),
        }
    }

    /// Takes in what has drained, so much that requests need not wait for it.
    fn drain_some(&mut self) {
        for _ in 0..MOST_DRAINED {
            let Ok(drained) = self.drained.try_recv() else {
                return;
            };
            self.drain(drained);
        }
    }

    async fn turn(&mut self, upkeep: bool) {
        // The era before what is known in it: an override that is learned of in between sends the statement back.
        // The other way round, a mark of the era before would be missed in the new one, and taken for lost.
        let era = self.epoch_table.era();
        let by = self.lease.identity();
        let groups = self.gather(&by);
        let looks = self.next_looks();
        self.batch = groups.len();
        if !groups.is_empty() || !looks.is_empty() {
            let now = Instant::now();
            self.drain_some();
            let riders = self.closes.riders(groups.len(), now);
            self.closes.asked(now);
            let load = BatchLoad {
                groups,
                riders,
                looks,
            };
            let outcome = batch::send(&self.store, &self.meters, load, era, by).await;
            let news = self.enter(outcome, false);
            self.announce(news).await;
        }
        self.judge_closed();
        self.give_back().await;
        self.drain_some();
        self.close_some().await;
        if upkeep {
            let now = Instant::now();
            self.trouble.retain(|_, until| *until > now);
            self.look_for_late_openings(now);
        }
        if upkeep || std::mem::take(&mut self.repair) {
            self.repair().await;
        }
    }

    /// Answers those whose looks have been made.
    fn judge_closed(&mut self) {
        let (looks, epoch_table) = (&self.looks, &self.epoch_table);
        let made = |keys: &Vec<ResourceKey>| keys.iter().all(|key| !looks.contains(key));
        for (keys, judged) in self.closed.extract_if(.., |(keys, _)| made(keys)) {
            let helped = keys.iter().any(|key| !epoch_table.waits_for_others(key));
            let _ = judged.send(helped || keys.is_empty());
        }
    }

    fn next_looks(&mut self) -> Vec<ResourceKey> {
        let next = self.looks.iter().take(MOST_PER_BATCH).cloned();
        let next: Vec<ResourceKey> = next.collect();
        for key in &next {
            self.looks.remove(key);
        }
        next
    }

    /// Folds what waits into a batch. What memory can tell by now needs no statement.
    fn gather(&mut self, by: &Identity) -> Vec<Group> {
        let mut fresh = Vec::with_capacity(self.waiting.len());
        for (key, waiter) in self.waiting.drain(..) {
            if waiter.reply.is_closed() {
                continue;
            }
            match self.epoch_table.look(&key, waiter.token, by.generation) {
                Look::Stale(mark) => {
                    waiter.reply.send(Ok(Answer::Stale { mark }));
                }
                Look::Open if waiter.want == Want::Open => {
                    waiter.reply.send(Ok(Answer::Granted { advanced: false }));
                }
                Look::Open | Look::Ask | Look::Barred(_) => fresh.push((key, waiter)),
            }
        }
        self.fold(fresh, by)
    }
}
