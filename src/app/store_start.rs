//! The store at the start: it is opened before the ports are bound, and the log says what it holds. A
//! store without marks accepts every resource's first token, however old it is, and nothing else
//! would tell it from the store that was there before.

use std::sync::Arc;

use crate::config::{Settings, StoreTarget};
use crate::json_values::rfc3339_ms;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::{self, Opened, SqliteStore};
use crate::store::{InstanceId, MarkStore, StoreError};

/// Opens the store. A file that cannot be used ends the start here; a server is reached later.
pub(super) async fn open(
    settings: &Settings,
    instance: &InstanceId,
) -> Result<Arc<dyn MarkStore>, StoreError> {
    let store = &settings.store;
    Ok(match &store.target {
        StoreTarget::Sqlite { path } => {
            let (timeout, migrate) = (store.timeout.0, store.migrate);
            let namespace = &store.namespace;
            sqlite::check_place(path, store.create, store.volatile).await?;
            let opened = SqliteStore::open(path, timeout, migrate, namespace, store.create).await?;
            say_file(&opened.opened, namespace);
            Arc::new(opened)
        }
        StoreTarget::Postgres(url) => Arc::new(PostgresStore::new(
            store.address(url, Some(instance.application_name())),
            &store.namespace,
            store.timeout.0,
            store.migrate,
        )),
    })
}

/// Says what the file held.
fn say_file(opened: &Opened, namespace: &str) {
    let path = opened.path.display();
    if opened.created {
        tracing::warn!(
            "created a new store at {path}: it has no marks, and every resource's first token is \
             accepted, however old it is"
        );
    } else if let Some(latest) = opened.latest_ms {
        let marks = number(opened.marks);
        let at = rfc3339_ms(latest);
        tracing::info!("opened {path}: {marks}, latest change at {at}");
    } else {
        tracing::warn!("opened {path}: the namespace {namespace} is new: it has no marks");
    }
}

/// Says what the shared store held, as far as that is counted quickly.
pub(super) async fn say_namespace(store: &dyn MarkStore, namespace: &str) {
    match store.count_marks(None).await {
        Ok((0, _)) => tracing::warn!(
            "the namespace {namespace} is new: it has no marks, and every resource's first token is \
             accepted, however old it is"
        ),
        Ok((marks, more)) => {
            let least = more.map_or("", |_| "at least ");
            let marks = number(marks);
            tracing::info!("the namespace {namespace} has {least}{marks}");
        }
        Err(error) => tracing::warn!(%error, "the marks of {namespace} could not be counted"),
    }
}

fn number(marks: u64) -> String {
    let plural = if marks == 1 { "" } else { "s" };
    format!("{marks} mark{plural}")
}
