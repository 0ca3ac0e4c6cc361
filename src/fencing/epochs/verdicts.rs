//! The results of the epoch table's methods.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::routing::Token;
use crate::store::{InstanceId, Opening};

/// The answer of the barrier's critical section.
#[derive(Debug)]
pub enum Entered<P = Ticket> {
    Permit(P),
    /// The epoch is not open here (any more): ask the store.
    NotOpen,
    /// Older work is out. `known_left` is set when all of it has a known end.
    Wait {
        known_left: Option<Duration>,
    },
}

/// Names one given permit.
#[derive(Debug)]
pub struct Ticket {
    pub opening: Opening,
    pub instance: InstanceId,
    pub incarnation: u64,
    /// Cancelled once a newer token is known.
    pub superseded: Arc<CancellationToken>,
    /// How many requests of the resource have a permit or wait for one, this one included.
    pub held: usize,
}

/// How many requests resources may have here at once.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Waiting with the newest token.
    pub queue: usize,
    /// Waiting or with a permit, whatever the token. One more may wait with a token newer than any
    /// that waits: a crowd with an older one must not keep the newest holder out.
    pub share: usize,
    /// Waiting at all resources together. Leaves in-flight permits to requests that need not wait.
    pub waiting: usize,
}

/// How a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing was sent, or the whole response has arrived.
    Settled,
    /// A byte may have been sent and no whole response came back.
    Unknown,
}

/// An unknown outcome settles by itself at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Settles {
    pub number: u64,
    pub at: Instant,
}

/// A request that was sent and got no whole answer, for operators.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnknownView {
    /// Its number in the epoch table, unless it is inherited.
    #[serde(skip)]
    pub number: u64,
    /// Its name in `resolve`.
    pub id: String,
    pub token: Token,
    /// How long it still counts as in flight; `None`: it belongs to another instance that lives.
    pub settles_in_seconds: Option<f64>,
    /// The instance that sent it.
    pub instance: String,
    /// Inherited from a dead run.
    pub inherited: bool,
}

/// The activity at one resource of this instance, for operators.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResourceActivity {
    /// Permits that have not ended.
    pub in_flight: usize,
    /// Requests that wait for older ones.
    pub waiting: usize,
    pub unknown: Vec<UnknownView>,
}
