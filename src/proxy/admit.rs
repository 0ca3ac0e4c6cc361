//! Phase 3: asks [`Fencing`] for a permit. The result is a permit or the refusal that the client reads.

use std::time::Duration;

use super::core::Proxy;
use super::refusal::{Refusal, Why};
use crate::fencing::barrier::Permit;
use crate::fencing::writer::Caller;
use crate::fencing::{Admitted, Fencing, Refused, Undecided};
use crate::metrics::RouteMetrics;
use crate::routing::{ResourceKey, Token};

impl Proxy {
    /// Refuses a token that is known to be stale, from memory alone.
    pub(super) fn unless_stale(&self, key: &ResourceKey, token: Token) -> Result<(), Refusal> {
        let known = self.fencing.unless_known_stale(key, token);
        known.map_err(|refused| refusal(refused, key, token))
    }

    /// A permit, within `wait`.
    pub(super) async fn admit(
        &self,
        caller: Caller,
        (key, token): (&ResourceKey, Token),
        wait: Duration,
        route: &RouteMetrics,
    ) -> Result<Admitted, Refusal> {
        let admitted = self.fencing.admit(caller, (key, token), wait, route).await;
        admitted.map_err(|refused| refusal(refused, key, token))
    }
}

/// Spends the permit's token (`reuse: once`) under `name`. Undecided counts as spent, and the answer says so.
pub(super) async fn spend(fencing: &Fencing, permit: &Permit, name: &str) -> Result<(), Refusal> {
    let spent = fencing.spend(permit, name).await;
    spent.map_err(|refused| {
        let mut refusal = refusal(refused, permit.key(), permit.token());
        if let Refusal::StoreUnavailable { spent, .. } = &mut refusal {
            *spent = true;
        }
        refusal
    })
}

/// The refusal that the client of a refused token reads.
pub(super) fn refusal(refused: Refused, key: &ResourceKey, token: Token) -> Refusal {
    match refused {
        Refused::Stale { mark, decided_by } => Refusal::Stale {
            key: key.clone(),
            token,
            mark,
            decided_by,
        },
        Refused::Spent => Refusal::Spent {
            key: key.clone(),
            token,
        },
        Refused::Implausible { mark } => Refusal::Implausible {
            key: key.clone(),
            token,
            mark,
        },
        Refused::TooManyNew(_) => Refusal::Overloaded(
            "Too many resources are new, and a mark is kept for ever. Nothing was forwarded.",
        ),
        Refused::OlderInFlight {
            retry_after,
            settling,
        } => Refusal::OlderInFlight {
            key: key.clone(),
            token,
            retry_after,
            settling,
        },
        Refused::QueueFull => Refusal::Overloaded(
            "Too many requests already wait for older work on this resource to end. Nothing was forwarded.",
        ),
        Refused::CrowdFull => Refusal::Overloaded(
            "Three quarters of all places are taken by requests that wait for older work to end. \
             Nothing was forwarded. See limits.in_flight.",
        ),
        Refused::ShareTaken => Refusal::Overloaded(
            "The requests of this resource have as many places as one may have. Nothing was \
             forwarded. See limits.in_flight_per_resource.",
        ),
        Refused::Unavailable { why, retry_after } => Refusal::StoreUnavailable {
            why: reason(&why),
            retry_after,
            spent: false,
        },
    }
}

/// The exchange was not begun in time.
pub(super) fn cut_off() -> Refusal {
    Refusal::StoreUnavailable {
        why: Why::new("This proxy has lost its lease on the store, or is stopping"),
        retry_after: Duration::from_secs(1),
        spent: false,
    }
}

fn reason(doubt: &Undecided) -> Why {
    Why::new(match doubt {
        Undecided::Lapsed => {
            "This proxy's lease on the store has lapsed, so it cannot know what others have decided"
        }
        Undecided::Repairing => {
            "The store has lost marks of this resource; they are being repaired and settle"
        }
        Undecided::ClosedAgain => "The epoch was closed again and again while this request waited",
        Undecided::ClosedUnsent => "The epoch was closed while this request waited to be sent",
        Undecided::NoAnswer(error) => {
            return Why::of("The store of marks gave no answer that decides", error);
        }
    })
}
