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

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::listen::bind;
use crate::admin::{self, AdminState, Readiness};
use crate::config::{
    self, Loader, Mode, PostgresAddress, RouteTable, Settings, StoreTarget, Warning,
};
use crate::fencing::{Background, Fencing, FencingSetup};
use crate::metrics::{Certificate, Metrics};
use crate::proxy::headers::via::Via;
use crate::proxy::{Proxy, ProxySetup};
use crate::rejections::Rejections;
use crate::server::{self, Leave, Listener, Workers};
use crate::store::postgres::PostgresStore;
use crate::store::routes::RouteRecord;
use crate::store::sqlite::SqliteStore;
use crate::store::{MarkStore, StoreError};

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
        let routes = Arc::new(RouteRecord::new(
            RouteTable::of(&settings),
            metrics.store_handles().route_table_mismatch,
        ));

        // The request path, around what decides about tokens.
        let (fencing, background) = Fencing::start(FencingSetup {
            store: Arc::clone(&store),
            settings: &settings,
            metrics: Arc::clone(&metrics),
            routes: Arc::clone(&routes),
            random: bits,
        });
        let tasks = TaskTracker::new();
        let tunnels = CancellationToken::new();
        let proxy = Arc::new(Proxy::new(ProxySetup {
            settings: Arc::clone(&settings),
            fencing: Arc::clone(&fencing),
            metrics: Arc::clone(&metrics),
            tasks: tasks.clone(),
            stopping: tunnels.clone(),
            rejections: Arc::clone(&rejections),
            via: Via::new(rand::random()),
        })?);

        // Everything runs from here.
        let admin_stop = CancellationToken::new();
        let departure = Leave::default();
        let admin_settings = watch::Sender::new(settings.admin.clone());
        let admin_task = admin.map(|listener| {
            let state = AdminState {
                control: Arc::new(control::Core {
                    fencing: Arc::clone(&fencing),
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
            Arc::clone(&fencing),
            Arc::clone(&routes),
        ));

        // The store is tried once before the first request is accepted, so that a start in good order
        // refuses nobody. One that cannot be reached holds nobody up: what is not fenced passes, and
        // what is fenced is refused until it can.
        let namespace = &settings.store.namespace;
        // A migration may wait for minutes. A signal breaks it off, and closes its connections. An instance that is on
        // record by then has forwarded nothing, and the others find out.
        let mut told = None;
        let tried = stops.or(join(&background)).await;
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
                join(&background).await
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
        let mut running = background.run(joined);
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
                fencing: Arc::clone(&fencing),
                admin: admin_settings,
            },
        ));

        // Until a signal comes. Without the writer or the membership task everything fenced would be refused for ever: a new
        // process does better.
        let told = tokio::select! {
            biased;
            told = stops.next_after(told) => told,
            failed = running.failed() => anyhow::bail!(failed),
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
            fencing.cut();
            let _ = tokio::time::timeout(AFTER_CUT, tasks.wait()).await;
            // What was not fenced has no task of its own: it ends with its connection.
            departure.cut.cancel();
            // It may have ended before, with its last connection, while exchanges whose clients have left went on.
            if !server.is_finished() {
                let _ = tokio::time::timeout(AFTER_CUT, server).await;
            }
        }

        let left = deadline.saturating_duration_since(Instant::now());
        running.leave(left.max(settings.store.timeout)).await;
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

/// One try to join the store, and what is said of it.
async fn join(background: &Background) -> Result<bool, StoreError> {
    let findings = background.join().await?;
    if let Some(findings) = &findings {
        keys::tell(findings);
    }
    Ok(findings.is_some())
}

/// Keeps the readiness probe's view of the store and of the other instances up to date.
async fn mirror(readiness: Arc<Readiness>, fencing: Arc<Fencing>, routes: Arc<RouteRecord>) {
    let mut tick = tokio::time::interval(MIRROR);
    loop {
        tick.tick().await;
        let (up, why) = fencing.store_status();
        readiness.set_store_up(up, why);
        let others = routes.others();
        readiness.set_other_route_tables(others.iter().map(ToString::to_string).collect());
    }
}
