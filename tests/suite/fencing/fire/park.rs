//! Which server a history stands on: one Postgres serves many, but one that is to be killed serves
//! a single history at a time. The histories of a server share a database, each in a namespace and
//! under a role of its own: by the role its connections are known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use super::plan::Ground;
use crate::support::postgres::Cluster;

const DATABASE: &str = "fire";

/// Histories at once.
const AT_ONCE: usize = 18;
/// The most of them on the common server, whose connections are limited.
const ON_COMMON: usize = 14;
/// Of them, on a server of their own.
const ON_OWN: usize = 2;

/// The servers, started when first needed.
pub struct Park {
    places: Arc<Semaphore>,
    on_common: Arc<Semaphore>,
    on_own: Arc<Semaphore>,
    common: Mutex<Option<Arc<Cluster>>>,
    /// Those that are idle.
    own: Arc<Mutex<Vec<Arc<Cluster>>>>,
    /// Names the next history's role and namespace.
    next: AtomicU64,
}

/// A place for one history; given up when dropped.
#[must_use]
pub struct Place {
    cluster: Option<Arc<Cluster>>,
    name: String,
    /// To put the server back.
    own: Option<Arc<Mutex<Vec<Arc<Cluster>>>>>,
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Park {
    pub fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(AT_ONCE)),
            on_common: Arc::new(Semaphore::new(ON_COMMON)),
            on_own: Arc::new(Semaphore::new(ON_OWN)),
            common: Mutex::default(),
            own: Arc::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Waits for a place on this ground.
    pub async fn place(&self, ground: Ground) -> Place {
        let (cluster, own, of_kind) = match ground {
            Ground::Sqlite => (None, None, None),
            Ground::Postgres { own: false, .. } => {
                let permit = permit(&self.on_common).await;
                let mut common = self.common.lock().await;
                if common.is_none() {
                    *common = Some(start().await);
                }
                (common.clone(), None, Some(permit))
            }
            Ground::Postgres { own: true, .. } => {
                let permit = permit(&self.on_own).await;
                let idle = self.own.lock().await.pop();
                let cluster = match idle {
                    Some(cluster) => cluster,
                    None => start().await,
                };
                (Some(cluster), Some(Arc::clone(&self.own)), Some(permit))
            }
        };
        let mut permits = vec![permit(&self.places).await];
        permits.extend(of_kind);
        let name = format!("h{}", self.next.fetch_add(1, Ordering::Relaxed));
        if let Some(cluster) = &cluster {
            let role = format!("CREATE ROLE {name} SUPERUSER LOGIN");
            cluster.execute(DATABASE, &role).await;
        }
        Place {
            cluster,
            name,
            own,
            _permits: permits,
        }
    }
}

impl Place {
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// The role under which its proxies connect, and the namespace of their marks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database, as its proxies connect to it.
    pub fn url(&self) -> Option<String> {
        let of_others = self.past_all()?;
        Some(of_others.replace("postgres@", &format!("{}@", self.name)))
    }

    /// The database, as everybody else connects to it.
    pub fn past_all(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.url(DATABASE))
    }

    /// Gives the place up, and the server to the next. A history that ends in a panic keeps its own
    /// server from the others: nobody knows its state.
    pub async fn leave(mut self) {
        if let (Some(own), Some(cluster)) = (self.own.take(), self.cluster.take()) {
            own.lock().await.push(cluster);
        }
    }
}

async fn permit(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let permit = Arc::clone(semaphore).acquire_owned().await;
    permit.expect("it is never closed")
}

async fn start() -> Arc<Cluster> {
    let started = tokio::task::spawn_blocking(Cluster::start).await;
    let cluster = started.expect("Postgres starts");
    let database = format!("CREATE DATABASE {DATABASE}");
    cluster.execute("postgres", &database).await;
    Arc::new(cluster)
}
