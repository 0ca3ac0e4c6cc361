//! The upstream of a simulation, which sees every byte, and judges the guarantees by the design's
//! assumptions alone: how long a request may be in flight after its last byte.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::simulation_call::{LEASE, SETTLE, UNDELIVERED};
use crate::fencing::epochs::Ending;
use crate::routing::{ResourceKey, Token};

/// A lease: of a process, and of one of its incarnations.
pub(super) type Holder = (usize, u64);

/// A request of which the upstream has a byte.
#[derive(Debug)]
struct Exchange {
    resource: ResourceKey,
    token: Token,
    holder: Holder,
    /// The process of the proxy has ended without an order.
    crashed: Option<Duration>,
    ended: Option<(Ending, Duration)>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    exchanges: Vec<Exchange>,
    /// The newest token of each resource that was ever sent, since its last override.
    newest: HashMap<ResourceKey, Token>,
    spent: HashSet<(ResourceKey, Token)>,
    /// Resources whose row was changed by a failover that lost durable commits: nothing is
    /// guaranteed there but that they serve again.
    pub lost: HashSet<ResourceKey>,
    leases: HashMap<Holder, Duration>,
}

impl Upstream {
    /// The lease of `holder` runs from `sent` on.
    pub fn renewed(&mut self, holder: Holder, sent: Duration) {
        let end = self.leases.entry(holder).or_default();
        *end = (*end).max(sent + LEASE);
    }

    /// The first byte of a request arrives. Returns the number of its exchange. `mark`: the one in
    /// the store; `open`: whether its epoch is open there.
    pub fn begin(
        &mut self,
        (resource, token, once): (&ResourceKey, Token, bool),
        holder: Holder,
        (mark, open): (Option<Token>, bool),
        now: Duration,
    ) -> Result<usize, String> {
        self.exchanges.push(Exchange {
            resource: resource.clone(),
            token,
            holder,
            crashed: None,
            ended: None,
        });
        let number = self.exchanges.len() - 1;
        self.byte(number, now)?;
        let newest = self.newest.entry(resource.clone()).or_insert(token);
        *newest = (*newest).max(token);
        if self.lost.contains(resource) {
            return Ok(number);
        }
        if mark < Some(token) {
            return Err(format!("{token} is sent, and the mark is {mark:?}"));
        }
        if !open {
            return Err(format!("{token} is sent without an open epoch"));
        }
        if once && !self.spent.insert((resource.clone(), token)) {
            return Err(format!("{token} is sent twice"));
        }
        Ok(number)
    }

    /// A byte of a request arrives.
    pub fn byte(&self, number: usize, now: Duration) -> Result<(), String> {
        let one = &self.exchanges[number];
        if self.lost.contains(&one.resource) {
            return Ok(());
        }
        if let Some(newest) = self.newest.get(&one.resource)
            && *newest > one.token
        {
            return Err(format!("{} is sent after {newest}", one.token));
        }
        let mut older = self.exchanges.iter();
        let older = older.find(|older| {
            older.resource == one.resource
                && older.token < one.token
                && self.until(older).is_some_and(|until| now < until)
        });
        match older {
            Some(older) => Err(format!(
                "{} is sent while {older:?} is in flight until {:?}",
                one.token,
                self.until(older)
            )),
            None => Ok(()),
        }
    }

    /// How long a request may be in flight: its proxy writes until its lease ends, the kernel
    /// delivers that, and the upstream works on it.
    fn until(&self, one: &Exchange) -> Option<Duration> {
        let lease = self.leases.get(&one.holder).copied().unwrap_or_default();
        let written = one.crashed.map_or(lease, |crashed| crashed.min(lease));
        let until = written + UNDELIVERED + SETTLE;
        match one.ended {
            // It was reset, so that nothing is delivered any more.
            Some((Ending::Unknown, at)) => Some(until.min(at + SETTLE)),
            Some((Ending::Settled, _)) => None,
            None => Some(until),
        }
    }

    pub fn end(&mut self, number: usize, ending: Ending, now: Duration) {
        self.exchanges[number].ended = Some((ending, now));
    }

    /// A process has ended without an order.
    pub fn crashed(&mut self, process: usize, now: Duration) {
        let of = |one: &&mut Exchange| one.holder.0 == process && one.ended.is_none();
        for one in self.exchanges.iter_mut().filter(of) {
            one.crashed = Some(now);
        }
    }

    /// The mark was overridden or deleted, so that any token may come.
    pub fn overridden(&mut self, resource: &ResourceKey, now: Duration) -> Result<(), String> {
        let flying = |one: &&Exchange| {
            one.resource == *resource && self.until(one).is_some_and(|until| now < until)
        };
        if !self.lost.contains(resource)
            && let Some(one) = self.exchanges.iter().find(flying)
        {
            return Err(format!("the mark is overridden with {one:?} in flight"));
        }
        self.newest.remove(resource);
        self.spent.retain(|(spent, _)| spent != resource);
        for one in &mut self.exchanges {
            if one.resource == *resource {
                one.ended.get_or_insert((Ending::Settled, now));
            }
        }
        Ok(())
    }
}
