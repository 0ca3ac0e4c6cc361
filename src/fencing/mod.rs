//! Decides about tokens: a token goes in, and a permit or a refusal comes out. [`Fencing`] is the
//! only entrance.
//!
//! - [`Fencing::unless_known_stale`] answers from memory alone.
//! - [`Fencing::admit`] raises the mark durably, waits at the [barrier]
//!   until nothing older is in flight, and gives a [`Permit`].
//! - [`Fencing::raise`] raises the mark and gives no permit, for observed requests and for
//!   operators.
//! - [`Permit::begin`] marks the moment from which a byte may go upstream, `Sending::settled` the
//!   end.
//! - [`Fencing::begin_operation`] makes sure that an operation is sent by one attempt at a time: see
//!   [`operations`].
//! - Operators view, advance, override and resolve: see [`operators`], and [`outcomes`] for
//!   operations. They forget marks: see [`prune`].
//!
//! [`Fencing::start`] assembles the parts behind it: the epochs in memory ([`EpochTable`], the
//! state machine that decides everything), the [`lanes`] that send its statements, the lease, and
//! the view of other instances ([`FailureDetector`]). The [`Background`] owns their tasks.

mod background;
mod barrier;
pub mod epochs;
pub mod failure_detector;
mod lanes;
pub mod lease;
pub mod membership;
pub mod operations;
pub mod operators;
pub mod outcomes;
pub mod permit;
pub mod prune;
mod refused;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::KeyValue;
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use self::background::Background;
pub use self::refused::{Refused, TRY_AGAIN, Undecided};
use crate::boot_clock::BootClock;
use crate::config::Settings;
use crate::deadline_timer::within;
use crate::fencing::epochs::{EpochTable, EpochTableSetup, RequestLimits, Waiter, Want};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::lease::Lease;
use crate::metrics::{CheckResult, DecidedBy, Metrics};
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::reckoning::Reckoning;
use crate::store::routes::RouteRecord;
use crate::store::{InstanceId, MarkStore, UnknownCount};
use crate::throttle::Throttle;
use crate::traces::RequestTrace;
use crate::worker;

/// The arguments of [`Fencing::start`].
pub struct FencingSetup<'a> {
    pub store: Arc<dyn MarkStore>,
    pub settings: &'a Settings,
    pub metrics: Arc<Metrics>,
    /// The route tables of this instance and of the others.
    pub routes: Arc<RouteRecord>,
    /// The id of this instance until it rejoins.
    pub instance: InstanceId,
    /// The runtimes that serve requests, in the order of their numbers.
    pub workers: &'a [Handle],
}

/// Decides about tokens. One for each process.
pub struct Fencing {
    store: Arc<dyn MarkStore>,
    epoch_table: Arc<EpochTable>,
    lease: Arc<Lease>,
    detector: FailureDetector,
    metrics: Arc<Metrics>,
    /// How many requests resources may have.
    room: RequestLimits,
    /// How many requests wait, at all resources.
    crowd: AtomicUsize,
    /// Batches that the store did not take.
    refused_batches: Throttle,
    /// From when on marks may be deleted by the prune that was announced last. Held for a look.
    announcement: Mutex<Option<Instant>>,
    /// As the upkeep has counted them last. Held for a look.
    unknown_operations: Mutex<UnknownCount>,
    /// How long the store may take over an answer.
    timeout: Duration,
    /// An unknown outcome counts as in flight for so long.
    settle: Duration,
}

impl Fencing {
    /// The parts. No lane runs yet.
    fn assemble(setup: &FencingSetup<'_>, clock: BootClock) -> Arc<Self> {
        let (store, settings) = (&setup.store, setup.settings);
        let limits = &settings.limits;
        let reckoning = reckoning(&**store, settings);
        let lease = Lease::new(clock, settings.store.lease.0, setup.instance);
        let epoch_table = EpochTable::new(EpochTableSetup {
            capacity: settings.store.cached_marks.get(),
            settle: settings.barrier.settle.0,
            quarantine_time: reckoning.after_loss(),
            lanes: store.lanes(),
            workers: setup.workers.len(),
            shared: store.shared(),
            metrics: Arc::clone(&setup.metrics),
        });
        Arc::new(Self {
            store: Arc::clone(store),
            epoch_table: Arc::new(epoch_table),
            lease: Arc::new(lease.cutting_after(reckoning.cutoff())),
            detector: FailureDetector::new(reckoning),
            metrics: Arc::clone(&setup.metrics),
            room: RequestLimits {
                queue: settings.barrier.queue.get(),
                share: limits.in_flight_per_resource(),
                waiting: limits.waiting(),
            },
            crowd: AtomicUsize::new(0),
            refused_batches: Throttle::of_repeats(),
            announcement: Mutex::default(),
            unknown_operations: Mutex::default(),
            timeout: settings.store.timeout.0,
            settle: settings.barrier.settle.0,
        })
    }

    /// Answers from memory alone. Returns whether the token's epoch is open here.
    ///
    /// # Errors
    ///
    /// A mark above the token is known.
    pub fn unless_known_stale(
        &self,
        key: &ResourceKey,
        token: Token,
        trace: Option<&RequestTrace>,
    ) -> Result<bool, Refused> {
        let now = Instant::now();
        let recalled = self.recall(key, token, now);
        if let Err(stale @ Refused::Stale { .. }) = recalled {
            self.checked(CheckResult::StaleToken, (now, now), trace);
            return Err(stale);
        }
        Ok(recalled.unwrap_or(false))
    }

