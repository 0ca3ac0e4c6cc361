//! The idle connections of one kind, over HTTP/1 or HTTP/2, in one shard for each core. Each carries
//! one exchange after the other.
//!
//! A worker takes the newest connection of its own shard first, and puts connections back there.
//! Where its own shard is empty it takes from the others before it opens one. So an ordinary
//! request takes one lock twice, which no other worker wants. A connection from another shard moves
//! to the runtime of the worker that takes it. Otherwise each of its answers would first wake the
//! worker that opened it.
//!
//! No task waits for an idle connection. It is checked by a system call before it is used, since
//! bytes that lie there could be taken for the next request's answer. A sweep now and then closes
//! those that have ended, are too old, or have sent such bytes.

use std::pin::Pin;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::connect::{Connecting, MAX_AGE, SendError};
use super::socket::SocketState;
use crate::locked::locked;
use crate::worker::PerWorker;

/// How often idle connections are checked.
const SWEEP: Duration = Duration::from_millis(500);

/// A connection that carries one exchange after the other.
pub(crate) trait PooledConnection: Send + Sized + 'static {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The causes, in one line. No request was written.
    fn open(connecting: &Connecting) -> impl Future<Output = Result<Self, String>> + Send;

    /// Whether the idle connection may carry another request, as the kernel knows. It does not wait.
    fn is_fit(&mut self) -> bool;

    fn socket(&self) -> MutexGuard<'_, SocketState>;
}

/// Connections of one kind. Those that are idle are closed with the pool: when other settings or
/// another incarnation have taken its place, and the last exchange over it has ended.
pub(crate) struct Pool<C> {
    pub(super) connecting: Connecting,
    /// The idle connections of each worker, and since when they are, the newest last.
    shards: PerWorker<Vec<(Instant, C)>>,
}

impl<C: PooledConnection> Pool<C> {
    /// Call it within a runtime.
    pub(super) fn new(connecting: Connecting) -> Arc<Self> {
        let pool = Arc::new(Self {
            connecting,
            shards: PerWorker::new(Vec::new),
        });
        tokio::spawn(sweep(Arc::downgrade(&pool)));
        pool
    }

    /// Takes an idle connection that is fit for another request.
    pub(super) fn take(&self) -> Option<C> {
        let now = Instant::now();
        self.shards.all().find_map(|shard| {
            loop {
                let mut newest = locked(shard).pop()?;
                if self.is_fit(&mut newest, now) && newest.1.socket().move_here() {
                    return Some(newest.1);
                }
            }
        })
    }

    /// An idle connection, or a new one.
    ///
    /// # Errors
    ///
    /// Always [`SendError::NotSent`].
    pub(super) async fn reserve(&self) -> Result<C, SendError> {
        match self.take() {
            Some(connection) => Ok(connection),
            None => self.open().await.map_err(SendError::NotSent),
        }
    }

    /// See [`PooledConnection::open`]. Boxed, since most requests find an idle connection and do not
    /// need this memory.
    pub(super) fn open(&self) -> Pin<Box<impl Future<Output = Result<C, String>> + use<'_, C>>> {
        Box::pin(C::open(&self.connecting))
    }

    /// Keeps an idle connection.
    pub(super) fn put(&self, connection: C) {
        if !self.connecting.settings.idle_timeout.0.is_zero() {
            self.shards.own().push((Instant::now(), connection));
        }
    }

    /// Whether it may carry another request.
    fn is_fit(&self, (since, connection): &mut (Instant, C), now: Instant) -> bool {
        let opened = connection.socket().opened;
        now.saturating_duration_since(*since) < self.connecting.settings.idle_timeout.0
            && now.saturating_duration_since(opened) < MAX_AGE
            && connection.is_fit()
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        let shards = self.shards.all();
        shards.map(|shard| locked(shard).len()).sum()
    }
}

/// Checks idle connections for as long as there is the pool.
async fn sweep<C: PooledConnection>(pool: Weak<Pool<C>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        let now = Instant::now();
        for shard in pool.shards.all() {
            let mut idle = locked(shard);
            let unfit = idle.extract_if(.., |idle| !pool.is_fit(idle, now));
            let unfit: Vec<_> = unfit.collect();
            drop(idle);
            drop(unfit);
        }
    }
}
