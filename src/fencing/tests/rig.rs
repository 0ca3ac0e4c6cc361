//! [`Rig`]: one instance over a store, on tokio's clock.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::boot_clock::BootClock;
use crate::config::Mode;
use crate::config::{self, Count, Positive, RouteTable, Settings, Span, Unmatched};
use crate::fencing::epochs::{Entered, RequestLimits, ResourceActivity, Want};
use crate::fencing::membership::Membership;
use crate::fencing::permit::Permit;
use crate::fencing::refused::{Refused, Undecided};
use crate::fencing::{Fencing, FencingSetup};
use crate::metrics::Metrics;
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::routes::RouteRecord;
use crate::store::{InstanceId, MarkStore, Signature};

/// Room for all that a test has.
pub const ROOM: RequestLimits = RequestLimits {
    queue: 9,
    share: usize::MAX,
    waiting: usize::MAX,
};

pub(crate) const SETTLE: Duration = Duration::from_secs(30);
pub(crate) const UNDELIVERED: Duration = Duration::from_secs(10);
pub(crate) const TERM: Duration = Duration::from_secs(5);

/// How long this instance waits after another's death, and after a loss: see [`Reckoning`].
pub(crate) const DEATH: Duration = Duration::from_secs(48);
pub(crate) const LOSS: Duration = Duration::from_secs(54);
/// How long a counter must stand still.
pub(crate) const SILENCE: Duration = Duration::from_secs(6);

/// One instance, with its lanes running. A test steps the membership task by hand.
pub(crate) struct Rig(pub(crate) Arc<Fencing>);

impl Deref for Rig {
    type Target = Fencing;

    fn deref(&self) -> &Fencing {
        &self.0
    }
}

pub(crate) fn key(text: &str) -> ResourceKey {
    ResourceKey::new(text).expect("a key")
}

pub(crate) fn token(number: i64) -> Token {
    Token::new(number).expect("a token")
}

pub(crate) fn signed(reason: &str, actor: &str) -> Signature {
    Signature {
        reason: reason.to_owned(),
        actor: actor.to_owned(),
    }
}

/// tokio's clock, so that a paused one drives leases too.
pub(crate) fn clock() -> BootClock {
    let start = Instant::now();
    BootClock::from_fn(move || start.elapsed() + Duration::from_secs(1))
}

/// Asserts a refusal because what was lost is being written back.
#[track_caller]
#[allow(
    clippy::needless_pass_by_value,
    reason = "callers have just asked for it"
)]
pub(crate) fn assert_repairing<T: Debug>(outcome: Result<T, Refused>) {
    assert!(
        matches!(outcome, Err(Refused::Unavailable(Undecided::Repairing(_)))),
        "{outcome:?}"
    );
}

fn settings() -> Settings {
    let text = "upstream: { url: 'http://127.0.0.1:9' }";
    let parsed = config::parse(text, &config::Overrides::default());
    let (mut settings, _) = parsed.expect("a configuration");
    settings.store.lease = Span(TERM);
    settings.store.timeout = Positive::seconds(20);
    settings.store.cached_marks = Count(1000);
    settings.barrier.settle = Span(SETTLE);
    settings.upstream.undelivered = Span(UNDELIVERED);
    settings
}

fn routes(metrics: &Metrics) -> Arc<RouteRecord> {
    let mismatch = metrics.series.route_table_mismatch.clone();
    Arc::new(RouteRecord::new(
        RouteTable::of(&[], Unmatched::Refuse),
        mismatch,
    ))
}

async fn admit(fencing: &Arc<Fencing>, key: &ResourceKey, token: Token) -> Permit {
    let route = fencing.metrics.route("/orders/{id}");
    let admitted = fencing.admit(
        Needs::default(),
        (key, token),
        false,
        SETTLE,
        (&route, None),
    );
    admitted.await.expect("a permit").permit
}

impl Rig {
    /// An instance that has joined.
    pub(crate) async fn new(store: Arc<dyn MarkStore>, id: u64, clock: BootClock) -> Self {
        let rig = Self::assemble(store, id, clock, ROOM);
        rig.0.start_lanes(&[]).detach_all();
        rig.membership().join().await.expect("joined");
        rig
    }

