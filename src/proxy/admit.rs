//! Phases 3 and 4: ask the marks, then wait at the barrier. What comes out is a permit or a refusal.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::respond::{Refusal, Why};
use crate::barrier::{self, Barrier, Permit};
use crate::fence::{ResourceKey, Token};
use crate::marks::growth::Full;
use crate::marks::lane::{Answer, Caller, LaneError, LaneHandle, Want};
use crate::marks::lease::Lease;
use crate::marks::ledger::{Ledger, Look};
use crate::metrics::{CheckResult, DecidedBy, Limit, Metrics, RouteMetrics};

/// How often an epoch may close between the store's answer and the barrier before a request is sent
/// back to its caller.
const MOST_ROUNDS: usize = 8;
/// What a store outage suggests as Retry-After.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// What admission needs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gate {
    pub ledger: Arc<Ledger>,
    pub lane: LaneHandle,
    pub lease: Arc<Lease>,
    pub barrier: Barrier,
    pub metrics: Arc<Metrics>,
    /// How long the store may take over an answer.
    pub timeout: Duration,
}

/// A permit, and how it was come by.
pub(crate) struct Admitted {
    pub permit: Permit,
    /// The token raised the mark.
    pub advanced: bool,
}

impl Gate {
    /// Refuses a token that is known to be stale, from memory alone.
    pub(crate) fn glance(&self, key: &ResourceKey, token: Token) -> Result<(), Refusal> {
        match self.ledger.look(key, token, self.lease.generation()) {
            Look::Stale(mark) => {
                self.metrics.check(CheckResult::Stale, Duration::ZERO);
                Err(stale(key, token, mark, DecidedBy::Memory))
            }
            Look::Open | Look::Ask | Look::Barred(_) => Ok(()),
        }
    }

    /// Asks the marks and waits at the barrier, up to `wait`.
    pub(crate) async fn admit(
        &self,
        caller: Caller,
        (key, token): (&ResourceKey, Token),
        wait: Duration,
        route: &RouteMetrics,
    ) -> Result<Admitted, Refusal> {
        let deadline = Instant::now() + wait;
        let mut advanced = false;
        for _ in 0..MOST_ROUNDS {
            advanced |= self.check(caller, key, token).await?;
            let began = Instant::now();
            let entered = self.barrier.enter(key, token, deadline).await;
            route.barrier_wait(began.elapsed());
            return match entered {
                Ok(permit) => Ok(Admitted { permit, advanced }),
                // Closed in between: ask again.
                Err(barrier::Refusal::NotOpen) => continue,
                Err(refusal) => {
                    match refusal {
                        barrier::Refusal::QueueFull | barrier::Refusal::CrowdFull => {
                            self.metrics.limit(Limit::Queue);
                        }
                        barrier::Refusal::ShareTaken => {
                            self.metrics.limit(Limit::InFlightPerResource);
                        }
                        _ => {}
                    }
                    Err(at_the_barrier(key, token, &refusal))
                }
            };
        }
        Err(unavailable(
            "The epoch was closed again and again while this request waited",
        ))
    }

    /// Whether the token may go on to the barrier: its epoch is open here, from memory if it can be told
    /// from there. Returns whether this request raised the mark.
    async fn check(
        &self,
        caller: Caller,
        key: &ResourceKey,
        token: Token,
    ) -> Result<bool, Refusal> {
        let began = Instant::now();
        let checked = match self.ledger.look(key, token, self.lease.generation()) {
            Look::Stale(mark) => Err(stale(key, token, mark, DecidedBy::Memory)),
            Look::Open => Ok(false),
            Look::Barred(left) => Err(barred(left)),
            Look::Ask if !self.lease.valid() => Err(lapsed()),
            Look::Ask => match self.ask(Some(caller), key, token, Want::Open).await {
                Ok(answer) => self.verdict(key, token, answer),
                Err(error) => Err(undecided(&error, TRY_AGAIN, false)),
            },
        };
        let result = match &checked {
            Ok(true) => CheckResult::Advanced,
            Ok(false) => CheckResult::Current,
            Err(Refusal::Stale { .. } | Refusal::Spent { .. }) => CheckResult::Stale,
            Err(Refusal::Implausible { .. } | Refusal::Overloaded(_)) => CheckResult::Refused,
            Err(_) => CheckResult::Unavailable,
        };
        self.metrics.check(result, began.elapsed());
        checked
    }

    /// What the store's answer means for a request. `true`: it has raised the mark.
    pub(crate) fn verdict(
        &self,
        key: &ResourceKey,
        token: Token,
        answer: Answer,
    ) -> Result<bool, Refusal> {
        match answer {
            Answer::Granted { advanced } => Ok(advanced),
            Answer::Stale { mark } => Err(stale(key, token, mark, DecidedBy::Store)),
            Answer::Spent => Err(Refusal::Spent {
                key: key.clone(),
                token,
            }),
            Answer::Implausible { mark } => Err(Refusal::Implausible {
                key: key.clone(),
                token,
                mark,
            }),
            Answer::Full(full) => {
                self.metrics.limit(match full {
                    Full::All => Limit::NewResources,
                    Full::Each => Limit::NewResourcesPerPeer,
                });
                Err(Refusal::Overloaded(
                    "Too many resources are new, and a mark is kept for ever. Nothing was forwarded.",
                ))
            }
        }
    }

