//! The connections of one kind that carry nothing, in one shard for each core.
//!
//! A worker takes from its own shard first, the newest first, and puts back there; where its own is
//! empty it takes from the others rather than have one opened. So in the ordinary case a request takes
//! one lock twice that nobody else wants. A connection from another shard moves to the runtime of the
//! worker that takes it: otherwise each of its answers would first wake the worker that opened it.
//!
//! Nobody waits for an idle connection to say something. It is looked at before it is used, and once
//! in a while by a sweep, which closes those that have ended, have said something that no request is
//! out for, or are too old. The sweep runs only while there are idle connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Http1UpstreamConnection, IdleLook};
use crate::proxy::upstream::connect::Connecting;
use crate::proxy::upstream::errors::chain;
use crate::wire::answers::AnswerFault;
use crate::worker;

/// How often idle connections are looked at.
const SWEEP: Duration = Duration::from_millis(500);
/// Shards at the most.
const MOST_SHARDS: usize = 64;

/// What [`Http1Pool::new`] takes.
pub(crate) struct Http1PoolSettings {
    pub connecting: Connecting,
    /// It is for requests with a permit.
    pub fenced: bool,
    pub idle_timeout: Duration,
    /// How long the upstream may take nothing of an upload whose answer is whole. `None`: its exchange
    /// decides that.
    pub overtime: Option<Duration>,
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
struct Shelf(Mutex<Vec<Resting>>);

/// A connection that carries nothing.
struct Resting {
    since: Instant,
    connection: Http1UpstreamConnection,
}

impl Shelf {
    /// Short sections, never across an await.
    fn lock(&self) -> MutexGuard<'_, Vec<Resting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Http1Pool {
    pub(crate) fn new(options: Http1PoolSettings) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = cores.min(MOST_SHARDS);
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

    /// A connection that has carried a request before, and of which nothing speaks against another.
    pub(super) fn take(&self) -> Option<Http1UpstreamConnection> {
        let own = self.own();
        let (before, from_own) = self.shards.split_at(own);
        from_own.iter().chain(before).find_map(|shelf| {
            loop {
                let Resting {
                    since,
                    mut connection,
                } = shelf.lock().pop()?;
                let fresh = since.elapsed() < self.options.idle_timeout;
                if fresh && is_quiet(&mut connection) && connection.move_here() {
                    return Some(connection);
                }
            }
        })
    }

    /// A connection that has carried nothing.
    ///
    /// # Errors
    ///
    /// With the causes, in one line. Nothing was written.
    pub(super) async fn open(&self) -> Result<Http1UpstreamConnection, String> {
        let opened = self.options.connecting.open().await;
        let io = opened.map_err(|error| chain(&*error))?;
        let mut connection = Http1UpstreamConnection::new(io);
        match connection.look() {
            IdleLook::Quiet => Ok(connection),
            IdleLook::Bytes => {
                tracing::warn!(fault = %AnswerFault::Greeting, "a connection to the upstream is given up");
                Err(AnswerFault::Greeting.to_string())
            }
            IdleLook::Ended => Err("it has closed the connection".to_owned()),
        }
    }

    /// Keeps a connection that carries nothing.
    pub(super) fn put(self: &Arc<Self>, mut connection: Http1UpstreamConnection) {
        connection.rest();
        {
            let mut idle = self.shards[self.own()].lock();
            // Under the lock, so that what is retired at the same time is emptied behind this.
            if self.retired.load(Ordering::Acquire) {
                return;
            }
            idle.push(Resting {
                since: Instant::now(),
                connection,
            });
        }
        // Looked at first: the line is everybody's.
        if !self.swept.load(Ordering::Relaxed) && !self.swept.swap(true, Ordering::AcqRel) {
            let every = SWEEP.min(self.options.idle_timeout);
            let every = every.max(Duration::from_millis(10));
            tokio::spawn(sweep(Arc::downgrade(self), every));
        }
    }

    /// Closes what is idle, and from now on whatever becomes idle.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        for shelf in &self.shards {
            let idle = std::mem::take(&mut *shelf.lock());
            drop(idle);
        }
    }

    /// Closes what is idle for no good. `false`: nothing is idle.
    fn look_through(&self) -> bool {
        let mut any = false;
        for shelf in &self.shards {
            let mut gone = Vec::new();
            {
                let mut idle = shelf.lock();
                let mut at = 0;
                while at < idle.len() {
                    let resting = &mut idle[at];
                    let old = resting.since.elapsed() >= self.options.idle_timeout;
                    if old || !is_quiet(&mut resting.connection) {
                        gone.push(idle.remove(at));
                    } else {
                        at += 1;
                    }
                }
                any |= !idle.is_empty();
            }
            drop(gone);
        }
        any
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
            tracing::warn!(fault = %AnswerFault::Extra, "a connection to the upstream is given up");
            false
        }
        IdleLook::Ended => false,
    }
}

/// Looks at idle connections until there are none.
async fn sweep(pool: Weak<Http1Pool>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        if pool.look_through() {
            continue;
        }
        pool.swept.store(false, Ordering::Release);
        // One that was put there meanwhile has seen that this runs.
        if !pool.look_through() || pool.swept.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}
