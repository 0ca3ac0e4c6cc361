//! One instance over `SQLite` in a temporary directory: lease, epochs in memory, writer, barrier.

use std::sync::Arc;
use std::time::Duration;

use fencepost::boot_clock::BootClock;
use fencepost::fencing::barrier::Barrier;
use fencepost::fencing::epochs::{EpochTable, RequestLimits};
use fencepost::fencing::failure_detector::FailureDetector;
use fencepost::fencing::growth::Growth;
use fencepost::fencing::lease::Lease;
use fencepost::fencing::writer::{Want, Writer, WriterHandle, WriterSetup};
use fencepost::metrics::Metrics;
use fencepost::routing::{ResourceKey, Token, TokenFormat};
use fencepost::store::reckoning::Reckoning;
use fencepost::store::sqlite::SqliteStore;
use fencepost::store::{InstanceId, MarkStore, Terms};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

const SETTLE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(10);

pub struct Rig {
    runtime: Runtime,
    writer: WriterHandle,
    barrier: Barrier,
    /// A resource whose epoch is open with [`Self::OPEN`].
    open: ResourceKey,
    /// What [`Self::rise`] has sent last.
    risen: u64,
    _folder: TempDir,
}

impl Rig {
    const OPEN: u64 = 5;

    pub fn new() -> Self {
        // All of it on this thread, as far as it is ours: SQLite works on a thread of its own.
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let folder = TempDir::new().expect("a directory");
        let (writer, barrier) = runtime.block_on(start(&folder));
        let open = ResourceKey::new("order:open").expect("a key");
        let answer = runtime.block_on(writer.append(&open, token(Self::OPEN), Want::Open));
        assert!(answer.is_ok());
        Self {
            runtime,
            writer,
            barrier,
            open,
            risen: 0,
            _folder: folder,
        }
    }

    /// A permit for an equal token, begun and settled.
    pub fn permit(&self) {
        self.runtime.block_on(async {
            let deadline = Instant::now() + WAIT;
            let entered = self
                .barrier
                .enter(&self.open, token(Self::OPEN), deadline)
                .await;
            entered
                .expect("no refusal")
                .expect("a permit")
                .begin()
                .settled();
        });
    }

    /// A newer token for each of so many resources, all at once.
    pub fn rise(&mut self, resources: u64) {
        self.risen += 1;
        let newer = token(self.risen);
        self.runtime.block_on(async {
            let mut asked = JoinSet::new();
            for number in 0..resources {
                let writer = self.writer.clone();
                let key = ResourceKey::new(format!("order:{number}")).expect("a key");
                asked.spawn(async move { writer.append(&key, newer, Want::Open).await });
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

async fn start(folder: &TempDir) -> (WriterHandle, Barrier) {
    let path = folder.path().join("marks.db");
    let store = SqliteStore::open(path, WAIT, true, "bench").await;
    let store: Arc<dyn MarkStore> = Arc::new(store.expect("a store"));
    let reckoning = Reckoning::alone(SETTLE);
    let instance = InstanceId::from_bits(1);
    let lease = Lease::new(BootClock::boottime(), None, instance.clone());
    let lease = Arc::new(lease.cutting_after(reckoning.cutoff()));
    let detector = Arc::new(FailureDetector::new(reckoning));
    let metrics = Arc::clone(Metrics::new(&[]).store());
    let (drained_to, drained) = mpsc::unbounded_channel();
    let epoch_table = Arc::new(EpochTable::new(
        1_000_000,
        SETTLE,
        Duration::ZERO,
        drained_to,
        Arc::clone(&metrics),
    ));
    let (task, writer) = Writer::new(WriterSetup {
        store: Arc::clone(&store),
        epoch_table: Arc::clone(&epoch_table),
        lease: Arc::clone(&lease),
        detector: Arc::clone(&detector),
        metrics,
        growth: Arc::new(Growth::new(None)),
        drained,
    });
    tokio::spawn(task.run());
    let sent = lease.clock().now();
    let era = store.join(&instance, &Terms::default()).await;
    epoch_table.adopt(era.expect("joined"));
    lease.renewed(sent);
    let room = RequestLimits {
        queue: 1024,
        share: 1024,
        waiting: 1024,
    };
    (writer, Barrier::new(epoch_table, lease, detector, room))
}
