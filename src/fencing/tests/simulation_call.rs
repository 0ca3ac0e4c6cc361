//! The parts of a simulation that stand between its instances and its store: the terms, the dice,
//! the statements, and their way.

use std::time::Duration;

use super::rows::Rows;
use crate::routing::{ResourceKey, Token};
use crate::store::{
    Ask, Batch, Epoch, Era, Found, InstanceId, InstanceRow, MarkRow, Opening, Publication, Renewal,
    Repair, StoreError, Terms,
};

pub(super) const LEASE: Duration = Duration::from_secs(3);
pub(super) const UNDELIVERED: Duration = Duration::from_secs(1);
pub(super) const SETTLE: Duration = Duration::from_secs(3);
/// After which the answer to a statement is given up.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const LANES: usize = 2;

/// Random numbers of a seed (`SplitMix64`).
pub(super) struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Takes one of these, if there is one.
    pub fn pick<T>(&mut self, mut from: Vec<T>) -> Option<T> {
        let index = self.below(from.len().max(1));
        (!from.is_empty()).then(|| from.swap_remove(index))
    }
}

/// The statement of a lane.
#[derive(Debug)]
pub(super) struct Advance {
    pub instance: InstanceId,
    pub era: Era,
    pub asks: Vec<Ask>,
    pub used: Vec<Opening>,
    pub next: Opening,
}

impl Advance {
    pub fn of(batch: Batch<'_>) -> Self {
        Self {
            instance: batch.instance,
            era: batch.era,
            asks: batch.asks.to_vec(),
            used: batch.used.to_vec(),
            next: batch.next,
        }
    }
}

/// A statement.
#[derive(Debug)]
pub(super) enum Call {
    Advance(Advance),
    Look(Vec<ResourceKey>),
    Cede(Vec<(ResourceKey, Epoch)>),
    Repair(Vec<Repair>),
    GiveBack(ResourceKey, Token, String),
    Renew(InstanceId, Terms, Publication),
    RaiseEra(Era),
    Join(InstanceId, Terms),
    Instances,
    Declare(InstanceId, i64),
    Settle(InstanceId),
    Leave(InstanceId, Publication),
}

/// Its answer.
#[derive(Debug)]
pub(super) enum Reply {
    Advanced(Vec<Found>),
    Looked(Vec<(MarkRow, Found)>),
    /// The rows of these resources were written.
    Ceded(Vec<ResourceKey>),
    Repaired(Vec<Found>),
    Renewed(Renewal),
    Joined(Era),
    Instances(Vec<InstanceRow>),
    /// Whether the instance is dead.
    Dead(bool),
    Done,
}

impl Call {
    pub fn run(&self, rows: &mut Rows) -> Result<Reply, StoreError> {
        Ok(match self {
            Self::Advance(one) => {
                if let Some(ask) = one
                    .asks
                    .iter()
                    .find(|ask| rows.locked.contains(&ask.resource))
                {
                    return Err(StoreError::LockTimeout(ask.resource.to_string()));
                }
                Reply::Advanced(rows.advance(Batch {
                    instance: one.instance,
                    era: one.era,
                    asks: &one.asks,
                    used: &one.used,
                    next: one.next,
                }))
            }
            Self::Look(keys) => Reply::Looked(rows.look(keys)),
            Self::Cede(epochs) => Reply::Ceded(rows.cede(epochs)),
            Self::Repair(repairs) => Reply::Repaired(rows.repair(repairs)),
            Self::GiveBack(resource, token, name) => {
                rows.give_back(resource, *token, name);
                Reply::Done
            }
            Self::Renew(id, terms, publication) => {
                Reply::Renewed(rows.renew(*id, terms, publication))
            }
            Self::RaiseEra(era) => {
                rows.raise_era(*era);
                Reply::Done
            }
            Self::Join(id, terms) => Reply::Joined(rows.join(*id, terms)?),
            Self::Instances => Reply::Instances(rows.instances()),
            Self::Declare(id, renewals) => Reply::Dead(rows.declare_dead(*id, *renewals)),
            Self::Settle(id) => Reply::Dead(rows.settle(*id)),
            Self::Leave(id, publication) => {
                rows.leave(*id, publication);
                Reply::Done
            }
        })
    }

    /// Whether its answer shows others' commits, which are durable then.
    pub fn reads(&self) -> bool {
        matches!(self, Self::Look(_) | Self::Instances)
    }
}
