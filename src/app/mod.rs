//! The one place that wires everything. [`App::bind`] opens the store and binds the ports;
//! [`Bound::run`] serves until a signal stops it.

mod keys;
pub(crate) mod listen;
mod log_writer;
mod reload;
mod shutdown;
mod store_start;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::listen::bind;
use self::reload::{Live, route_labels};
use self::shutdown::StopSignal;
use crate::admin::{self, AdminState, LoadedConfig, Readiness};
use crate::config::{self, Loader, RouteTable, Settings, Warning};
use crate::fencing::{Background, Fencing, FencingSetup, Running};
use crate::json_values::wall_clock;
use crate::log_filter::LogFilter;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::proxy::headers::Via;
use crate::rejections::Rejections;
use crate::server::{self, DrainPhases, Workers};
use crate::socket::Listener;
use crate::store::routes::RouteRecord;
use crate::store::{InstanceId, MarkStore, StoreError};

pub use keys::{Migration, migrate};
pub use log_writer::{LogOutput, LogWriter};
pub use shutdown::Shutdown;

/// The pause between two attempts to reach the store at the start.
const START_AGAIN: Duration = Duration::from_millis(500);
/// The time for the last spans to reach their collector.
const TRACES: Duration = Duration::from_secs(2);
/// The time for cut exchanges to end at the stop.
const AFTER_CUT: Duration = Duration::from_secs(1);

/// Runs the proxy until a signal ends it.
pub async fn serve(
    loader: Loader,
    settings: Settings,
    warnings: Vec<Warning>,
    log: LogOutput,
    instance: InstanceId,
) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    for warning in &warnings {
        tracing::warn!(%warning, "configuration");
    }
    let bound = App::bind(settings, instance).await?;
    let shutdown = Shutdown::on_signals(log.writer.clone())?;
    bound.run(loader, log, shutdown).await
}

/// A proxy whose store is open and whose ports are bound. It does not accept yet.
#[must_use = "nothing is accepted until it runs"]
pub struct Bound {
    /// The address of the data port: `host:port`, or `unix:` and a path.
    pub data: String,
    /// The address of the admin port. `None`: it is off.
    pub admin: Option<String>,
    instance: InstanceId,
    settings: Arc<Settings>,
    store: Arc<dyn MarkStore>,
    data_listener: Listener,
    admin_listener: Option<Listener>,
}

