//! The times for which writes were refused, over all rounds, whose longest docs/postgres.md has.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::fault::PrimaryFault;
use crate::support::patroni::Synchronous;

/// A shorter gap between two writes is no outage.
const WORTH: Duration = Duration::from_millis(300);

/// The time in which no write of one proxy passed, from what happened on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outage(Duration);

impl Outage {
    /// `passed`: when each write was answered, in order.
    pub fn since(struck: Instant, passed: &[Instant]) -> Self {
        let since = passed.windows(2).filter(|pair| pair[1] > struck);
        let gaps = since.map(|pair| pair[1] - pair[0]);
        Self(gaps.filter(|gap| *gap > WORTH).sum())
    }
}

impl fmt::Debug for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

/// The outages of both proxies, for each kind of round. Both synchronous modes are one.
#[derive(Default)]
pub struct Figures(BTreeMap<(PrimaryFault, bool), Vec<[Outage; 2]>>);

impl Figures {
    pub fn add(&mut self, mode: Synchronous, fault: PrimaryFault, outages: [Outage; 2]) {
        let of_kind = (fault, mode == Synchronous::Off);
        self.0.entry(of_kind).or_default().push(outages);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| the primary | commits | rounds | by HAProxy | all hosts in the URL |"
        )?;
        writeln!(f, "|---|---|---|---|---|")?;
        for ((fault, asynchronous), outages) in &self.0 {
            let commits = if *asynchronous {
                "asynchronous"
            } else {
                "synchronous"
            };
            let (rounds, [haproxy, hosts]) = (outages.len(), [0, 1].map(|n| of(outages, n)));
            let name = fault.name();
            writeln!(f, "| {name} | {commits} | {rounds} | {haproxy} | {hosts} |")?;
        }
        Ok(())
    }
}

/// Median and maximum, over the rounds in which this proxy refused anything.
fn of(outages: &[[Outage; 2]], proxy: usize) -> String {
    let all = outages.iter().map(|both| both[proxy]);
    let mut some: Vec<_> = all.filter(|outage| !outage.0.is_zero()).collect();
    some.sort_unstable();
    let Some(most) = some.last() else {
        return "none".to_owned();
    };
    let middle = (some[(some.len() - 1) / 2].0 + some[some.len() / 2].0) / 2;
    format!("{:?}, {most:?}", Outage(middle))
}
