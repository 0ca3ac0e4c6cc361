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
//! those that have ended, are too old, or have sent such bytes. The sweep runs only while there are
//! idle connections.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::connect::{Connecting, MAX_AGE};
use crate::worker;

/// How often idle connections are checked.
const SWEEP: Duration = Duration::from_millis(500);
/// The most shards.
const MAX_SHARDS: usize = 64;

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

    /// Has this worker's runtime wait for the socket from now on. `false`: the connection is lost.
    fn move_here(&mut self) -> bool;

    /// When it was opened.
    fn opened(&self) -> Instant;
}

/// Connections of one kind.
pub(crate) struct Pool<C> {
    pub(super) connecting: Connecting,
    idle_timeout: Duration,
    shards: Box<[Shelf<C>]>,
    /// A sweep runs.
    swept: AtomicBool,
    /// No connection is kept any more.
    retired: AtomicBool,
}

/// The idle connections of one worker, the newest last. On cache lines of its own.
#[repr(align(128))]
struct Shelf<C>(Mutex<Vec<IdleConnection<C>>>);

/// An idle connection.
struct IdleConnection<C> {
    since: Instant,
    connection: C,
}

impl<C> Shelf<C> {
    /// Short sections, never across an await.
    fn lock(&self) -> MutexGuard<'_, Vec<IdleConnection<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: PooledConnection> Pool<C> {
    pub(super) fn new(connecting: Connecting, idle_timeout: Duration) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = cores.min(MAX_SHARDS);
        Self {
            connecting,
            idle_timeout,
            shards: std::iter::repeat_with(|| Shelf(Mutex::default()))
                .take(shards)
                .collect(),
            swept: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        }
    }

    fn own(&self) -> usize {
        worker::index() % self.shards.len()
    }

    /// Takes an idle connection that is fit for another request.
    pub(super) fn take(&self) -> Option<C> {
        let own = self.own();
        let (before, from_own) = self.shards.split_at(own);
        let now = Instant::now();
        from_own.iter().chain(before).find_map(|shelf| {
            loop {
                let mut newest = shelf.lock().pop()?;
                if self.is_fit(&mut newest, now) && newest.connection.move_here() {
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
    pub(super) fn put(self: &Arc<Self>, connection: C) {
        {
            let mut idle = self.shards[self.own()].lock();
            // Under the lock: a pool that is retired at the same time is emptied after this.
            if self.retired.load(Ordering::Acquire) || self.idle_timeout.is_zero() {
                return;
            }
            idle.push(IdleConnection {
                since: Instant::now(),
                connection,
            });
        }
        // Read first: all cores share this cache line.
        if !self.swept.load(Ordering::Relaxed) && !self.swept.swap(true, Ordering::AcqRel) {
            let every = SWEEP.min(self.idle_timeout);
            let every = every.max(Duration::from_millis(10));
            tokio::spawn(sweep(Arc::downgrade(self), every));
        }
    }

    /// Closes all idle connections, now and later.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        for shelf in &self.shards {
            let idle = std::mem::take(&mut *shelf.lock());
            drop(idle);
        }
    }

    /// Closes idle connections that are not fit any more. `false`: none is left.
    fn prune(&self) -> bool {
        let (mut any, now) = (false, Instant::now());
        for shelf in &self.shards {
            let mut gone = Vec::new();
            {
                let mut idle = shelf.lock();
                let mut at = 0;
                while at < idle.len() {
                    if self.is_fit(&mut idle[at], now) {
                        at += 1;
                    } else {
                        gone.push(idle.remove(at));
                    }
                }
                any |= !idle.is_empty();
            }
            drop(gone);
        }
        any
    }

    /// Whether it may carry another request.
    fn is_fit(&self, idle: &mut IdleConnection<C>, now: Instant) -> bool {
        now.saturating_duration_since(idle.since) < self.idle_timeout
            && now.saturating_duration_since(idle.connection.opened()) < MAX_AGE
            && idle.connection.is_fit()
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.shards.iter().map(|shelf| shelf.lock().len()).sum()
    }
}

/// Checks idle connections until there are none.
async fn sweep<C: PooledConnection>(pool: Weak<Pool<C>>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        if pool.prune() {
            continue;
        }
        pool.swept.store(false, Ordering::Release);
        // A connection that was put back meanwhile has started no other sweep.
        if !pool.prune() || pool.swept.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}
