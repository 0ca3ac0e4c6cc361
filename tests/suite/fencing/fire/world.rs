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

use super::clients::Clients;
use super::fault::FaultKind;
use super::log::Log;
use super::marks::Reader;
use super::park::Place;
use super::plan::{BODY_MAX, BUFFER, Plan, Transport};
use super::upstream::PromptUpstream;
use crate::support::path::{Cut, Path};
use crate::support::proxy::fencepost;
use crate::support::relay::Relay;
use crate::support::store::quick_dir;
use crate::support::{Config, Proxy, Store};

/// Everything else that a history waits for is short, so that each of these waits occurs.
const TIMES: &str = "{ upstream: { timeout: 450ms, connect_timeout: 500ms, undelivered: 600ms },
    barrier: { wait: 700ms, grace: 500ms, settle: 4s } }";

/// The configuration of a proxy in front of this upstream. The times of the store are the defaults.
pub fn config(upstream: &str, store: &Store, namespace: &str) -> Config {
    Config::to(upstream, store)
        .with(TIMES)
        .with(&format!("body: {{ buffer: {BUFFER}B, max: {BODY_MAX}B }}"))
        .with(&format!("store: {{ namespace: {namespace} }}"))
        .route("methods: [PUT, POST, DELETE]")
}

/// The library that makes a process's wall clock another one, where Debian puts it on this
/// machine's kind.
pub fn faketime() -> Option<PathBuf> {
    let kind = format!("{}-linux-gnu", std::env::consts::ARCH);
    let library = PathBuf::from("/usr/lib")
        .join(kind)
        .join("faketime/libfaketimeMT.so.1");
    library.exists().then_some(library)
}

/// All that a history is about.
pub struct World {
    pub clients: Clients,
    /// The start of the plan's times: when all was up.
    pub began: Instant,
    pub slots: Vec<Slot>,
    upstream: PromptUpstream,
    pub reader: Reader,
    pub place: Place,
    _tasks: JoinSet<()>,
}

/// The place of a proxy, in which it runs, dies, and runs again.
pub struct Slot {
    config: Config,
    /// To Postgres.
    pub relay: Option<Relay>,
    /// To the upstream.
    pub path: Path,
    /// Has the file that says how far its wall clock is off; `None`: it has the machine's.
    pub clock: Option<TempDir>,
    /// `None`: it is dead. The one who acts on the proxy has the turn for as long as that
    /// takes.
    pub proxy: Turn<Option<Proxy>>,
    /// Short sections, never across an await.
    address: Arc<Mutex<Option<SocketAddr>>>,
}

impl World {
    /// Starts everything.
    pub async fn start(plan: Arc<Plan>, place: Place, log: Log) -> Self {
        let (clients, mut tasks) = (Clients::of(plan, log), JoinSet::new());
        let reader = Reader::start(place.source.clone(), clients.log.clone(), &mut tasks);
        let upstream = PromptUpstream::start(&clients, &reader, &mut tasks).await;
        let mut slots = Vec::new();
        for nth in 0..clients.plan.proxies {
            slots.push(Slot::start(&clients, nth, &place, upstream.address).await);
        }
        Self {
            clients,
            began: Instant::now(),
            slots,
            upstream,
            reader,
            place,
            _tasks: tasks,
        }
    }

    /// Ends every proxy; returns the place.
    pub async fn end(self) -> Place {
        for slot in &self.slots {
            if let Some(proxy) = slot.proxy.lock().await.take() {
                slot.bury(proxy, &self.clients.log);
            }
            // Some of its connections may not know that the proxy is gone.
            slot.path.cut(Cut::Reset);
        }
        self.upstream.rest().await;
        self.place
    }
}

impl Slot {
    /// The nth, with its first run.
    async fn start(clients: &Clients, nth: usize, place: &Place, upstream: SocketAddr) -> Self {
        let (plan, path) = (&clients.plan, Path::start(upstream));
        let relay = match &place.cluster {
            Some(cluster) => Some(Relay::start(cluster.port()).await),
            None => None,
        };
        let scheme = match plan.transport {
            Transport::Http1 => "http",
            Transport::Http2(..) => "h2c",
        };
        let upstream = format!("{scheme}://{}", path.address());
        let (url, namespace) = (place.store.url(), &place.source.namespace);
        let url = relay.as_ref().map_or(url.clone(), |relay| relay.url(&url));
        let times = format!("store: {{ url: '{url}', lease: 1s, timeout: 800ms }}");
        let config = config(&upstream, &place.store, namespace).with(&times);
        let slot = Self {
            config,
            relay,
            path,
            clock: plan.has(FaultKind::Jump).then(quick_dir),
            proxy: Turn::new(None),
            address: Arc::clone(&clients.directory[nth]),
        };
        slot.jump("+0");
        let dies = nth == 0 && plan.has(FaultKind::DieAtSync);
        let proxy = slot.launch(dies.then_some(plan.dies_at_sync)).await;
        slot.fill(&mut *slot.proxy.lock().await, proxy);
        slot
    }

    /// Has its wall clock, if it is its own, be so far off.
    pub fn jump(&self, by: &str) {
        if let Some(dir) = &self.clock {
            // In one step: a clock file that is half written is no time at all.
            let [new, clock] = ["new", "clock"].map(|file| dir.path().join(file));
            std::fs::write(&new, by).expect("the directory is writable");
            std::fs::rename(&new, clock).expect("the directory is writable");
        }
    }

    /// Starts a run. `dies`: at which sync of its file.
    pub async fn launch(&self, dies: Option<u32>) -> Proxy {
        if let Some(nth) = dies {
            let mut runner = Command::new("strace");
            runner.args([
                "-D",
                "-f",
                "-o",
                "/dev/null",
                "-e",
                "trace=fsync,fdatasync",
                "-e",
            ]);
            runner.arg(format!("inject=fsync,fdatasync:signal=SIGKILL:when={nth}"));
            return Proxy::start_under(&self.config, runner).await;
        }
        let mut command = fencepost();
        if let (Some(clock), Some(library)) = (&self.clock, faketime()) {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", clock.path().join("clock"))
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("NO_FAKE_STAT", "1");
        }
        Proxy::start_by(&self.config, command, &[]).await
    }

    /// Has it load a configuration that differs in what its connections to the upstream are like.
    pub fn reload(&self, proxy: &Proxy) {
        proxy.reload(&self.config.clone().with("upstream: { idle_timeout: 5s }"));
    }

    /// Puts a new run into the place whose turn the caller has.
    pub fn fill(&self, place: &mut Option<Proxy>, proxy: Proxy) {
        *self.address.lock().expect("no panics") = Some(proxy.data());
        *place = Some(proxy);
    }

    /// SIGKILL, and keeps what it said.
    pub fn bury(&self, mut proxy: Proxy, log: &Log) {
        *self.address.lock().expect("no panics") = None;
        proxy.kill9();
        log.note(format!("it said:\n{}", proxy.process().lines().join("\n")));
    }
}
