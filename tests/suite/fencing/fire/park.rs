//! The server that a history stands on: one Postgres serves many, but one that is to be killed
//! serves a single history at a time. The histories of a server share a database, each in a
//! namespace and under a role of its own: by the role its connections are known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OnceCell};

use super::marks::Source;
use super::plan::Ground;
use crate::support::Store;
use crate::support::postgres::Cluster;

const DATABASE: &str = "postgres";

/// The servers, started when first needed.
#[derive(Default)]
pub struct Park {
    common: OnceCell<Arc<Cluster>>,
    /// Those for a single history that are idle.
    idle: Mutex<Vec<Arc<Cluster>>>,
    /// Names the next history's role and namespace.
    next: AtomicU64,
}

/// The place of one history.
pub struct Place {
    pub cluster: Option<Arc<Cluster>>,
    /// As its proxies use it: on a server, under a role of the namespace's name.
    pub store: Store,
    /// As everybody else connects to it.
    pub source: Source,
}

impl Park {
    /// A place on this ground.
    pub async fn place(&self, ground: Ground) -> Place {
        let cluster = match ground {
            Ground::Sqlite => {
                let (store, namespace) = (Store::sqlite(), "default".to_owned());
                let (cluster, url) = (None, store.url());
                let source = Source { url, namespace };
                return Place {
                    cluster,
                    store,
                    source,
                };
            }
            Ground::Common => Arc::clone(self.common.get_or_init(start).await),
            Ground::Own => {
                let idle = self.idle.lock().await.pop();
                match idle {
                    Some(cluster) => cluster,
                    None => start().await,
                }
            }
        };
        let namespace = format!("h{}", self.next.fetch_add(1, Ordering::Relaxed));
        let role = format!("CREATE ROLE {namespace} SUPERUSER LOGIN");
        cluster.execute(DATABASE, &role).await;
        let url = cluster.url(DATABASE);
        Place {
            cluster: Some(cluster),
            store: Store::at(&url.replace("postgres@", &format!("{namespace}@"))),
            source: Source { url, namespace },
        }
    }

    /// Takes a server of a history's own back. A history that ends in a panic keeps it from the
    /// others: nobody knows its state.
    pub async fn leave(&self, place: Place, ground: Ground) {
        if ground == Ground::Own {
            self.idle.lock().await.extend(place.cluster);
        }
    }
}

/// Starts a server with connections enough for all histories at once.
async fn start() -> Arc<Cluster> {
    let started = tokio::task::spawn_blocking(|| {
        let cluster = Cluster::start();
        cluster.stop();
        cluster.start_with(&["max_connections=400"]);
        Arc::new(cluster)
    });
    started.await.expect("Postgres starts")
}
