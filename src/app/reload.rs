//! Reload: on SIGHUP, and when a file has changed that the configuration was read from: its own,
//! and the certificates and keys that it names. A bad configuration changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

use super::keys;
use super::running::{App, route_labels};
use crate::admin::LoadedConfig;
use crate::config::{self, Loader, RouteTable, Settings};
use crate::json_values::wall_clock;
use crate::store::routes::record;

/// The interval at which the files are checked.
const LOOK: Duration = Duration::from_secs(1);

/// Reloads until it is aborted.
pub(super) async fn watch(
    mut hangups: Signal,
    loader: Loader,
    mut settings: Arc<Settings>,
    app: Arc<App>,
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
                if now == seen {
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
        // The files that were read, and the settings.
        let (sources, reloaded) = match loader.load() {
            Ok((new, warnings)) => {
                for warning in warnings {
                    tracing::warn!(%warning, "configuration");
                }
                (new.sources.clone(), take(new, &settings, &app).await)
            }
            Err(problems) => (problems.sources.clone(), Err(problems.errors_in_words())),
        };
        match reloaded {
            Ok(new) => {
                settings = new;
                seen = sources;
                app.state.metrics.series.config_reload_ok.set(1);
                tracing::info!(cause, "the configuration was reloaded");
                tracing::info!("{}", config::describe(&settings).join("; "));
            }
            Err(reasons) => {
                // Watches the files that the failed reload has read, and those of the current
                // configuration.
                seen = sources.and(&settings.sources.now());
                app.state.metrics.set_routes(&route_labels(&settings));
                app.state.metrics.series.config_reload_ok.set(0);
                app.loaded
                    .send_modify(|loaded| loaded.fail(reasons.first()));
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

/// Applies new settings, all of them or none: an error leaves only the metrics of new routes.
async fn take(new: Settings, now: &Settings, app: &App) -> Result<Arc<Settings>, Vec<String>> {
    let (new, kept) = now.reload_from(new)?;
    let new = Arc::new(new);
    let table = RouteTable::of(&new.routes, new.unmatched);
    let checked = app.state.routes.check(&*app.store, &table).await;
    let (table, findings) = checked.map_err(reason)?;
    app.state.metrics.set_routes(&route_labels(&new));
    // Recorded before the first request uses it, and only if it can be served.
    let snapshot = app.proxy.prepare(Arc::clone(&new)).map_err(reason)?;
    let (table, _) = record(&*app.store, &table).await.map_err(reason)?;
    app.proxy.reload(&snapshot);
    app.state.routes.serve(table);
    keys::tell(&findings);
    if !kept.is_empty() {
        tracing::warn!(
            kept = kept.join(", "),
            "fields that have changed keep their old values until fencepost is restarted"
        );
    }
    let (before, level) = (&now.log.level.0, &new.log.level.0);
    // It fails only without a subscriber, and then nothing can be said.
    if before != level && app.log.set(level).is_ok() {
        tracing::info!(%before, now = %level, "the log level was changed");
    }
    app.state.metrics.set_config(&new, wall_clock());
    let loaded = LoadedConfig::now(Arc::clone(&new), kept);
    app.loaded.send_replace(loaded);
    Ok(new)
}

fn reason(error: impl std::fmt::Display) -> Vec<String> {
    vec![error.to_string()]
}
