//! The world of one history: a store, one or two proxies that come and go, and the upstream.
//! Each proxy has a path of its own to the upstream, and a relay of its own to Postgres where there
//! is one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tempfile::TempDir;
use tokio::sync::Mutex as Turn;
use tokio::task::JoinSet;

use super::clients::{Directory, resource};
use super::hub::Hub;
use super::log::Log;
use super::marks::{Reader, Source};
use super::park::Place;
use super::plan::{BODY_MAX, BUFFER, Plan, Transport};
use super::upstream::PromptUpstream;
use crate::support::path::{Cut, Path};
use crate::support::proxy::fencepost;
use crate::support::relay::Relay;
use crate::support::{Config, Proxy, Store};

/// Everything else that a history waits for is short, so that each of these waits occurs.
const TIMES: &str = "{ upstream: { timeout: 450ms, connect_timeout: 500ms, undelivered: 600ms },
    barrier: { wait: 700ms, grace: 500ms, settle: 4s },
    store: { lease: 1s, timeout: 800ms } }";

/// The library that makes a process's wall clock another one, where Debian puts it on this
/// machine's kind.
fn faketime() -> Option<PathBuf> {
    let kinds = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    kinds
        .map(|kind| kind.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
}

/// Returns whether the wall clock of a proxy can be made to jump here.
pub fn clocks_can_jump() -> bool {
    faketime().is_some()
}

/// All that a history is about.
pub struct World {
    pub plan: Arc<Plan>,
    pub log: Log,
    /// The start of the plan's times: when all was up.
    pub began: Instant,
    pub hub: Arc<Hub>,
    pub slots: Arc<Vec<Slot>>,
    pub upstream: PromptUpstream,
    pub reader: Reader,
    pub place: Place,
    _tasks: JoinSet<()>,
    _store: Store,
}

/// Where a proxy runs, dies, and runs again.
pub struct Slot {
    config: Config,
    /// To Postgres.
    pub relay: Option<Relay>,
    /// To the upstream.
    pub path: Path,
    /// The file that says how far its wall clock is off; `None`: it has the machine's.
    pub clock: Option<PathBuf>,
    /// A directory for that file.
    _dir: TempDir,
    /// `None`: it is dead. The one who acts on the proxy has the turn for as long as that
    /// takes.
    pub proxy: Turn<Option<Proxy>>,
    /// Short sections, never across an await.
    address: Mutex<Option<SocketAddr>>,
    /// The output of earlier runs. Short sections, never across an await.
    said: Mutex<Vec<String>>,
}

impl World {
    /// Starts everything.
    pub async fn start(plan: Arc<Plan>, place: Place, log: Log) -> Self {
        let hub = Arc::new(Hub::default());
        let store = place
            .url()
            .map_or_else(Store::sqlite, |url| Store::at(&url));
        let source = match place.past_all() {
            Some(url) => Source::Postgres(url, place.name().to_owned()),
            None => Source::Sqlite(store.url().replacen("sqlite:", "", 1).into()),
        };
        let mut tasks = JoinSet::new();
        let reader = Reader::start(source, log.clone(), &mut tasks);
        let upstream = PromptUpstream::start(
            Arc::clone(&plan),
            log.clone(),
            Arc::clone(&hub),
            reader.clone(),
        )
        .await;
        let mut slots = Vec::new();
        for nth in 0..plan.ground.proxies() {
            let relay = match place.cluster() {
                Some(cluster) => Some(Relay::start(cluster.port()).await),
                None => None,
            };
            let path = Path::start(upstream.address());
            let slot = Slot::new(&plan, path, &store, place.name(), relay);
            let dies = plan.dies_at_sync.filter(|_| nth == 0);
            slot.put(slot.launch(dies).await).await;
            slots.push(slot);
        }
        Self {
            plan,
            log,
            began: Instant::now(),
            hub,
            slots: Arc::new(slots),
            upstream,
            reader,
            place,
            _tasks: tasks,
            _store: store,
        }
    }

    /// Where the proxies listen, for clients.
    pub fn directory(&self) -> Directory {
        let slots = Arc::clone(&self.slots);
        Arc::new(move |nth| slots[nth].address())
    }

    /// Ends every proxy; returns what each has written.
    pub async fn end(&self) -> Vec<String> {
        let mut said = Vec::new();
        for slot in self.slots.iter() {
            if let Some(proxy) = slot.proxy.lock().await.take() {
                slot.bury(proxy);
            }
            said.extend(std::mem::take(&mut *slot.said.lock().expect("no panics")));
            // Some of its connections may not know that the proxy is gone.
            slot.path.cut(Cut::Reset);
        }
        self.upstream.rest().await;
        said
    }
}

impl Slot {
    fn new(plan: &Plan, path: Path, store: &Store, namespace: &str, relay: Option<Relay>) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let scheme = match plan.transport {
            Transport::Http1 => "http",
            Transport::Http2 { .. } => "h2c",
        };
        let upstream = format!("{scheme}://{}", path.address());
        let mut config = Config::to(&upstream, store)
            .with(TIMES)
            .with(&format!("body: {{ buffer: {BUFFER}B, max: {BODY_MAX}B }}"))
            .route("methods: [PUT, POST, DELETE]");
        if let Some(relay) = &relay {
            let url = relay.url(&store.url());
            let block = format!("store: {{ url: '{url}', namespace: {namespace} }}");
            config = config.with(&block);
        }
        let clock = plan.jumps.then(|| {
            let file = dir.path().join("clock");
            std::fs::write(&file, "+0").expect("the directory is writable");
            file
        });
        Self {
            config,
            relay,
            path,
            clock,
            _dir: dir,
            proxy: Turn::new(None),
            address: Mutex::new(None),
            said: Mutex::default(),
        }
    }

    /// Starts a run. `dies`: at which sync of its file.
    pub async fn launch(&self, dies: Option<u32>) -> Proxy {
        if let Some(nth) = dies {
            let mut runner = Command::new("strace");
            runner.args(["-D", "-f", "-o", "/dev/null"]);
            runner.args(["-e", "trace=fsync,fdatasync", "-e"]);
            runner.arg(format!("inject=fsync,fdatasync:signal=SIGKILL:when={nth}"));
            return Proxy::start_under(&self.config, runner).await;
        }
        let mut command = fencepost();
        if let (Some(clock), Some(library)) = (&self.clock, faketime()) {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", clock)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("NO_FAKE_STAT", "1");
        }
        Proxy::start_by(&self.config, command, &[]).await
    }

    /// Has it load a configuration that differs in what its connections to the upstream are like.
    pub fn reload(&self, proxy: &Proxy) {
        let other = self.config.clone().with("upstream: { idle_timeout: 5s }");
        proxy.rewrite(&other);
        proxy.hang_up();
    }

    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().expect("no panics")
    }

    async fn put(&self, proxy: Proxy) {
        *self.address.lock().expect("no panics") = Some(proxy.data());
        *self.proxy.lock().await = Some(proxy);
    }

    /// Puts a new run into the place whose turn the caller has.
    pub fn fill(&self, place: &mut Option<Proxy>, proxy: Proxy) {
        *self.address.lock().expect("no panics") = Some(proxy.data());
        *place = Some(proxy);
    }

    /// SIGKILL, and keeps what it said.
    pub fn bury(&self, mut proxy: Proxy) {
        *self.address.lock().expect("no panics") = None;
        proxy.kill9();
        let mut said = self.said.lock().expect("no panics");
        said.push("--- a run of a proxy ---".to_owned());
        said.extend(proxy.process().lines());
    }
}

/// The keys of a plan's resources.
pub fn keys(plan: &Plan) -> Vec<String> {
    (0..plan.all_resources())
        .map(|nth| format!("order:{}", resource(nth)))
        .collect()
}
