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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::connect::{Connecting, MAX_AGE};
use super::socket::UpstreamSocket;
use crate::locked::locked;
use crate::worker::PerWorker;

/// How often idle connections are checked: at most, and at least.
pub(super) const SWEEP: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));

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

    /// Uses its socket.
    fn socket<T>(&mut self, run: impl FnOnce(&mut UpstreamSocket) -> T) -> T;
}

/// Connections of one kind.
pub(crate) struct Pool<C> {
    pub(super) connecting: Connecting,
    idle_timeout: Duration,
    /// The idle connections of each worker, the newest last.
    shards: PerWorker<Vec<IdleConnection<C>>>,
    /// No connection is kept any more.
    retired: AtomicBool,
}

/// An idle connection.
struct IdleConnection<C> {
    since: Instant,
    connection: C,
}

impl<C: PooledConnection> Pool<C> {
    /// Call it within a runtime.
    pub(super) fn new(connecting: Connecting, idle_timeout: Duration) -> Arc<Self> {
        let pool = Arc::new(Self {
            connecting,
            idle_timeout,
            shards: PerWorker::new(Vec::new),
            retired: AtomicBool::new(false),
        });
        if !idle_timeout.is_zero() {
            let every = idle_timeout.clamp(SWEEP.0, SWEEP.1);
            tokio::spawn(sweep(Arc::downgrade(&pool), every));
        }
        pool
    }

    /// Takes an idle connection that is fit for another request.
    pub(super) fn take(&self) -> Option<C> {
        let now = Instant::now();
        self.shards.all().find_map(|shard| {
            loop {
                let mut newest = locked(shard).pop()?;
                if self.is_fit(&mut newest, now)
                    && newest.connection.socket(UpstreamSocket::move_here)
                {
                    return Some(newest.connection);
                }
            }
        })
    }

    /// See [`PooledConnection::open`]. Boxed, since most requests find an idle connection and do not
    /// need this memory.
    pub(super) fn open(&self) -> Pin<Box<impl Future<Output = Result<C, String>> + use<'_, C>>> {
        Box::pin(C::open(&self.connecting))
    }

    /// Keeps an idle connection.
    pub(super) fn put(&self, connection: C) {
        let mut idle = self.shards.own();
        // Under the lock: a pool that is retired at the same time is emptied after this.
        if !self.retired.load(Ordering::Acquire) && !self.idle_timeout.is_zero() {
            idle.push(IdleConnection {
                since: Instant::now(),
                connection,
            });
        }
    }

    /// Closes all idle connections, now and later.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        for shard in self.shards.all() {
            let idle = std::mem::take(&mut *locked(shard));
            drop(idle);
        }
    }

    /// Closes the idle connections of a shard that are not fit any more.
    fn prune(&self, shard: &Mutex<Vec<IdleConnection<C>>>) {
        let now = Instant::now();
        let mut idle = locked(shard);
        let unfit = idle.extract_if(.., |idle| !self.is_fit(idle, now));
        let gone: Vec<_> = unfit.collect();
        drop(idle);
        drop(gone);
    }

    /// Whether it may carry another request.
    fn is_fit(&self, idle: &mut IdleConnection<C>, now: Instant) -> bool {
        let opened = idle.connection.socket(|socket| socket.opened);
        now.saturating_duration_since(idle.since) < self.idle_timeout
            && now.saturating_duration_since(opened) < MAX_AGE
            && idle.connection.is_fit()
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        let shards = self.shards.all();
        shards.map(|shard| locked(shard).len()).sum()
    }
}

/// Checks idle connections for as long as there is the pool.
async fn sweep<C: PooledConnection>(pool: Weak<Pool<C>>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        for shard in pool.shards.all() {
            pool.prune(shard);
        }
    }
}
