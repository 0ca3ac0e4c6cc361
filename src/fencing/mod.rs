//! The middle of the program, behind one face: a token goes in, and a permit or the reason why there
//! is none comes out.
//!
//! - [`Fencing::unless_known_stale`] answers from memory alone.
//! - [`Fencing::admit`] raises the mark durably, waits at the [barrier](crate::fencing::barrier) until nothing
//!   older is in flight, and gives a [`Permit`].
//! - [`Fencing::raise`] raises the mark, and gives nothing: for observed requests and for operators.
//! - [`Permit::begin`] marks the moment from which a byte may go upstream, `Sending::settled` the end.
//!
//! [`Fencing::start`] assembles what stands behind it: the epochs in memory ([`EpochTable`]), the
//! group-commit writer ([`Writer`]), the lease, and what is known of other instances ([`FailureDetector`]). Its
//! tasks are the [`Background`]'s.

mod background;
pub mod barrier;
#[cfg(test)]
pub(crate) mod double;
pub mod epochs;
pub mod failure_detector;
pub mod growth;
pub mod lease;
pub mod membership;
mod refused;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

pub use self::background::{Background, Running};
pub use self::refused::{Refused, Undecided};
use crate::boot_clock::BootClock;
use crate::config::Settings;
use crate::fencing::barrier::{Barrier, Permit};
use crate::fencing::epochs::{EpochTable, Look, RequestLimits};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::growth::{Growth, Rates};
use crate::fencing::lease::Lease;
use crate::fencing::writer::{
    Answer, Caller, Meters, Want, Writer, WriterError, WriterHandle, WriterSetup,
};
use crate::metrics::{CheckResult, DecidedBy, Limit, Metrics, RouteMetrics};
use crate::routing::{ResourceKey, Token};
use crate::store::reckoning::Reckoning;
use crate::store::routes::RouteRecord;
use crate::store::{InstanceId, MarkStore};

/// How often an epoch may close between the store's answer and the barrier before a request is sent
/// back to its caller.
const MOST_ROUNDS: usize = 8;

/// The arguments of [`Fencing::start`].
pub struct FencingSetup<'a> {
    pub store: Arc<dyn MarkStore>,
    pub settings: &'a Settings,
    pub metrics: Arc<Metrics>,
    /// The route tables of this instance and of the others.
    pub routes: Arc<RouteRecord>,
    pub random: fn() -> u128,
}

/// Decides about tokens. One for each process.
pub struct Fencing {
    pub(crate) store: Arc<dyn MarkStore>,
    pub(crate) epoch_table: Arc<EpochTable>,
    pub(crate) writer: WriterHandle,
    pub(crate) lease: Arc<Lease>,
    pub(crate) detector: Arc<FailureDetector>,
    pub(crate) barrier: Barrier,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) meters: Meters,
    pub(crate) growth: Arc<Growth>,
    /// How long the store may take over an answer.
    pub(crate) timeout: Duration,
}

/// A permit, and how it was come by.
pub struct Admitted {
    pub permit: Permit,
    /// The token raised the mark.
    pub advanced: bool,
}

