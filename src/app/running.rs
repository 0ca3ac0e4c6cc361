//! [`App`]: the running proxy, from the start of its fencing to the end of its drain.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::shutdown::{self, Shutdown, StopSignal};
use super::{LogOutput, keys, store_start};
use crate::admin::{self, AdminState, LoadedConfig};
use crate::config::{Mode, RouteTable, Settings};
use crate::fencing::{Background, Fencing, FencingSetup};
use crate::json_values::wall_clock;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::proxy::headers::Via;
use crate::rejections::Rejections;
use crate::server::{self, DrainPhases, Workers};
use crate::socket::Listener;
use crate::store::routes::RouteRecord;
use crate::store::{InstanceId, MarkStore, StoreError};

/// The time for the last spans to reach their collector.
const TRACES: Duration = Duration::from_secs(2);
/// The time for cut exchanges to end at the stop.
const AFTER_CUT: Duration = Duration::from_secs(1);

/// The proxy between its ports and its store.
pub(super) struct App {
    pub proxy: Arc<Proxy>,
    pub store: Arc<dyn MarkStore>,
    /// The state that the admin port shows.
    pub state: AdminState,
    pub log: LogOutput,
    pub loaded: watch::Sender<LoadedConfig>,
    /// Those of the start.
    pub settings: Arc<Settings>,
    /// Exchanges that go on when their connections have ended.
    tasks: TaskTracker,
    /// Tunnels end with [`DrainPhases::now`], as connections do.
    pub phases: DrainPhases,
    /// Exchanges go on there when their connections have ended.
    workers: Arc<Workers>,
    /// The admin port, which answers until the process ends.
    admin: TaskTracker,
    admin_stop: CancellationToken,
}

impl App {
    /// Starts the fencing, and builds the request path around it.
    pub(super) fn start(
        settings: Arc<Settings>,
        store: Arc<dyn MarkStore>,
        instance: InstanceId,
        log: LogOutput,
    ) -> anyhow::Result<(Arc<Self>, Background)> {
        raise_descriptors();
        let metrics = Arc::new(Metrics::new(&route_labels(&settings)));
        let dropped = metrics.series.log_lines_dropped.clone();
        let _ = log.writer.dropped.set(dropped);
        let info = &metrics.series.instance_info;
        info.with_label_values(&[&instance.name()]).set(1);
        metrics.set_config(&settings, wall_clock());
        let rejections = Arc::new(Rejections::default());
        let routes = Arc::new(RouteRecord::new(
            RouteTable::of(&settings.routes, settings.unmatched),
            metrics.series.route_table_mismatch.clone(),
        ));
        let via = Via::new(instance);
        let workers = Arc::new(Workers::start()?);
        let (fencing, background) = Fencing::start(FencingSetup {
            store: Arc::clone(&store),
            settings: &settings,
            metrics: Arc::clone(&metrics),
            routes: Arc::clone(&routes),
            instance,
            workers: workers.handles(),
        });
        let tasks = TaskTracker::new();
        let phases = DrainPhases::default();
        let proxy = Arc::new(Proxy::new(
            Arc::clone(&settings),
            Arc::clone(&fencing),
            Arc::clone(&metrics),
            tasks.clone(),
            phases.now.clone(),
            Arc::clone(&rejections),
            via,
        )?);
        let loaded = LoadedConfig::now(Arc::clone(&settings), Vec::new());
        let loaded = watch::Sender::new(loaded);
        let state = AdminState {
            fencing,
            metrics,
            rejections,
            active: proxy.active(),
            readiness: Arc::default(),
            routes,
            started: wall_clock(),
            loaded: loaded.subscribe(),
        };
        let app = Self {
            proxy,
            store,
            state,
            log,
            loaded,
            settings,
            tasks,
            phases,
            workers,
            admin: TaskTracker::new(),
            admin_stop: CancellationToken::new(),
        };
        Ok((Arc::new(app), background))
    }

    pub(super) fn serve_admin(&self, listener: Listener) {
        let stop = self.admin_stop.clone().cancelled_owned();
        let served = admin::serve(listener, self.state.clone(), stop);
        self.admin.spawn(served);
    }

