//! The one place that wires everything: construct, bind, run, stop.

mod control;
mod found;
mod keys;
mod listen;
mod log_output;
mod reload;
mod stops;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::listen::bind;
use crate::admin::{self, AdminState, Readiness};
use crate::barrier::Barrier;
use crate::config::{
    self, Loader, Mode, PostgresAddress, RouteTable, Settings, StoreTarget, Warning,
};
use crate::marks::growth::{Growth, Rates};
use crate::marks::keeper::{Burials, Keeper};
use crate::marks::lane::{Lane, LaneSetup, Meters};
use crate::marks::lease::{Clock, Lease};
use crate::marks::ledger::{Ledger, Room};
use crate::marks::postgres::PostgresStore;
use crate::marks::reckoning::Reckoning;
use crate::marks::routes::RouteRecord;
use crate::marks::sqlite::SqliteStore;
use crate::marks::watch::Watch;
use crate::marks::{InstanceId, MarkStore, StoreError};
use crate::metrics::{Certificate, Metrics};
use crate::proxy::headers::via::Via;
use crate::proxy::{Gate, Proxy, ProxySetup};
use crate::rejections::Rejections;
use crate::server::{self, Leave, Listener, Workers};
use crate::throttle::Throttle;

pub use keys::{Accept, migrate};
pub use log_output::LogOutput;

/// The pause between two tries to reach the store at the start.
const START_AGAIN: Duration = Duration::from_millis(500);
/// How long cut exchanges may take to notice it at the stop.
const AFTER_CUT: Duration = Duration::from_secs(1);
/// How often the readiness probe's view of the store is brought up to date.
const MIRROR: Duration = Duration::from_millis(200);

fn bits() -> u128 {
    rand::random()
}

/// Runs the proxy until a signal ends it.
pub async fn serve(
    loader: Loader,
    settings: Settings,
    warnings: Vec<Warning>,
    log: LogOutput,
) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    for warning in &warnings {
        tracing::warn!(%warning, "configuration");
    }
    App::bind(settings).await?.run(loader, log).await
}

/// A proxy whose ports are bound and that does not accept yet.
struct App {
    settings: Arc<Settings>,
    store: Arc<dyn MarkStore>,
    data: Listener,
    data_address: String,
    admin: Option<admin::Listener>,
    admin_address: Option<String>,
}

impl App {
    async fn bind(settings: Arc<Settings>) -> anyhow::Result<Self> {
        let store = open_store(&settings).await?;
        let (data, data_address) = bind(&settings.listen, settings.listen_mode).await?;
        let (admin, admin_address) = match &settings.admin.listen {
            Some(listen) => {
                let (listener, address) = bind(listen, None).await?;
                let listener = match listener {
                    Listener::Tcp(listener) => admin::Listener::Tcp(listener),
                    Listener::Unix(listener) => admin::Listener::Unix(listener),
                };
                (Some(listener), Some(address))
            }
            None => (None, None),
        };
        Ok(Self {
            settings,
            store,
            data,
            data_address,
            admin,
            admin_address,
        })
    }

