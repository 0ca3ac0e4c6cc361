//! The idle connections of one kind, in one shard for each core.
//!
//! A worker takes the newest connection of its own shard first, and puts connections back there.
//! Where its own shard is empty it takes from the others before it opens one. So an ordinary
//! request takes one lock twice, which no other worker wants. A connection from another shard moves
//! to the runtime of the worker that takes it. Otherwise each of its answers would first wake the
//! worker that opened it.
//!
//! No task waits for an idle connection. It is checked by a system call before it is used, since
//! bytes that lie there would be taken for the next request's answer. A sweep now and then closes
//! those that have ended, are too old, or have sent such bytes. The sweep runs only while there are
//! idle connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Http1UpstreamConnection, IdleLook};
use crate::proxy::upstream::connect::{Connecting, MAX_AGE};
use crate::wire::upstream_framing::UpstreamFault;
use crate::worker;

/// How often idle connections are checked.
const SWEEP: Duration = Duration::from_millis(500);
/// The most shards.
const MAX_SHARDS: usize = 64;

/// The settings of a pool.
pub(crate) struct Http1PoolSettings {
    pub connecting: Connecting,
    /// It is for requests with a permit.
    pub fenced: bool,
    pub idle_timeout: Duration,
    /// How long an upload may stall after its answer is whole. `None`: the exchange has its own
    /// timeout.
    pub upload_timeout: Option<Duration>,
}

/// Connections of one kind.
pub(crate) struct Http1Pool {
    pub(super) options: Http1PoolSettings,
    shards: Box<[Shelf]>,
    /// A sweep runs.
    swept: AtomicBool,
    /// No connection is kept any more.
    retired: AtomicBool,
}

/// The idle connections of one worker, the newest last. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shelf(Mutex<Vec<IdleConnection>>);

/// An idle connection.
struct IdleConnection {
    since: Instant,
    connection: Http1UpstreamConnection,
}

impl Shelf {
    /// Short sections, never across an await.
    fn lock(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Http1Pool {
    pub(crate) fn new(options: Http1PoolSettings) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = cores.min(MAX_SHARDS);
        Self {
            options,
            shards: std::iter::repeat_with(Shelf::default)
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
    pub(super) fn take(&self) -> Option<Http1UpstreamConnection> {
        let own = self.own();
        let (before, from_own) = self.shards.split_at(own);
        from_own.iter().chain(before).find_map(|shelf| {
            loop {
                let mut newest = shelf.lock().pop()?;
                if self.is_fit(&mut newest) && newest.connection.move_here() {
                    return Some(newest.connection);
                }
            }
        })
    }

    /// As [`Self::open`], and closes it again.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        self.open().await.map(drop)
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The causes, in one line. Nothing was written.
    pub(super) async fn open(&self) -> Result<Http1UpstreamConnection, String> {
        let io = self.options.connecting.open().await?;
        let mut connection = Http1UpstreamConnection::new(io);
        match connection.look() {
            IdleLook::Quiet => Ok(connection),
            IdleLook::Bytes => {
                tracing::warn!(fault = %UpstreamFault::Greeting, "a connection to the upstream is given up");
                Err(UpstreamFault::Greeting.to_string())
            }
            IdleLook::Ended => Err("it has closed the connection".to_owned()),
        }
    }

    /// Keeps an idle connection.
    pub(super) fn put(self: &Arc<Self>, mut connection: Http1UpstreamConnection) {
        connection.shrink();
        {
            let mut idle = self.shards[self.own()].lock();
            // Under the lock: a pool that is retired at the same time is emptied after this.
            if self.retired.load(Ordering::Acquire) || self.options.idle_timeout.is_zero() {
                return;
            }
            idle.push(IdleConnection {
                since: Instant::now(),
                connection,
            });
        }
        // Read first: all cores share this cache line.
        if !self.swept.load(Ordering::Relaxed) && !self.swept.swap(true, Ordering::AcqRel) {
            let every = SWEEP.min(self.options.idle_timeout);
            let every = every.max(Duration::from_millis(10));
            tokio::spawn(sweep(Arc::downgrade(self), every));
        }
    }

    /// Closes all idle connections, now and later.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        for shelf in &self.shards {
            let idle = std::mem::take(&mut *shelf.lock());
            drop(idle);
        }
    }

    /// Closes idle connections that are not fit any more. `false`: none is left.
    fn prune(&self) -> bool {
        let mut any = false;
        for shelf in &self.shards {
            let mut gone = Vec::new();
            {
                let mut idle = shelf.lock();
                let mut at = 0;
                while at < idle.len() {
                    if self.is_fit(&mut idle[at]) {
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
    fn is_fit(&self, idle: &mut IdleConnection) -> bool {
        idle.since.elapsed() < self.options.idle_timeout
            && idle.connection.opened.elapsed() < MAX_AGE
            && is_quiet(&mut idle.connection)
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.shards.iter().map(|shelf| shelf.lock().len()).sum()
    }
}

fn is_quiet(connection: &mut Http1UpstreamConnection) -> bool {
    match connection.look() {
        IdleLook::Quiet => true,
        IdleLook::Bytes => {
            tracing::warn!(fault = %UpstreamFault::Extra, "a connection to the upstream is given up");
            false
        }
        IdleLook::Ended => false,
    }
}

/// Checks idle connections until there are none.
async fn sweep(pool: Weak<Http1Pool>, every: Duration) {
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
