//! Key templates name the marks: another template for the same path would give every resource a new
//! name, and the marks of the old ones would hold nobody back. So the store keeps each route's
//! template, and another one is refused until an operator says that it is meant.

use std::collections::BTreeMap;

use crate::config::{Settings, StoreTarget};
use crate::marks::postgres::{self, PostgresStore};
use crate::marks::sqlite::{self, SqliteStore};
use crate::marks::{MarkStore, StoreError};

/// Path and template of every route that has marks.
fn of(settings: &Settings) -> Vec<(String, String)> {
    let routes = settings.routes.iter();
    routes
        .filter_map(|route| Some((route.path.clone(), route.key.as_ref()?.as_str().to_owned())))
        .collect()
}

/// What would change: path, template on record, template in the configuration.
async fn changes(
    store: &dyn MarkStore,
    settings: &Settings,
) -> Result<Vec<(String, String, String)>, StoreError> {
    let recorded: BTreeMap<String, String> = store.templates().await?.into_iter().collect();
    let changed = of(settings).into_iter().filter_map(|(path, template)| {
        let old = recorded.get(&path).filter(|old| **old != template)?;
        Some((path, old.clone(), template))
    });
    Ok(changed.collect())
}

/// Refuses templates other than those on record, and records those of new paths.
pub(super) async fn compare(store: &dyn MarkStore, settings: &Settings) -> Result<(), StoreError> {
    let changed = changes(store, settings).await?;
    if let Some((path, old, new)) = changed.first() {
        return Err(StoreError::Unfit(format!(
            "the resource key of route {path} is {new:?} in the configuration, and {old:?} in the store: with \
             another key the marks on record would hold nobody back. If that is meant, run `fencepost migrate \
             --accept-new-keys` while no proxy serves the namespace"
        )));
    }
    store.record_templates(&of(settings)).await
}

/// Brings the schema up to date, and with `accept_new_keys` takes over the templates of the
/// configuration. `grant_to` names the role that serves, if that is another one. Returns what was done, in lines for
/// people.
pub async fn migrate(
    settings: &Settings,
    accept_new_keys: bool,
    grant_to: Option<&str>,
) -> anyhow::Result<Vec<String>> {
    let target = &settings.store;
    let mut lines = vec!["the schema is up to date".to_owned()];
    let store: Box<dyn MarkStore> = match &target.target {
        StoreTarget::Sqlite { path } => {
            anyhow::ensure!(
                grant_to.is_none(),
                "--grant-to: SQLite has no roles; who may write to the file may serve"
            );
            sqlite::migrate(path).await?;
            Box::new(SqliteStore::open(path, target.timeout, false, &target.namespace).await?)
        }
        StoreTarget::Postgres(url) => {
            postgres::migrate(url.clone()).await?;
            if let Some(role) = grant_to {
                postgres::grant(url.clone(), role).await?;
                lines.push(format!("role {role} may do what `serve` needs"));
            }
            let (namespace, timeout) = (&target.namespace, target.timeout);
            Box::new(PostgresStore::open(url.clone(), namespace, timeout, false).await?)
        }
    };
    let changed = changes(&*store, settings).await?;
    if changed.is_empty() {
        lines.push("the key templates are those on record, or new".to_owned());
    }
    for (path, old, new) in &changed {
        lines.push(if accept_new_keys {
            format!("route {path}: the resource key was {old:?} and is {new:?} now; the old marks hold nobody back any more")
        } else {
            format!("route {path}: the resource key is {new:?} in the configuration, and {old:?} on record; --accept-new-keys would take it over")
        });
    }
    if accept_new_keys || changed.is_empty() {
        store.record_templates(&of(settings)).await?;
    }
    Ok(lines)
}