impl Fencing {
    /// Assembles the parts, and starts the writer. The store is not reached yet: see
    /// [`Background::join`].
    pub fn start(setup: FencingSetup<'_>) -> (Arc<Self>, Background) {
        let FencingSetup {
            store,
            settings,
            metrics,
            routes,
            random,
        } = setup;
        let handles = metrics.store_handles();
        let growth = Arc::new(Growth::new(rates(settings)));
        let meters = Meters {
            new_resources: handles.new_resources,
            batch_size: handles.batch_size,
            commit_seconds: handles.commit_seconds,
            errors: handles.errors,
            regressions: handles.regressions,
            up: handles.up,
            trouble: Arc::default(),
        };
        let reckoning = reckoning(&*store, settings);
        let instance = InstanceId::from_bits(random());
        let lease = Lease::new(BootClock::boottime(), Some(settings.store.lease), instance);
        let lease = Arc::new(lease.cutting_after(reckoning.cutoff()));
        let detector = Arc::new(FailureDetector::new(reckoning));
        let (drained_tx, drained) = mpsc::unbounded_channel();
        let epoch_table = Arc::new(EpochTable::new(
            settings.store.cached_marks,
            settings.barrier.settle,
            reckoning.after_loss(),
            drained_tx,
            handles.open_epochs,
            handles.unknown_outcomes,
        ));
        let (task, writer) = Writer::new(WriterSetup {
            store: Arc::clone(&store),
            epoch_table: Arc::clone(&epoch_table),
            lease: Arc::clone(&lease),
            detector: Arc::clone(&detector),
            meters: meters.clone(),
            growth: Arc::clone(&growth),
            drained,
        });
        let room = RequestLimits {
            queue: settings.barrier.queue,
            share: settings.limits.in_flight_per_resource.unwrap_or(usize::MAX),
            waiting: settings.limits.waiting(),
        };
        let barrier = Barrier::new(
            Arc::clone(&epoch_table),
            Arc::clone(&lease),
            Arc::clone(&detector),
            room,
        );
        let fencing = Arc::new(Self {
            store,
            epoch_table,
            writer,
            lease,
            detector,
            barrier,
            metrics,
            meters,
            growth,
            timeout: settings.store.timeout,
        });
        let background = Background::new(
            &fencing,
            tokio::spawn(task.run()),
            settings,
            handles.lease_remaining,
            (routes, random),
        );
        (fencing, background)
    }

    /// Answers from memory alone.
    ///
    /// # Errors
    ///
    /// A mark above the token is known.
    pub fn unless_known_stale(&self, key: &ResourceKey, token: Token) -> Result<(), Refused> {
        match self.epoch_table.look(key, token, self.lease.generation()) {
            Look::Stale(mark) => {
                self.metrics.check(CheckResult::Stale, Duration::ZERO);
                Err(Refused::stale(mark, DecidedBy::Memory))
            }
            Look::Open | Look::Ask | Look::Barred(_) => Ok(()),
        }
    }

