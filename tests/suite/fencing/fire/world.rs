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

use super::clients::{Clients, Hub};
use super::fault::FaultKind;
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
pub fn faketime() -> Option<PathBuf> {
    let kinds = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    kinds
        .map(|kind| kind.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
}

/// All that a history is about.
pub struct World {
    pub clients: Clients,
    /// The start of the plan's times: when all was up.
    pub began: Instant,
    pub slots: Arc<Vec<Slot>>,
    upstream: PromptUpstream,
    pub reader: Reader,
    pub place: Place,
    _tasks: JoinSet<()>,
    _store: Store,
}

/// The place of a proxy, in which it runs, dies, and runs again.
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
        let hub = Hub::new(1024);
        let store = place
            .url()
            .map_or_else(Store::sqlite, |url| Store::at(&url));
        let namespace = match place.cluster {
            Some(_) => place.name.clone(),
            None => "default".to_owned(),
        };
        let url = place.past_all().unwrap_or_else(|| store.url());
        let mut tasks = JoinSet::new();
        let reader = Reader::start(Source { url, namespace }, log.clone(), &mut tasks);
        let upstream =
            PromptUpstream::start(Arc::clone(&plan), log.clone(), hub.clone(), reader.clone())
                .await;
        let mut slots = Vec::new();
        for nth in 0..plan.proxies {
            let relay = match &place.cluster {
                Some(cluster) => Some(Relay::start(cluster.port()).await),
                None => None,
            };
            let path = Path::start(upstream.address());
            let slot = Slot::new(&plan, path, &store, &place.name, relay);
            let dies = nth == 0 && plan.has(FaultKind::DieAtSync);
            let proxy = slot.launch(dies.then_some(plan.dies_at_sync)).await;
            slot.fill(&mut *slot.proxy.lock().await, proxy);
            slots.push(slot);
        }
        let slots = Arc::new(slots);
        let listening = Arc::clone(&slots);
        Self {
            clients: Clients {
                plan,
                log,
                hub,
                directory: Arc::new(move |nth| listening[nth].address()),
            },
            began: Instant::now(),
            slots,
            upstream,
            reader,
            place,
            _tasks: tasks,
            _store: store,
        }
    }

    /// Ends every proxy; returns what each has written, and the place.
    pub async fn end(self) -> (Vec<String>, Place) {
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
        (said, self.place)
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
        let clock = plan.has(FaultKind::Jump).then(|| {
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

    fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().expect("no panics")
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