    #[expect(
        clippy::too_many_lines,
        reason = "wiring reads best from top to bottom, in one place"
    )]
    async fn run(self, loader: Loader, log: LogOutput) -> anyhow::Result<()> {
        let Self {
            settings,
            store,
            data,
            data_address,
            admin,
            admin_address,
        } = self;
        let mut stops = stops::Stops::new()?;
        let reload = reload::Trigger::new()?;

        server::descriptors::provide(&settings.limits);

        // What is known, what is counted.
        let metrics = Arc::new(Metrics::new(&labels(&settings)));
        set_certificates(&metrics, &settings);
        let rejections = Arc::new(Rejections::default());
        let readiness = Arc::new(Readiness::new(settings.admin.ready_follows_store));
        let handles = metrics.store_handles();
        let growth = Arc::new(Growth::new(rates(&settings)));
        let meters = Meters {
            new_resources: handles.new_resources,
            batch_size: handles.batch_size,
            commit_seconds: handles.commit_seconds,
            errors: handles.errors,
            regressions: handles.regressions,
            up: handles.up.clone(),
            trouble: Arc::default(),
        };

        let routes = Arc::new(RouteRecord::new(
            RouteTable::of(&settings),
            handles.route_table_mismatch.clone(),
        ));

        // The marks: lease, ledger, lane, keeper.
        let instance = InstanceId::from_bits(bits());
        let reckoning = reckoning(&*store, &settings);
        let lease = Lease::new(Clock::boottime(), Some(settings.store.lease), instance);
        let lease = Arc::new(lease.cutting_after(reckoning.cutoff()));
        let watch = Arc::new(Watch::new(reckoning));
        let (drained_tx, drained) = mpsc::unbounded_channel();
        let ledger = Arc::new(Ledger::new(
            settings.store.cached_marks,
            settings.barrier.settle,
            reckoning.after_loss(),
            drained_tx,
            handles.open_epochs,
            handles.unknown_outcomes,
        ));
        let (lane_task, lane) = Lane::new(LaneSetup {
            store: Arc::clone(&store),
            ledger: Arc::clone(&ledger),
            lease: Arc::clone(&lease),
            watch: Arc::clone(&watch),
            meters: meters.clone(),
            growth: Arc::clone(&growth),
            drained,
        });
        let keeper = Keeper {
            store: Arc::clone(&store),
            ledger: Arc::clone(&ledger),
            lease: Arc::clone(&lease),
            watch: Arc::clone(&watch),
            lane: lane.clone(),
            meters: meters.clone(),
            remaining: handles.lease_remaining,
            term: settings.store.lease,
            settle: settings.barrier.settle,
            undelivered: settings.upstream.undelivered,
            routes: Arc::clone(&routes),
            burials: Burials::default(),
            bits,
        };

        // The request path.
        let gate = Arc::new(Gate {
            ledger: Arc::clone(&ledger),
            lane: lane.clone(),
            lease: Arc::clone(&lease),
            barrier: Barrier::new(
                Arc::clone(&ledger),
                Arc::clone(&lease),
                Arc::clone(&watch),
                Room {
                    queue: settings.barrier.queue,
                    share: settings.limits.in_flight_per_resource.unwrap_or(usize::MAX),
                    waiting: settings.limits.waiting(),
                },
            ),
            metrics: Arc::clone(&metrics),
            timeout: settings.store.timeout,
        });
        let tasks = TaskTracker::new();
        let tunnels = CancellationToken::new();
        let proxy = Arc::new(Proxy::new(ProxySetup {
            settings: Arc::clone(&settings),
            gate: Arc::clone(&gate),
            tasks: tasks.clone(),
            stopping: tunnels.clone(),
            rejections: Arc::clone(&rejections),
            via: Via::new(rand::random()),
        })?);

        // Everything runs from here.
        let mut lane_task = tokio::spawn(lane_task.run());
        let (admin_stop, keeper_stop) = (CancellationToken::new(), CancellationToken::new());
        let departure = Leave::default();
        let admin_settings = watch::Sender::new(settings.admin.clone());
        let admin_task = admin.map(|listener| {
            let state = AdminState {
                control: Arc::new(control::Core {
                    store: Arc::clone(&store),
                    gate: Gate::clone(&gate),
                    watch: Arc::clone(&watch),
                }),
                metrics: Arc::clone(&metrics),
                rejections,
                readiness: Arc::clone(&readiness),
                settings: admin_settings.subscribe(),
            };
            let stop = admin_stop.clone().cancelled_owned();
            tokio::spawn(admin::serve(listener, state, stop))
        });
        let counts_lines = tokio::spawn(log_output::count(log.clone(), Arc::clone(&metrics)));
        let mirror = tokio::spawn(mirror(
            Arc::clone(&readiness),
            meters.clone(),
            Arc::clone(&routes),
        ));

        // The store is tried once before the first request is accepted, so that a start in good order
        // refuses nobody. One that cannot be reached holds nobody up: what is not fenced passes, and
        // what is fenced is refused until it can.
        let said = Throttle::of_repeats();
        let namespace = &settings.store.namespace;
        // A migration may wait for minutes. A signal breaks it off, and closes its connections. An instance that is on
        // record by then has forwarded nothing, and the others find out.
        let mut told = None;
        let tried = stops.or(try_join(&keeper, &*store, &meters, &said)).await;
        let mut joined = match tried {
            Ok(tried) => tried?,
            Err(signal) => {
                told = Some(signal);
                false
            }
        };
        if joined && store.shared() {
            found::say_namespace(&*store, namespace).await;
        }
        // They live as long as this function: exchanges go on there when their connections have ended.
        let workers = Arc::new(Workers::start()?);
        let mut server = tokio::spawn(server::serve(
            data,
            Arc::clone(&proxy),
            settings.limits,
            Arc::clone(&metrics),
            departure.clone(),
            Arc::clone(&workers),
        ));
        readiness.set_configured();
        tracing::info!(
            data = data_address,
            admin = admin_address.as_deref(),
            "listening"
        );
        tracing::info!("{}", config::summary(&settings));
        while !joined && told.is_none() {
            let again = async {
                tokio::time::sleep(START_AGAIN).await;
                try_join(&keeper, &*store, &meters, &said).await
            };
            let tried = stops.or(again).await;
            joined = match tried {
                Ok(tried) => tried?,
                Err(signal) => {
                    told = Some(signal);
                    false
                }
            };
            if joined && store.shared() {
                found::say_namespace(&*store, namespace).await;
            }
        }
        // A stop before the store was reached leaves nothing in it to put in order.
        let keeper_stopped = keeper_stop.clone();
        let mut keeper_task = tokio::spawn(async move {
            if joined {
                keeper.run(keeper_stopped).await;
            }
        });
        if joined {
            readiness.set_store_reached();
        }
        let reloads = tokio::spawn(reload::watch(
            reload,
            loader,
            Arc::clone(&settings),
            reload::Parts {
                proxy: Arc::clone(&proxy),
                store: Arc::clone(&store),
                routes: Arc::clone(&routes),
                metrics: Arc::clone(&metrics),
                growth,
                admin: admin_settings,
            },
        ));

        // Until a signal comes. Without the lane or the keeper everything fenced would be refused for ever: a new
        // process does better.
        let told = tokio::select! {
            biased;
            told = stops.next_after(told) => told,
            ended = &mut lane_task => anyhow::bail!("the lane to the store has ended: {ended:?}"),
            ended = &mut keeper_task => anyhow::bail!("the keeper of the lease has ended: {ended:?}"),
        };
        tracing::info!(signal = told.signal(), "draining");
        // In this order: whoever finds it unready is told to go by every answer, too.
        departure.announced.cancel();
        readiness.set_draining();
        reloads.abort();
        let end = stops.mind(told, log);
        tokio::time::sleep(settings.shutdown.delay).await;
        departure.now.cancel();
        tunnels.cancel();
        tasks.close();
        let deadline = Instant::now() + settings.shutdown.deadline;
        let drained = tokio::time::timeout_at(deadline, async {
            let _ = (&mut server).await;
            tasks.wait().await;
        });
        if drained.await.is_err() {
            tracing::warn!(
                deadline = humantime::format_duration(settings.shutdown.deadline).to_string(),
                "the deadline has come: what is still in flight is cut and stays recorded as unknown"
            );
            lease.identity().cutoff.cancel();
            let _ = tokio::time::timeout(AFTER_CUT, tasks.wait()).await;
            // What was not fenced has no task of its own: it ends with its connection.
            departure.cut.cancel();
            // It may have ended before, with its last connection, while exchanges whose clients have left went on.
            if !server.is_finished() {
                let _ = tokio::time::timeout(AFTER_CUT, server).await;
            }
        }

        // Nothing is written upstream any more: from `leave` on, the peers count what is unknown as settling.
        lease.end();
        // What has drained is deleted; what is unknown or inherited stays recorded.
        let close = async {
            lane.stop().await;
            let _ = (&mut lane_task).await;
            keeper_stop.cancel();
            let _ = (&mut keeper_task).await;
            if !joined {
                return;
            }
            if let Err(error) = store.leave(&lease.identity().instance).await {
                tracing::warn!(%error, "the store could not be told that this instance has ended; its peers will find out");
            }
        };
        // A million rows take a while. A store that does not answer fails the first of the calls, and ends this.
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(settings.store.timeout);
        if tokio::time::timeout(left, close).await.is_err() {
            tracing::warn!("the store did not take all in time at the stop; epochs stay recorded");
            // Nobody may renew the lease of a run that is over: its peers would wait for its epochs as long as this
            // process stays.
            keeper_task.abort();
            lane_task.abort();
        }
        readiness.set_drained();
        if !end.is_cancelled() {
            tracing::info!("drained; SIGTERM ends the process");
            end.cancelled().await;
        }
        admin_stop.cancel();
        if let Some(task) = admin_task {
            let _ = task.await;
        }
        mirror.abort();
        // A file that is moved or mounted elsewhere after a stop may leave its log behind.
        if tokio::time::timeout(settings.store.timeout, store.disconnect())
            .await
            .is_err()
        {
            tracing::warn!("the store could not be closed in time: its log stays beside the file");
        }
        counts_lines.abort();
        drop(workers);
        tracing::info!("stopped");
        Ok(())
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
        each: settings.limits.new_resources_per_peer,
    }
}