    /// One attempt to join the store after a pause, unless a signal comes first. False: it cannot
    /// be reached yet.
    ///
    /// A migration may wait for minutes. A signal aborts it, and closes its connections. If the
    /// instance is recorded by then, it has forwarded nothing, and the others declare it dead.
    pub(super) async fn join(
        &self,
        background: &mut Background,
        pause: Duration,
        shutdown: &mut Shutdown,
    ) -> Result<Result<bool, StopSignal>, StoreError> {
        let attempt = async {
            tokio::time::sleep(pause).await;
            background.join().await
        };
        let findings = tokio::select! {
            joined = attempt => joined?,
            signal = shutdown.signals.next() => return Ok(Err(signal)),
        };
        let Some(findings) = findings else {
            return Ok(Ok(false));
        };
        keys::tell(&findings);
        let store = &self.store;
        if store.shared() {
            store_start::say_namespace(&**store, &self.settings.store.namespace).await;
        }
        Ok(Ok(true))
    }

    /// Begins to accept on the data port.
    pub(super) fn accept(&self, listener: Listener) -> JoinHandle<()> {
        let (proxy, workers) = (Arc::clone(&self.proxy), Arc::clone(&self.workers));
        let phases = self.phases.clone();
        tokio::spawn(server::serve(listener, proxy, phases, workers))
    }

    /// Lets requests in flight end until the deadline, and cuts the rest. Returns the deadline.
    pub(super) async fn drain(&self, port: &mut JoinHandle<()>) -> Instant {
        let settings = &self.settings.shutdown;
        tokio::time::sleep(settings.delay.0).await;
        let deadline = Instant::now() + settings.deadline.0;
        // End the connections and tunnels.
        self.phases.now.cancel();
        self.tasks.close();
        let ended = tokio::time::timeout_at(deadline, async {
            let _ = (&mut *port).await;
            self.tasks.wait().await;
        });
        if ended.await.is_err() {
            shutdown::say_what_is_cut(&self.state.fencing, settings.deadline.0);
            self.state.fencing.lease().cut();
            let _ = tokio::time::timeout(AFTER_CUT, self.tasks.wait()).await;
            // An unfenced exchange has no task of its own: it ends with its connection.
            self.phases.cut.cancel();
            // It may have ended before, with its last connection, while exchanges whose clients
            // have left went on.
            if !port.is_finished() {
                let _ = tokio::time::timeout(AFTER_CUT, port).await;
            }
        }
        deadline
    }

    /// Leaves the store and closes it. After a drain by SIGUSR1, the admin port answers until a
    /// signal ends the process.
    pub(super) async fn close(
        &self,
        background: Background,
        deadline: Instant,
        end: CancellationToken,
    ) {
        let timeout = self.settings.store.timeout.0;
        let left = deadline.saturating_duration_since(Instant::now());
        background.leave(left.max(timeout)).await;
        self.state.readiness.drained.cancel();
        if !end.is_cancelled() {
            tracing::info!("drained; SIGTERM ends the process");
            end.cancelled().await;
        }
        self.admin_stop.cancel();
        self.admin.close();
        self.admin.wait().await;
        // A file that is moved or mounted elsewhere after a stop may leave its log behind.
        if tokio::time::timeout(timeout, self.store.disconnect())
            .await
            .is_err()
        {
            tracing::warn!("the store could not be closed in time: its log stays beside the file");
        }
        // The last thing: neither the store nor a hook waits for a collector.
        self.proxy.finish_traces(TRACES).await;
    }
}

/// The labels and modes of the routes, for the metrics.
pub(super) fn route_labels(settings: &Settings) -> Vec<(String, Mode)> {
    let routes = settings.routes.iter();
    routes
        .map(|route| (route.label().to_owned(), route.mode))
        .collect()
}

/// Raises the soft limit on file descriptors to the hard one.
fn raise_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the soft limit on file descriptors could not be raised (ulimit -n)");
    }
}