    /// The same, and no statement of a request is sent.
    pub(crate) async fn without_lanes(store: Arc<dyn MarkStore>, id: u64) -> Self {
        let rig = Self::assemble(store, id, clock(), ROOM);
        rig.membership().join().await.expect("joined");
        rig
    }

    /// One that has not joined, with this much room for requests.
    pub(crate) fn assemble(
        store: Arc<dyn MarkStore>,
        id: u64,
        clock: BootClock,
        room: RequestLimits,
    ) -> Self {
        let mut settings = settings();
        if !store.shared() {
            // It does not end within a test.
            settings.store.lease = Span(Duration::from_hours(1_000_000));
        }
        let metrics = Arc::new(Metrics::new(&[("/orders/{id}".into(), Mode::Enforce)]));
        let setup = FencingSetup {
            store,
            settings: &settings,
            routes: routes(&metrics),
            metrics,
            instance: InstanceId::from_bits(id),
            workers: &[],
        };
        let mut fencing = Fencing::assemble(&setup, clock);
        Arc::get_mut(&mut fencing).expect("one owner").room = room;
        Self(fencing)
    }

    /// The mark known here.
    pub(crate) fn known(&self, on: &str) -> Option<i64> {
        match self.recall(&key(on), token(0), Instant::now()) {
            Err(Refused::Stale { mark, .. }) => Some(mark.get()),
            _ => None,
        }
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Raises the mark, and opens an epoch.
    pub(crate) async fn open(&self, on: &str, number: i64) -> Result<bool, Refused> {
        self.append(Needs::default(), &key(on), token(number), Want::Open)
            .await
    }

    /// The last look of the barrier.
    pub(crate) fn enter(&self, on: &str, number: i64) -> Result<Entered, Refused> {
        let boot = self.lease.clock().now();
        let left = |id| self.detector.settles_in(id, boot);
        let (incarnation, now) = (self.lease.incarnation(), Instant::now());
        self.epoch_table
            .enter(&key(on), token(number), incarnation, left, now)
    }

    /// Whether a request passes; it is then in flight.
    pub(crate) fn passes(&self, on: &str, number: i64) -> bool {
        matches!(self.enter(on, number), Ok(Entered::Permit(_)))
    }

    /// A permit, where nothing older is in flight.
    pub(crate) async fn admit(&self, on: &str, number: i64) -> Permit {
        admit(&self.0, &key(on), token(number)).await
    }

    /// The same in a task of its own, which may have to wait.
    pub(crate) fn spawn_admit(&self, on: &str, number: i64) -> JoinHandle<Permit> {
        let (fencing, key) = (Arc::clone(&self.0), key(on));
        tokio::spawn(async move { admit(&fencing, &key, token(number)).await })
    }

    /// One renewal, and one look at the other instances.
    pub(crate) async fn round(&self) {
        self.membership().round().await.expect("a round");
    }

    /// Runs the membership task, until the token that it returns is cancelled or the test ends.
    pub(crate) fn run(&self) -> CancellationToken {
        let stop = CancellationToken::new();
        let (membership, stopped) = (Arc::new(self.membership()), stop.clone());
        tokio::spawn(async move { stopped.run_until_cancelled(membership.run()).await });
        stop
    }

    pub(crate) fn activity(&self, key: &ResourceKey) -> ResourceActivity {
        self.epoch_table.activity(key, Instant::now())
    }

    /// How many requests wait here for older ones.
    pub(crate) fn waiting(&self, key: &ResourceKey) -> usize {
        self.activity(key).waiting
    }

    /// How many permits of the resource have not ended, and how many ended without a whole
    /// response.
    pub(crate) fn in_flight(&self, key: &ResourceKey) -> (usize, usize) {
        let activity = self.activity(key);
        (activity.in_flight, activity.unknown.len())
    }

    pub(crate) fn membership(&self) -> Membership {
        self.membership_with(routes(&self.metrics))
    }

    pub(crate) fn membership_with(&self, routes: Arc<RouteRecord>) -> Membership {
        Membership::new(Arc::clone(&self.0), &settings(), routes)
    }
}