/// The labels and modes of the routes.
fn labels(settings: &Settings) -> Vec<(String, Mode)> {
    let routes = settings.routes.iter();
    routes
        .map(|route| (route.label.clone(), route.mode))
        .collect()
}

/// Says when the certificates end.
fn set_certificates(metrics: &Metrics, settings: &Settings) {
    let listener = settings.tls.as_ref().map(|tls| tls.expires);
    metrics.set_certificate_expiry(Certificate::Listener, listener);
    let admin = settings.admin.tls.as_ref().map(|tls| tls.expires);
    metrics.set_certificate_expiry(Certificate::Admin, admin);
    let upstream = settings.upstream.tls.identity.as_ref();
    metrics.set_certificate_expiry(Certificate::Upstream, upstream.map(|shown| shown.expires));
}

/// Opens the store. A file that cannot be used ends the start here; a server is reached later.
async fn open_store(settings: &Settings) -> Result<Arc<dyn MarkStore>, StoreError> {
    let store = &settings.store;
    Ok(match &store.target {
        StoreTarget::Sqlite { path } => {
            let (timeout, migrate) = (store.timeout, store.migrate);
            let namespace = &store.namespace;
            let opened =
                SqliteStore::open_or_refuse(path, timeout, migrate, namespace, store.create)
                    .await?;
            found::say_file(opened.opened(), namespace);
            Arc::new(opened)
        }
        StoreTarget::Postgres(url) => Arc::new(PostgresStore::new(
            PostgresAddress {
                url: url.clone(),
                tls: store.tls.clone(),
            },
            &store.namespace,
            store.timeout,
            store.migrate,
        )),
    })
}

