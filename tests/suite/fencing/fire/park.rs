//! The server that a history stands on: one Postgres serves many, but one that is to be killed
//! serves a single history at a time. The histories of a server share a database, each in a
//! namespace and under a role of its own: by the role its connections are known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OnceCell};

use super::plan::Ground;
use crate::support::postgres::Cluster;

const DATABASE: &str = "fire";

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
    /// The role under which its proxies connect, and the namespace of their marks.
    pub name: String,
}

impl Park {
    /// A place on this ground.
    pub async fn place(&self, ground: Ground) -> Place {
        let cluster = match ground {
            Ground::Sqlite => None,
            Ground::Common => Some(Arc::clone(self.common.get_or_init(start).await)),
            Ground::Own => {
                let idle = self.idle.lock().await.pop();
                Some(match idle {
                    Some(cluster) => cluster,
                    None => start().await,
                })
            }
        };
        let name = format!("h{}", self.next.fetch_add(1, Ordering::Relaxed));
        if let Some(cluster) = &cluster {
            let role = format!("CREATE ROLE {name} SUPERUSER LOGIN");
            cluster.execute(DATABASE, &role).await;
        }
        Place { cluster, name }
    }

    /// Takes a server of a history's own back. A history that ends in a panic keeps it from the
    /// others: nobody knows its state.
    pub async fn leave(&self, place: Place, ground: Ground) {
        if ground == Ground::Own {
            self.idle.lock().await.extend(place.cluster);
        }
    }
}

impl Place {
    /// The database, as its proxies connect to it.
    pub fn url(&self) -> Option<String> {
        let of_others = self.past_all()?;
        Some(of_others.replace("postgres@", &format!("{}@", self.name)))
    }

    /// The database, as everybody else connects to it.
    pub fn past_all(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.url(DATABASE))
    }
}

/// Starts a server with connections enough for all histories at once.
async fn start() -> Arc<Cluster> {
    let started = tokio::task::spawn_blocking(|| {
        let cluster = Cluster::start();
        cluster.stop();
        cluster.start_with(&["max_connections=400"]);
        cluster
    });
    let cluster = started.await.expect("Postgres starts");
    let database = format!("CREATE DATABASE {DATABASE}");
    cluster.execute("postgres", &database).await;
    Arc::new(cluster)
}
