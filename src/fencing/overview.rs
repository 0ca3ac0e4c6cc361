//! What is stuck, and with whom: lists for the person on call, from memory alone. A store that is
//! down delays none of them.

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Fencing;
use super::failure_detector::{InstanceState, InstanceView};
use super::operators::UnknownView;
use crate::routing::{ResourceKey, Token};

/// One resource with requests under way here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BusyResource {
    pub resource: ResourceKey,
    /// Permits that have not ended.
    pub in_flight: usize,
    /// Requests that wait for older ones.
    pub waiting: usize,
    pub unknown: Vec<UnknownView>,
}

/// Which of the busy resources are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// A request waits there.
    Waiting,
    /// An outcome is unknown there.
    Unknown,
    /// A request is at the upstream.
    InFlight,
}

/// How many there are, at all resources of this instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyCounts {
    pub in_flight: usize,
    pub waiting: usize,
    pub unknown: usize,
}

impl Fencing {
    /// The resources with requests of this kind, in the order of their keys.
    #[must_use]
    pub fn busy(&self, kind: Busy) -> Vec<BusyResource> {
        let all = self
            .epoch_table
            .activities(Instant::now(), |activity| match kind {
                Busy::Waiting => activity.waiting > 0,
                Busy::Unknown => !activity.unknown.is_empty(),
                Busy::InFlight => activity.in_flight > 0,
            });
        let mut busy: Vec<_> = all
            .into_iter()
            .map(|(resource, activity)| BusyResource {
                resource,
                in_flight: activity.in_flight,
                waiting: activity.waiting,
                unknown: activity.unknown,
            })
            .collect();
        busy.sort_unstable_by(|one, two| one.resource.as_str().cmp(two.resource.as_str()));
        busy
    }

    /// The tokens of the older requests that a request waits for here.
    #[must_use]
    pub fn older(&self, key: &ResourceKey, token: Token) -> Vec<Token> {
        self.epoch_table.older(key, token)
    }

    /// The sums over all resources.
    #[must_use]
    pub fn busy_counts(&self) -> BusyCounts {
        let mut counts = BusyCounts::default();
        self.epoch_table.activities(Instant::now(), |activity| {
            counts.in_flight += activity.in_flight;
            counts.waiting += activity.waiting;
            counts.unknown += activity.unknown.len();
            false
        });
        counts
    }

    /// The instances of the namespace: this one first, the others in the order of their ids.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceView> {
        let this = InstanceView {
            id: self.instance().to_string(),
            state: InstanceState::This,
            silent_for: None,
            settles_in: None,
        };
        let mut others = self.detector.others(self.lease.clock().now());
        others.sort_unstable_by(|one, two| one.id.cmp(&two.id));
        std::iter::once(this).chain(others).collect()
    }
}
