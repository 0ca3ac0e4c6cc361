//! The one place that wires everything. [`Bound::bind`] opens the store and binds the ports;
//! [`Bound::run`] serves until a signal stops it.

mod keys;
pub(crate) mod listen;
mod log;
mod reload;
mod running;
mod shutdown;
mod store_start;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use self::listen::{PRIVATE, bind};
use self::running::App;
use crate::config::{self, Loader, Settings, Warning};
use crate::socket::Listener;
use crate::store::{InstanceId, MarkStore};

pub use keys::{Migration, migrate};
pub use log::LogOutput;
pub use shutdown::Shutdown;

/// The pause between two attempts to reach the store at the start.
const START_AGAIN: Duration = Duration::from_millis(500);

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
    let bound = Bound::bind(settings, instance).await?;
    let shutdown = Shutdown::on_signals(log.clone())?;
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
    /// Opens the store and binds the ports.
    pub async fn bind(settings: Arc<Settings>, instance: InstanceId) -> anyhow::Result<Self> {
        let store = store_start::open(&settings, &instance).await?;
        // The directory of a Unix socket decides who may connect.
        let (data_listener, data) = bind(&settings.listen, 0o666).await.context("listen")?;
        let (admin_listener, admin) = match &settings.admin.listen.0 {
            Some(listen) => Some(bind(listen, PRIVATE).await.context("admin.listen")?),
            None => None,
        }
        .unzip();
        Ok(Self {
            data,
            admin,
            instance,
            settings,
            store,
            data_listener,
            admin_listener,
        })
    }

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
        let (app, mut background) = App::start(self.settings, self.store, self.instance, log)?;
        tokio::spawn(Arc::clone(&app.state.metrics).keep_counts());
        if let Some(listener) = self.admin_listener {
            app.serve_admin(listener);
        }

        // Serve. One attempt to join is made before the first request is accepted, so that a normal
        // start refuses no request. A store that cannot be reached delays no start: unfenced
        // requests pass, and fenced ones are refused until it can be reached.
        let now = Duration::ZERO;
        let mut joined = app.join(&mut background, now, &mut shutdown).await?;
        let mut port = app.accept(self.data_listener);
        tracing::info!(data = self.data, admin = self.admin.as_deref(), "listening");
        tracing::info!("{}", config::describe(&app.settings).join("; "));
        while joined == Ok(false) {
            joined = app
                .join(&mut background, START_AGAIN, &mut shutdown)
                .await?;
        }
        if joined == Ok(true) {
            let reached = &app.state.readiness.store_reached;
            reached.store(true, Ordering::Release);
        }
        let reloads = reload::watch(hangups, loader, Arc::clone(&app.settings), Arc::clone(&app));
        let reloads = tokio::spawn(reloads);
        let current = app.loaded.subscribe();
        let remembers = move || current.borrow().settings.remembers().is_some();
        let upkeep = Arc::clone(&app.state.fencing).keep_operations(remembers);
        let upkeep = tokio::spawn(upkeep);

        // Wait for a signal. If a lane or the membership task fails, every fenced request would
        // be refused for ever, so the process ends and a new one can start.
        let signal = if let Err(signal) = joined {
            signal
        } else {
            tokio::select! {
                biased;
                signal = shutdown.signals.next() => signal,
                failed = background.failed() => anyhow::bail!(failed),
            }
        };

        // Drain.
        tracing::info!(signal = signal.name, "draining");
        // In this order: once a client can find the proxy unready, every answer also announces the
        // end of its connection.
        app.phases.announced.cancel();
        app.state.readiness.draining.cancel();
        reloads.abort();
        upkeep.abort();
        let end = shutdown.handle_during_drain(signal);
        let deadline = app.drain(&mut port).await;

        // Close.
        app.close(background, deadline, end).await;
        tracing::info!("stopped");
        Ok(())
    }
}