    /// One question to the lane, within the store's timeout. `caller`: whose bounds hold; an
    /// operator has none.
    pub(crate) async fn ask(
        &self,
        caller: Option<Caller>,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<Answer, LaneError> {
        if !self.lease.begun() {
            // The schema, the era and the key templates have not been looked at yet.
            return Err(LaneError {
                kind: "connection",
                message: "the store has not been reached since the start".into(),
            });
        }
        let late = || LaneError {
            kind: "timeout",
            message: format!("the store did not answer within {:?}", self.timeout).into(),
        };
        tokio::time::timeout(self.timeout, self.lane.ask_for(caller, key, token, want))
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Spends the permit's token (`reuse: once`) under `name`. Doubt counts as spent, and the answer says so.
    pub(crate) async fn spend(&self, permit: &Permit, name: &str) -> Result<(), Refusal> {
        let (key, token) = (permit.key(), permit.token());
        // The token is the mark already: no bounds are left to look at.
        match self
            .ask(None, key, token, Want::Spend(name.to_owned()))
            .await
        {
            Ok(answer) => self.verdict(key, token, answer).map(|_| ()),
            Err(error) => Err(undecided(&error, TRY_AGAIN, true)),
        }
    }

    /// A newer token was found while a request with a permit waited to be sent.
    pub(crate) fn superseded(&self, key: &ResourceKey, token: Token) -> Refusal {
        match self.ledger.look(key, token, self.lease.generation()) {
            Look::Stale(mark) => stale(key, token, mark, DecidedBy::Barrier),
            Look::Barred(left) => barred(left),
            // An operator's override, say.
            Look::Open | Look::Ask => {
                unavailable("The epoch was closed while this request waited to be sent")
            }
        }
    }

    /// Gives a spent token back whose request was not sent. `false`: it counts as spent.
    pub(crate) async fn give_back(&self, key: &ResourceKey, token: Token, name: String) -> bool {
        let given = self.lane.give_back(key, token, name);
        tokio::time::timeout(self.timeout, given)
            .await
            .unwrap_or(false)
    }
}

fn at_the_barrier(key: &ResourceKey, token: Token, refusal: &barrier::Refusal) -> Refusal {
    match *refusal {
        barrier::Refusal::Superseded { mark } => stale(key, token, mark, DecidedBy::Barrier),
        barrier::Refusal::OlderInFlight {
            retry_after,
            settling,
        } => Refusal::OlderInFlight {
            key: key.clone(),
            token,
            retry_after,
            settling,
        },
        barrier::Refusal::QueueFull => Refusal::Overloaded(
            "Too many requests already wait for older work on this resource to end. Nothing was forwarded.",
        ),
        barrier::Refusal::CrowdFull => Refusal::Overloaded(
            "Three quarters of all places are taken by requests that wait for older work to end. \
             Nothing was forwarded. See limits.in_flight.",
        ),
        barrier::Refusal::ShareTaken => Refusal::Overloaded(
            "The requests of this resource have as many places as one may have. Nothing was \
             forwarded. See limits.in_flight_per_resource.",
        ),
        barrier::Refusal::Lapsed | barrier::Refusal::NotOpen => lapsed(),
        barrier::Refusal::Barred { retry_after } => barred(retry_after),
    }
}

fn stale(key: &ResourceKey, token: Token, mark: Token, decided_by: DecidedBy) -> Refusal {
    Refusal::Stale {
        key: key.clone(),
        token,
        mark,
        decided_by,
    }
}

fn lapsed() -> Refusal {
    unavailable(
        "This proxy's lease on the store has lapsed, so it cannot know what others have decided",
    )
}

/// The exchange was not begun in time.
pub(crate) fn cut_off() -> Refusal {
    unavailable("This proxy has lost its lease on the store, or is stopping")
}

fn barred(left: Duration) -> Refusal {
    Refusal::StoreUnavailable {
        why: Why::new(
            "The store has lost marks of this resource; they are being repaired and settle",
        ),
        retry_after: left,
        spent: false,
    }
}

fn unavailable(why: &'static str) -> Refusal {
    Refusal::StoreUnavailable {
        why: Why::new(why),
        retry_after: TRY_AGAIN,
        spent: false,
    }
}

/// The store was asked. `spent`: the question may have spent the token.
pub(crate) fn undecided(error: &LaneError, retry_after: Duration, spent: bool) -> Refusal {
    Refusal::StoreUnavailable {
        why: Why::of("The store of marks gave no answer that decides", error),
        retry_after,
        spent,
    }
}