/// Checks the store, compares the route tables, and joins. `false` where the store cannot be reached,
/// so that trying again may help; an error where it is not fit.
async fn try_join(
    keeper: &Keeper,
    store: &dyn MarkStore,
    meters: &Meters,
    said: &Throttle,
) -> Result<bool, StoreError> {
    let tried = async {
        store.prepare().await?;
        keeper.join().await
    };
    match tried.await {
        Ok(findings) => {
            keys::tell(&findings);
            Ok(true)
        }
        Err(error @ StoreError::Unfit(_)) => Err(error),
        Err(error) => {
            meters.errors.with_label_values(&[error.kind()]).inc();
            meters.up.set(0);
            if let Some(left_out) = said.say_of(error.kind(), Instant::now()) {
                tracing::warn!(%error, left_out,
                    "the store cannot be reached yet; nothing fenced is forwarded until it is");
            }
            Ok(false)
        }
    }
}

/// Keeps the readiness probe's view of the store and of the other instances up to date.
async fn mirror(readiness: Arc<Readiness>, meters: Meters, routes: Arc<RouteRecord>) {
    let mut tick = tokio::time::interval(MIRROR);
    loop {
        tick.tick().await;
        readiness.set_store_up(meters.up.get() == 1, meters.trouble.why());
        let others = routes.others();
        readiness.set_other_route_tables(others.iter().map(ToString::to_string).collect());
    }
}
