//! Reload: on SIGHUP, and when the file has changed (a mounted `ConfigMap` changes by a symbolic link
//! being swapped, so the file behind the path is compared, not the link). A bad file changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::{keys, labels};
use crate::config::{self, Loader, Settings};
use crate::marks::MarkStore;
use crate::metrics::Metrics;
use crate::proxy::Proxy;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What tells one version of the file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// What asks for a reload. Made at the start, so that nothing that happens after it is missed.
pub(super) struct Trigger {
    hangups: Signal,
    seen: Option<Stamp>,
}

impl Trigger {
    pub(super) fn new(file: Option<&Path>) -> std::io::Result<Self> {
        Ok(Self {
            hangups: signal(SignalKind::hangup())?,
            seen: file.and_then(Stamp::of),
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
    let Trigger {
        mut hangups,
        mut seen,
    } = trigger;
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stamp = || loader.file.as_deref().and_then(Stamp::of);
    loop {
        let cause = tokio::select! {
            _ = hangups.recv() => "SIGHUP",
            _ = tick.tick() => {
                let now = stamp();
                // A file that is gone is about to be replaced.
                if now.is_none() || now == seen {
                    continue;
                }
                "the file has changed"
            }
        };
        seen = stamp();
        match reload(&loader, &settings, &proxy, &*store, &metrics).await {
            Ok(new) => {
                settings = new;
                metrics.set_config_reload_ok(true);
                tracing::info!(cause, "the configuration was reloaded");
                tracing::info!("{}", config::summary(&settings));
            }
            Err(reasons) => {
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

async fn reload(
    loader: &Loader,
    settings: &Settings,
    proxy: &Proxy,
    store: &dyn MarkStore,
    metrics: &Metrics,
) -> Result<Arc<Settings>, Vec<String>> {
    let (new, warnings) = loader
        .load()
        .map_err(|problems| vec![problems.to_string()])?;
    for warning in warnings {
        tracing::warn!(%warning, "configuration");
    }
    let new = settings.reload_from(new)?;
    keys::compare(store, &new)
        .await
        .map_err(|error| vec![error.to_string()])?;
    let new = Arc::new(new);
    metrics.set_routes(&labels(&new));
    proxy
        .reload(Arc::clone(&new))
        .map_err(|error| vec![error.to_string()])?;
    Ok(new)
}