    /// Raises the mark to the token, and waits up to `wait` until nothing older is in flight.
    ///
    /// # Errors
    ///
    /// Nothing may be sent, and nothing was. The mark may have risen all the same.
    pub async fn admit(
        &self,
        caller: Caller,
        (key, token): (&ResourceKey, Token),
        wait: Duration,
        route: &RouteMetrics,
    ) -> Result<Admitted, Refused> {
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
                Err(barrier::BarrierRefusal::NotOpen) => continue,
                Err(refusal) => Err(self.noted(refusal.into())),
            };
        }
        Err(Refused::unavailable(Undecided::ClosedAgain))
    }

    /// Raises the mark to the token, and opens nothing. `caller`: whose bounds hold; an operator has
    /// none. Returns whether this has raised it.
    ///
    /// # Errors
    ///
    /// The mark is above the token, or the token is not believed, or the store gave no answer.
    pub async fn raise(
        &self,
        caller: Option<Caller>,
        key: &ResourceKey,
        token: Token,
    ) -> Result<bool, Refused> {
        match self.ask(caller, key, token, Want::Raise).await? {
            // Spent or not, the mark is the token.
            Answer::Spent => Ok(false),
            answer => Refused::unless_granted(answer).map_err(|refused| self.noted(refused)),
        }
    }

    /// Whether the token may go on to the barrier: its epoch is open here, from memory if it can be told
    /// from there. Returns whether this request raised the mark.
    async fn check(
        &self,
        caller: Caller,
        key: &ResourceKey,
        token: Token,
    ) -> Result<bool, Refused> {
        let began = Instant::now();
        let checked = match self.epoch_table.look(key, token, self.lease.generation()) {
            Look::Stale(mark) => Err(Refused::stale(mark, DecidedBy::Memory)),
            Look::Open => Ok(false),
            Look::Barred(left) => Err(Refused::repairing(left)),
            Look::Ask if !self.lease.valid() => Err(Refused::unavailable(Undecided::Lapsed)),
            Look::Ask => match self.ask(Some(caller), key, token, Want::Open).await {
                Ok(answer) => {
                    Refused::unless_granted(answer).map_err(|refused| self.noted(refused))
                }
                Err(error) => Err(error.into()),
            },
        };
        let result = match &checked {
            Ok(true) => CheckResult::Advanced,
            Ok(false) => CheckResult::Current,
            Err(Refused::Stale { .. } | Refused::Spent) => CheckResult::Stale,
            Err(Refused::Implausible { .. } | Refused::TooManyNew(_)) => CheckResult::Refused,
            Err(_) => CheckResult::Unavailable,
        };
        self.metrics.check(result, began.elapsed());
        checked
    }

    /// Counts the limit that a refusal is by, if it is by one.
    fn noted(&self, refused: Refused) -> Refused {
        let limit = match &refused {
            Refused::TooManyNew(growth::Full::All) => Some(Limit::NewResources),
            Refused::TooManyNew(growth::Full::Each) => Some(Limit::NewResourcesPerClient),
            Refused::QueueFull | Refused::CrowdFull => Some(Limit::Queue),
            Refused::ShareTaken => Some(Limit::InFlightPerResource),
            _ => None,
        };
        if let Some(limit) = limit {
            self.metrics.limit(limit);
        }
        refused
    }

    /// One question to the writer, within the store's timeout.
    async fn ask(
        &self,
        caller: Option<Caller>,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<Answer, WriterError> {
        if !self.lease.begun() {
            // The schema, the era and the key templates have not been looked at yet.
            return Err(WriterError {
                kind: "connection",
                message: "the store has not been reached since the start".into(),
            });
        }
        let late = || WriterError {
            kind: "timeout",
            message: format!("the store did not answer within {:?}", self.timeout).into(),
        };
        tokio::time::timeout(self.timeout, self.writer.ask_for(caller, key, token, want))
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Spends the permit's token (`reuse: once`) under `name`. Where nobody knows, it counts as spent.
    ///
    /// # Errors
    ///
    /// The token is stale or spent, or the store gave no answer.
    pub async fn spend(&self, permit: &Permit, name: &str) -> Result<(), Refused> {
        let (key, token) = (permit.key(), permit.token());
        // The token is the mark already: no bounds are left to look at.
        let answer = self.ask(None, key, token, Want::Spend(name.to_owned()));
        Refused::unless_granted(answer.await?).map(|_| ())
    }

    /// Gives a spent token back whose request was not sent. `false`: it counts as spent.
    pub async fn give_back(&self, key: &ResourceKey, token: Token, name: String) -> bool {
        let given = self.writer.give_back(key, token, name);
        tokio::time::timeout(self.timeout, given)
            .await
            .unwrap_or(false)
    }

    /// Why a permit is worth nothing any more, before it has begun: a newer token is known.
    #[must_use]
    pub fn superseded(&self, key: &ResourceKey, token: Token) -> Refused {
        match self.epoch_table.look(key, token, self.lease.generation()) {
            Look::Stale(mark) => Refused::stale(mark, DecidedBy::Barrier),
            Look::Barred(left) => Refused::repairing(left),
            // An operator's override, say.
            Look::Open | Look::Ask => Refused::unavailable(Undecided::ClosedUnsent),
        }
    }

    /// The name of this run among those that share the store.
    #[must_use]
    pub fn instance(&self) -> InstanceId {
        self.lease.identity().instance
    }

    /// The lease that every byte of a fenced request is written under.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Cuts the exchanges that are still in flight: they stay on record as unknown.
    pub fn cut(&self) {
        self.lease.identity().cutoff.cancel();
    }

    /// Whether the store has answered last, and why not.
    #[must_use]
    pub fn store_status(&self) -> (bool, Option<Arc<str>>) {
        (self.meters.up.get() == 1, self.meters.trouble.why())
    }

    /// Takes over how many resources may be new.
    pub fn reload(&self, settings: &Settings) {
        self.growth.set(rates(settings));
    }

    /// Sets the gauges that are only true at the moment of asking. Does not block.
    pub fn refresh_gauges(&self) {
        self.metrics.set_lease_remaining(self.lease.remaining());
        if let Some(marks) = self.store.counted() {
            self.metrics.set_marks(marks);
        }
    }
}

/// How long this instance waits for what others may still do.
fn reckoning(store: &dyn MarkStore, settings: &Settings) -> Reckoning {
    let settle = settings.barrier.settle;
    if store.shared() {
        Reckoning::shared(settings.store.lease, settings.upstream.undelivered, settle)
    } else {
        Reckoning::alone(settle)
    }
}

/// How many resources may be new.
fn rates(settings: &Settings) -> Rates {
    Rates {
        all: settings.limits.new_resources,
        each: settings.limits.new_resources_per_client,
    }
}