    fn recall(&self, key: &ResourceKey, token: Token, now: Instant) -> Result<bool, Refused> {
        let incarnation = self.lease.incarnation();
        self.epoch_table.recall(key, token, incarnation, now)
    }

    /// Raises the mark to the token, and opens nothing. `needs`: the bounds that hold; an operator
    /// has none. Returns whether this has raised it.
    ///
    /// # Errors
    ///
    /// The mark is above the token, or the token is not believed, or the store gave no answer.
    pub async fn raise(
        &self,
        needs: Option<Needs>,
        key: &ResourceKey,
        token: Token,
    ) -> Result<bool, Refused> {
        let needs = needs.unwrap_or_default();
        match self.append(needs, key, token, Want::Raise).await {
            // Spent or not, the mark is the token.
            Err(Refused::Spent) => Ok(false),
            raised => raised,
        }
    }

    /// Counts a check, and says in the trace what has come of it. An answer out of memory counts as
    /// no time.
    fn checked(
        &self,
        result: CheckResult,
        (began, ended): (Instant, Instant),
        trace: Option<&RequestTrace>,
    ) {
        let took = ended.duration_since(began).as_secs_f64();
        self.metrics.series.check_seconds.of(result).observe(took);
        if let Some(trace) = trace {
            let result = KeyValue::new("fencepost.check.result", result.as_str());
            trace.part("check", began, vec![result]);
        }
    }

    /// Has the next statement about the resource ask for the token, within the store's timeout. A
    /// caller that has left is skipped if the statement has not been sent yet. Returns whether this
    /// request raised the mark.
    async fn append(
        &self,
        needs: Needs,
        key: &ResourceKey,
        token: Token,
        want: Want,
    ) -> Result<bool, Refused> {
        if !self.lease.begun() {
            // The schema, the era and the key templates have not been looked at yet.
            let why = "the store has not been reached since the start";
            return Err(Refused::no_answer(why));
        }
        let (waiter, answer) = Waiter::new(token, want, needs);
        self.epoch_table.ask(key, waiter, worker::index());
        match within(self.timeout, answer).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(Refused::no_answer("the proxy is stopping")),
            None => {
                let why = format!("the store did not answer within {:?}", self.timeout);
                Err(Refused::no_answer(why))
            }
        }
    }

    /// Spends the token of a permit (`reuse: once`) under `name`. A token whose fate is unknown counts
    /// as spent.
    ///
    /// # Errors
    ///
    /// The token is stale or spent, or the store gave no answer.
    pub async fn spend(&self, key: &ResourceKey, token: Token, name: &str) -> Result<(), Refused> {
        // The token is the mark already: no bounds are left to look at.
        let want = Want::Spend(name.to_owned());
        let spent = self.append(Needs::default(), key, token, want);
        spent.await.map(drop)
    }

    /// Gives a spent token back whose request was not sent. `false`: it counts as spent.
    pub async fn give_back(&self, key: &ResourceKey, token: Token, name: String) -> bool {
        // Before the statement is sent: from now on the token may be found given back, even if no
        // answer comes.
        self.epoch_table.give_up_spent(key, &name);
        let given = self.store.give_back(key, token, &name).await;
        if let Err(error) = &given {
            self.metrics.store_failed(error);
            tracing::warn!(resource = %key, %error, "an unused token could not be given back and counts as spent");
        }
        given.is_ok()
    }

    /// Why a permit that has not begun is of no use any more: a newer token is known.
    pub fn superseded(&self, key: &ResourceKey, token: Token) -> Refused {
        match self.recall(key, token, Instant::now()) {
            Err(refused) => overtaken(refused),
            // An operator's override, say.
            Ok(_) => Refused::Unavailable(Undecided::ClosedUnsent),
        }
    }

    /// The name of this run among those that share the store.
    pub fn instance(&self) -> InstanceId {
        self.lease.identity().instance
    }

    /// The lease that every byte of a fenced request is written under.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// The store, for what operators read of it.
    pub fn store(&self) -> &dyn MarkStore {
        &*self.store
    }

    /// Sets the gauges that are only true at the moment of asking. Does not block.
    pub fn refresh_gauges(&self) {
        let left = self.lease.remaining();
        let seconds = left.map_or(f64::INFINITY, |left| left.as_secs_f64());
        self.metrics.series.lease_remaining_seconds.set(seconds);
    }
}

/// A request that was at the barrier already, and is refused: what is newer came meanwhile.
fn overtaken(refused: Refused) -> Refused {
    match refused {
        Refused::Stale { mark, .. } => Refused::stale(mark, DecidedBy::Barrier),
        other => other,
    }
}

/// How long this instance waits for what others may still do.
pub(crate) fn reckoning(store: &dyn MarkStore, settings: &Settings) -> Reckoning {
    let settle = settings.barrier.settle.0;
    if store.shared() {
        Reckoning::shared(
            settings.store.lease.0,
            settings.upstream.undelivered.0,
            settle,
        )
    } else {
        Reckoning::alone(settle)
    }
}
