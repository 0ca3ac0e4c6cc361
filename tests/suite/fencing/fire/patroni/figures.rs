//! How long writes were refused, over all rounds.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::Round;

const WORTH: Duration = Duration::from_millis(300);

/// The time in which no write of one proxy passed, from what happened on. Shorter gaps than
/// [`WORTH`] are load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outages(Duration);

impl Outages {
    /// `passed`: when each write was answered, in order.
    pub fn since(struck: Instant, passed: &[Instant]) -> Self {
        let since = passed.windows(2).filter(|pair| pair[1] > struck);
        let gaps = since.map(|pair| pair[1] - pair[0]);
        Self(gaps.filter(|gap| *gap > WORTH).sum())
    }
}

impl fmt::Debug for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

/// The outages of both proxies, for each kind of round.
#[derive(Default)]
pub struct Figures(BTreeMap<Round, Vec<[Outages; 2]>>);

impl Figures {
    pub fn add(&mut self, round: Round, outages: [Outages; 2]) {
        self.0.entry(round).or_default().push(outages);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| commits | what happens | rounds | HAProxy: median, most | all hosts: median, most |"
        )?;
        writeln!(f, "|---|---|---|---|---|")?;
        for ((mode, blow), outages) in &self.0 {
            let of = |proxy: usize| {
                let mut sorted: Vec<_> = outages.iter().map(|both| both[proxy]).collect();
                sorted.sort_unstable();
                format!(
                    "{:?}, {:?}",
                    sorted[(sorted.len() - 1) / 2],
                    sorted[sorted.len() - 1]
                )
            };
            let rounds = outages.len();
            writeln!(
                f,
                "| {mode:?} | {blow:?} | {rounds} | {} | {} |",
                of(0),
                of(1)
            )?;
        }
        Ok(())
    }
}
