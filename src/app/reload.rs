//! Reload: on SIGHUP, and when a file has changed that the configuration was read from: its own,
//! and the certificates and keys that it names. A bad configuration changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::keys;
use super::settings_metrics::{route_labels, set_loaded};
use crate::admin::LoadedConfig;
use crate::config::{self, AdminSettings, Loader, RouteTable, Settings, Sources};
use crate::fencing::Fencing;
use crate::log_filter::LogFilter;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::store::MarkStore;
use crate::store::routes::{RouteRecord, record};

/// The interval at which the files are checked.
const LOOK: Duration = Duration::from_secs(1);

/// The parts that a reload changes. Clones share them.
#[derive(Clone)]
pub(super) struct Live {
    pub proxy: Arc<Proxy>,
    pub store: Arc<dyn MarkStore>,
    pub routes: Arc<RouteRecord>,
    pub metrics: Arc<Metrics>,
    pub fencing: Arc<Fencing>,
    pub admin: watch::Sender<AdminSettings>,
    pub loaded: watch::Sender<LoadedConfig>,
    pub log: Arc<LogFilter>,
}

impl Live {
    /// Follows the file. A level that an operator has set since stays if the file's is as it was.
    fn set_log_level(&self, before: &Settings, new: &Settings) {
        if before.log.level == new.log.level {
            return;
        }
        if let Err(error) = self.log.set(new.log.level.clone(), "reload") {
            tracing::error!(%error, "the log level could not be changed");
        }
    }
}

/// Reloads until it is aborted.
pub(super) async fn watch(
    mut hangups: Signal,
    loader: Loader,
    mut settings: Arc<Settings>,
    live: Live,
) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = settings.sources.clone();
    // Changed files are not read until they are the same in two checks: a certificate and its key
    // are two files, and no file is whole while it is being written.
    let mut changing = None;
    loop {
        let cause = tokio::select! {
            _ = hangups.recv() => "SIGHUP",
            _ = tick.tick() => {
                let now = seen.now();
                // A configuration that is gone is about to be replaced.
                let gone = loader.file.as_deref().is_some_and(|file| !now.has(file));
                if gone || now == seen {
                    changing = None;
                    continue;
                }
                if changing.as_ref() != Some(&now) {
                    changing = Some(now);
                    continue;
                }
                "a file has changed"
            }
        };
        changing = None;
        let (sources, reloaded) = reload(&loader, &settings, &live).await;
        match reloaded {
            Ok(new) => {
                live.set_log_level(&settings, &new);
                settings = new;
                seen = sources;
                live.metrics.series.config_reload_ok.set(1);
                tracing::info!(cause, "the configuration was reloaded");
                tracing::info!("{}", config::summary(&settings));
            }
            Err(reasons) => {
                // Watches the files that the failed reload has read, and those of the current
                // configuration.
                seen = sources.and(&settings.sources.now());
                live.metrics.series.config_reload_ok.set(0);
                for reason in reasons {
                    tracing::error!(
                        cause,
                        reason,
                        "the configuration was not reloaded and stays as it was"
                    );
                }
            }
        }
    }
}

/// Reads everything again. Also returns the files that were read.
async fn reload(
    loader: &Loader,
    settings: &Settings,
    live: &Live,
) -> (Sources, Result<Arc<Settings>, Vec<String>>) {
    let (new, warnings) = match loader.load() {
        Ok(read) => read,
        Err(problems) => return (problems.sources.clone(), Err(vec![problems.to_string()])),
    };
    for warning in warnings {
        tracing::warn!(%warning, "configuration");
    }
    let sources = new.sources.clone();
    (sources, take(new, settings, live).await)
}

/// Applies new settings, all of them or none.
async fn take(new: Settings, now: &Settings, live: &Live) -> Result<Arc<Settings>, Vec<String>> {
    let told = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let (new, kept) = now.reload_from(new)?;
    let new = Arc::new(new);
    let table = RouteTable::of(&new.routes, new.unmatched);
    let findings = live.routes.check(&*live.store, &table).await;
    let findings = findings.map_err(|error| told(&error))?;
    live.metrics.set_routes(&route_labels(&new));
    // Recorded before the first request uses it, and only if it can be served.
    let taken = async {
        let snapshot = live.proxy.prepare(Arc::clone(&new));
        let snapshot = snapshot.map_err(|error| told(&error))?;
        let recorded = record(&*live.store, &table).await;
        recorded.map_err(|error| told(&error))?;
        live.proxy.reload(&snapshot);
        live.routes.serve(table);
        Ok(())
    };
    if let Err(reasons) = taken.await {
        live.metrics.set_routes(&route_labels(now));
        return Err(reasons);
    }
    keys::tell(&findings);
    if !kept.is_empty() {
        tracing::warn!(
            kept = kept.join(", "),
            "fields that have changed keep their old values until fencepost is restarted"
        );
    }
    set_loaded(&live.metrics, &new);
    live.fencing.reload(&new);
    live.admin.send_replace(new.admin.clone());
    let loaded = LoadedConfig::now(Arc::clone(&new), kept);
    live.loaded.send_replace(loaded);
    Ok(new)
}
