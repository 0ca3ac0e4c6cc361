//! Reload: on SIGHUP, and when a file has changed that the configuration was read from: its own, and the
//! certificates and keys that it names. What is bad changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::{keys, labels, set_certificates};
use crate::config::{self, Loader, Settings, Sources};
use crate::marks::MarkStore;
use crate::metrics::Metrics;
use crate::proxy::Proxy;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What asks for a reload. Made at the start, so that nothing that happens after it is missed.
pub(super) struct Trigger {
    hangups: Signal,
}

impl Trigger {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangups: signal(SignalKind::hangup())?,
        })
    }
}

/// Reloads until it is aborted.
pub(super) async fn watch(
    trigger: Trigger,
    loader: Loader,
    mut settings: Arc<Settings>,
    proxy: Arc<Proxy>,
    store: Arc<dyn MarkStore>,
    metrics: Arc<Metrics>,
) {
    let Trigger { mut hangups } = trigger;
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = settings.sources.clone();
    // Files that change are left alone until they are the same in two looks: a certificate and its key are two,
    // and no file is whole while it is being written.
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
        let (sources, reloaded) = reload(&loader, &settings, &proxy, &*store, &metrics).await;
        match reloaded {
            Ok(new) => {
                settings = new;
                seen = sources;
                metrics.set_config_reload_ok(true);
                tracing::info!(cause, "the configuration was reloaded");
                tracing::info!("{}", config::summary(&settings));
            }
            Err(reasons) => {
                // What it was read from as far as it got, and what runs on.
                seen = sources.and(&settings.sources.now());
                metrics.set_config_reload_ok(false);
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

/// Reads everything anew; with the files that it was read from.
async fn reload(
    loader: &Loader,
    settings: &Settings,
    proxy: &Proxy,
    store: &dyn MarkStore,
    metrics: &Metrics,
) -> (Sources, Result<Arc<Settings>, Vec<String>>) {
    let (new, warnings) = match loader.load() {
        Ok(read) => read,
        Err(problems) => return (problems.sources.clone(), Err(vec![problems.to_string()])),
    };
    for warning in warnings {
        tracing::warn!(%warning, "configuration");
    }
    let sources = new.sources.clone();
    (sources, take(new, settings, proxy, store, metrics).await)
}

/// Takes over new settings, all of them or none.
async fn take(
    new: Settings,
    settings: &Settings,
    proxy: &Proxy,
    store: &dyn MarkStore,
    metrics: &Metrics,
) -> Result<Arc<Settings>, Vec<String>> {
    let new = settings.reload_from(new)?;
    keys::compare(store, &new)
        .await
        .map_err(|error| vec![error.to_string()])?;
    let new = Arc::new(new);
    metrics.set_routes(&labels(&new));
    proxy
        .reload(Arc::clone(&new))
        .map_err(|error| vec![error.to_string()])?;
    set_certificates(metrics, &new);
    Ok(new)
}
