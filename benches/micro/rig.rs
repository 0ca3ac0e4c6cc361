//! One instance over `SQLite` in a temporary directory, without a network.

use std::sync::Arc;
use std::time::Duration;

use fencepost::config::Create;
use fencepost::config::{self, RouteTable};
use fencepost::fencing::permit::Admitted;
use fencepost::fencing::{Background, Fencing, FencingSetup};
use fencepost::metrics::{Metrics, RouteMetrics};
use fencepost::routing::{Needs, ResourceKey, Token, TokenFormat};
use fencepost::store::routes::RouteRecord;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{InstanceId, MarkStore};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const WAIT: Duration = Duration::from_secs(10);

pub struct Rig {
    runtime: Runtime,
    fencing: Arc<Fencing>,
    route: Arc<RouteMetrics>,
    /// A resource whose epoch is open with [`Self::OPEN`].
    open: ResourceKey,
    /// What [`Self::rise`] has sent last.
    risen: u64,
    _background: Background,
    _folder: TempDir,
}

impl Rig {
    const OPEN: u64 = 5;

    pub fn new() -> Self {
        // All of it on this thread, as far as it is ours: SQLite works on a thread of its own.
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let folder = TempDir::new().expect("a directory");
        let metrics = Arc::new(Metrics::new(&[]));
        let (fencing, mut background) = runtime.block_on(start(&folder, Arc::clone(&metrics)));
        let joined = runtime.block_on(background.join());
        joined.expect("a store").expect("joined");
        let rig = Self {
            runtime,
            fencing,
            route: metrics.route("bench"),
            open: ResourceKey::new("order:open").expect("a key"),
            risen: 0,
            _background: background,
            _folder: folder,
        };
        rig.permit();
        rig
    }

    /// A permit for an equal token, begun and settled.
    pub fn permit(&self) {
        self.runtime.block_on(async {
            let admitted = self.admit(&self.open, Self::OPEN).await;
            admitted.permit.begin().settled();
        });
    }

    async fn admit(&self, key: &ResourceKey, number: u64) -> Admitted {
        let watch = (&*self.route, None);
        let subject = (key, token(number));
        let admitted = self
            .fencing
            .admit(Needs::default(), subject, false, WAIT, watch);
        admitted.await.expect("a permit")
    }

    /// A newer token for each of so many resources, all at once.
    pub fn rise(&mut self, resources: u64) {
        self.risen += 1;
        let newer = token(self.risen);
        self.runtime.block_on(async {
            let mut asked = JoinSet::new();
            for number in 0..resources {
                let fencing = Arc::clone(&self.fencing);
                let key = ResourceKey::new(format!("order:{number}")).expect("a key");
                asked.spawn(async move { fencing.raise(None, &key, newer).await });
            }
            for answer in asked.join_all().await {
                assert!(matches!(answer, Ok(true)));
            }
        });
    }
}

fn token(number: u64) -> Token {
    let digits = number.to_string();
    TokenFormat::Decimal
        .parse(digits.as_bytes())
        .expect("a token")
}

async fn start(folder: &TempDir, metrics: Arc<Metrics>) -> (Arc<Fencing>, Background) {
    let path = folder.path().join("marks.db");
    let store = SqliteStore::open(path, WAIT, true, "bench", Create::IfMissing).await;
    let store: Arc<dyn MarkStore> = Arc::new(store.expect("a store"));
    let text = "upstream: { url: 'http://127.0.0.1:9' }";
    let parsed = config::parse(text, &config::Overrides::default());
    let (settings, _) = parsed.expect("a configuration");
    let mismatch = metrics.series.route_table_mismatch.clone();
    let routes = RouteRecord::new(
        RouteTable::of(&settings.routes, settings.unmatched),
        mismatch,
    );
    Fencing::start(FencingSetup {
        store,
        settings: &settings,
        metrics,
        routes: Arc::new(routes),
        instance: InstanceId::from_bits(1),
        workers: &[],
    })
}