impl Bound {
    /// Serves until `shutdown` ends it: starts the fencing, serves, waits, drains, closes. Reloads
    /// the configuration from `loader`, on SIGHUP and when a file has changed.
    pub async fn run(
        self,
        loader: Loader,
        log: LogOutput,
        mut shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        let hangups = signal(SignalKind::hangup())?;

        // Start the fencing, and the tasks beside it.
        let (settings, filter) = (self.settings, Arc::clone(&log.filter));
        let (app, background) = App::start(settings, self.store, self.instance, filter)?;
        tokio::spawn(log.writer.count_dropped(Arc::clone(&app.live.metrics)));
        if let Some(listener) = self.admin_listener {
            app.serve_admin(listener);
        }

        // Serve. One attempt to join is made before the first request is accepted, so that a normal
        // start refuses no request. A store that cannot be reached delays no start: unfenced
        // requests pass, and fenced ones are refused until it can be reached.
        let now = Duration::ZERO;
        let mut joined = app.join(&background, now, &mut shutdown).await?;
        let phases = DrainPhases::default();
        let mut port = app.accept(self.data_listener, phases.clone());
        tracing::info!(data = self.data, admin = self.admin.as_deref(), "listening");
        tracing::info!("{}", config::summary(&app.settings));
        while joined == Ok(false) {
            joined = app.join(&background, START_AGAIN, &mut shutdown).await?;
        }
        // A stop before the store was reached leaves nothing to clean up in it.
        let mut running = background.run(joined == Ok(true));
        if joined == Ok(true) {
            app.readiness.set_store_reached();
        }
        let reloads = reload::watch(hangups, loader, Arc::clone(&app.settings), app.live.clone());
        let reloads = tokio::spawn(reloads);

        // Wait for a signal. If a lane or the membership task fails, every fenced request would
        // be refused for ever, so the process ends and a new one can start.
        let signal = if let Err(signal) = joined {
            signal
        } else {
            tokio::select! {
                biased;
                signal = shutdown.signals.next() => signal,
                failed = running.failed() => anyhow::bail!(failed),
            }
        };

        // Drain.
        tracing::info!(signal = signal.name, "draining");
        // In this order: once a client can find the proxy unready, every answer also announces the
        // end of its connection.
        phases.announced.cancel();
        app.readiness.draining.cancel();
        reloads.abort();
        let end = shutdown.handle_during_drain(signal);
        let deadline = app.drain(&mut port, &phases).await;

        // Close.
        app.close(running, deadline, end).await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// The proxy between its ports and its store.
pub struct App {
    live: Live,
    settings: Arc<Settings>,
    rejections: Arc<Rejections>,
    readiness: Arc<Readiness>,
    /// Exchanges that go on when their connections have ended.
    tasks: TaskTracker,
    /// Cancelled once tunnels must end.
    tunnels: CancellationToken,
    /// Exchanges go on there when their connections have ended.
    workers: Arc<Workers>,
    /// The admin port, which answers until the process ends.
    admin: TaskTracker,
    admin_stop: CancellationToken,
}

impl App {
    /// Opens the store and binds the ports.
    pub async fn bind(settings: Arc<Settings>, instance: InstanceId) -> anyhow::Result<Bound> {
        let store = store_start::open(&settings, &instance).await?;
        let (data_listener, data) =
            bind(&settings.listen, settings.listen_mode.map(|mode| mode.0)).await?;
        let (admin_listener, admin) = match &settings.admin.listen.0 {
            Some(listen) => Some(bind(listen, None).await?),
            None => None,
        }
        .unzip();
        Ok(Bound {
            data,
            admin,
            instance,
            settings,
            store,
            data_listener,
            admin_listener,
        })
    }

    /// Starts the fencing, and builds the request path around it.
    fn start(
        settings: Arc<Settings>,
        store: Arc<dyn MarkStore>,
        instance: InstanceId,
        log: Arc<LogFilter>,
    ) -> anyhow::Result<(Self, Background)> {
        raise_descriptors();
        let metrics = Arc::new(Metrics::new(&route_labels(&settings)));
        let info = &metrics.series.instance_info;
        info.with_label_values(&[&instance.name()]).set(1);
        metrics.set_config(&settings, wall_clock());
        let rejections = Arc::new(Rejections::default());
        let routes = Arc::new(RouteRecord::new(
            RouteTable::of(&settings.routes, settings.unmatched),
            metrics.store().series.route_table_mismatch.clone(),
        ));
        let readiness = Arc::new(Readiness::new(
            &instance.name(),
            settings.admin.ready_follows_store,
            Arc::clone(metrics.store()),
            Arc::clone(&routes),
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
        let tunnels = CancellationToken::new();
        let proxy = Arc::new(Proxy::new(
            Arc::clone(&settings),
            Arc::clone(&fencing),
            Arc::clone(&metrics),
            tasks.clone(),
            tunnels.clone(),
            Arc::clone(&rejections),
            via,
        )?);
        let live = Live {
            proxy,
            store,
            routes,
            metrics,
            fencing,
            admin: watch::Sender::new(settings.admin.clone()),
            loaded: watch::Sender::new(LoadedConfig::now(Arc::clone(&settings), Vec::new())),
            log,
        };
        let app = Self {
            live,
            settings,
            rejections,
            readiness,
            tasks,
            tunnels,
            workers,
            admin: TaskTracker::new(),
            admin_stop: CancellationToken::new(),
        };
        Ok((app, background))
    }

    fn serve_admin(&self, listener: Listener) {
        let state = AdminState {
            fencing: Arc::clone(&self.live.fencing),
            metrics: Arc::clone(&self.live.metrics),
            rejections: Arc::clone(&self.rejections),
            readiness: Arc::clone(&self.readiness),
            settings: self.live.admin.subscribe(),
            log: Arc::clone(&self.live.log),
            loaded: self.live.loaded.subscribe(),
        };
        let stop = self.admin_stop.clone().cancelled_owned();
        self.admin.spawn(admin::serve(listener, state, stop));
    }

    /// One attempt to join the store after a pause, unless a signal comes first. False: it cannot
    /// be reached yet.
    ///
    /// A migration may wait for minutes. A signal aborts it, and closes its connections. If the
    /// instance is recorded by then, it has forwarded nothing, and the others declare it dead.
    async fn join(
        &self,
        background: &Background,
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
        let store = &self.live.store;
        if store.shared() {
            store_start::say_namespace(&**store, &self.settings.store.namespace).await;
        }
        Ok(Ok(true))
    }

    /// Begins to accept on the data port.
    fn accept(&self, listener: Listener, phases: DrainPhases) -> JoinHandle<()> {
        let server = tokio::spawn(server::serve(
            listener,
            server::Shared {
                proxy: Arc::clone(&self.live.proxy),
                limits: self.settings.limits,
                metrics: Arc::clone(&self.live.metrics),
            },
            phases,
            Arc::clone(&self.workers),
        ));
        self.readiness.set_configured();
        server
    }

    /// Lets requests in flight end until the deadline, and cuts the rest. Returns the deadline.
    async fn drain(&self, port: &mut JoinHandle<()>, phases: &DrainPhases) -> Instant {
        let settings = &self.settings.shutdown;
        tokio::time::sleep(settings.delay.0).await;
        let deadline = Instant::now() + settings.deadline.0;
        // End the connections and tunnels.
        phases.now.cancel();
        self.tunnels.cancel();
        self.tasks.close();
        let ended = tokio::time::timeout_at(deadline, async {
            let _ = (&mut *port).await;
            self.tasks.wait().await;
        });
        if ended.await.is_err() {
            shutdown::say_what_is_cut(&self.live.fencing, settings.deadline.0);
            self.live.fencing.cut();
            let _ = tokio::time::timeout(AFTER_CUT, self.tasks.wait()).await;
            // An unfenced exchange has no task of its own: it ends with its connection.
            phases.cut.cancel();
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
    async fn close(&self, running: Running, deadline: Instant, end: CancellationToken) {
        let timeout = self.settings.store.timeout.0;
        let left = deadline.saturating_duration_since(Instant::now());
        running.leave(left.max(timeout)).await;
        self.readiness.drained.cancel();
        if !end.is_cancelled() {
            tracing::info!("drained; SIGTERM ends the process");
            end.cancelled().await;
        }
        self.admin_stop.cancel();
        self.admin.close();
        self.admin.wait().await;
        // A file that is moved or mounted elsewhere after a stop may leave its log behind.
        if tokio::time::timeout(timeout, self.live.store.disconnect())
            .await
            .is_err()
        {
            tracing::warn!("the store could not be closed in time: its log stays beside the file");
        }
        // The last thing: neither the store nor a hook waits for a collector.
        self.live.proxy.finish_traces(TRACES).await;
    }
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
