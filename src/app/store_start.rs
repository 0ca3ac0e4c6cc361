//! The store at the start: it is opened before the ports are bound, and joined before the first
//! request is accepted, if it can be reached.

use std::sync::Arc;

use super::{found, keys};
use crate::config::{PostgresAddress, Settings, StoreTarget};
use crate::fencing::Background;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::{self, SqliteStore};
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
            found::say_file(opened.opened(), namespace);
            Arc::new(opened)
        }
        StoreTarget::Postgres(url) => Arc::new(PostgresStore::new(
            PostgresAddress {
                url: url.clone(),
                tls: store.tls.clone(),
                application_name: Some(instance.application_name()),
            },
            &store.namespace,
            store.timeout.0,
            store.migrate,
        )),
    })
}

/// One attempt to join the store, and its log lines.
pub(super) async fn join(background: &Background) -> Result<bool, StoreError> {
    let findings = background.join().await?;
    if let Some(findings) = &findings {
        keys::tell(findings);
    }
    Ok(findings.is_some())
}
