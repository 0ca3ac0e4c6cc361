//! The connections of one kind over HTTP/2, the streams that are reserved on them, and the requests
//! that wait for one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::oneshot;

use super::connection::{MAX_STREAMS, SharedConnection};
use super::driver::{self, ConnectionOwner, Driver};
use crate::metrics::{Limit, Metrics};
use crate::proxy::upstream::connect::Connecting;
use crate::proxy::upstream::errors::ReserveError;

/// The pause after a connection could not be opened, where others are open and requests wait. A new
/// request has one tried at once.
const RETRY: Duration = Duration::from_millis(500);

/// The settings of a pool.
pub(crate) struct Http2PoolSettings {
    pub connecting: Connecting,
    /// Whether it is for requests with a permit.
    pub fenced: bool,
    /// How long an upload may stall after its answer is whole. `None`: the exchange has its own
    /// timeout.
    pub upload_timeout: Option<Duration>,
    /// How many connections may take new streams at once.
    pub connections: usize,
    /// For the handshakes: TCP and TLS, and after them HTTP/2's.
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    pub metrics: Arc<Metrics>,
}

/// Connections of one kind, and the requests that wait for a stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Http2Pool(Arc<SharedPool>);

struct SharedPool {
    settings: Http2PoolSettings,
    /// Short sections, never across an await.
    state: Mutex<PoolState>,
}

struct PoolState {
    /// The connections that take new streams, the oldest first.
    connections: Vec<PooledConnection>,
    /// How many connections are being opened.
    opening: usize,
    /// A connection could not be opened, and another one will be tried.
    retrying: bool,
    /// How many streams the next connection is likely to allow: as many as the last one did at
    /// first.
    expected: usize,
    /// The waiting requests, the oldest first.
    waiting: VecDeque<oneshot::Sender<Result<Reservation, ReserveError>>>,
    /// Idle connections are not kept any more.
    retired: bool,
}

struct PooledConnection {
    connection: Arc<SharedConnection>,
    /// Keeps the connection open while it is idle.
    sender: SendRequest<Bytes>,
}

/// A stream that is reserved on a connection, from before the request's permit begins until both
/// directions of the stream have ended.
pub(crate) struct Reservation {
    pool: Arc<SharedPool>,
    pub(super) connection: Arc<SharedConnection>,
    /// `None`: the request has been sent.
    pub(super) sender: Option<SendRequest<Bytes>>,
}

impl Reservation {
    /// Whether its connection is for requests with a permit.
    pub(super) fn is_fenced(&self) -> bool {
        self.pool.settings.fenced
    }

    /// See [`Http2PoolSettings::upload_timeout`].
    pub(super) fn upload_timeout(&self) -> Option<Duration> {
        self.pool.settings.upload_timeout
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.connection.release();
        self.pool.serve();
    }
}

impl Http2Pool {
    pub(crate) fn new(settings: Http2PoolSettings) -> Self {
        Self(Arc::new(SharedPool {
            settings,
            state: Mutex::new(PoolState {
                connections: Vec::new(),
                opening: 0,
                retrying: false,
                expected: MAX_STREAMS as usize,
                waiting: VecDeque::new(),
                retired: false,
            }),
        }))
    }

    /// Waits for a stream, at most `within`, behind the requests that wait already.
    pub(crate) async fn reserve(&self, within: Duration) -> Result<Reservation, ReserveError> {
        let waiting = {
            let mut state = self.0.lock();
            let free = if state.waiting.is_empty() {
                self.0.take(&state)
            } else {
                None
            };
            if let Some(reservation) = free {
                return Ok(reservation);
            }
            let (tx, rx) = oneshot::channel();
            state.waiting.push_back(tx);
            if !self.0.open_more(&mut state) && state.opening == 0 {
                self.0.settings.metrics.limit(Limit::UpstreamStreams);
            }
            rx
        };
        match tokio::time::timeout(within, waiting).await {
            Ok(Ok(reserved)) => reserved,
            Ok(Err(_)) => Err(ReserveError::Retired),
            Err(_) => Err(ReserveError::Full),
        }
    }

    /// Refuses the waiting requests, and closes idle connections. A later request that was judged
    /// under these settings is still served.
    pub(crate) fn retire(&self) {
        let (waiting, idle) = {
            let mut state = self.0.lock();
            state.retired = true;
            let waiting = std::mem::take(&mut state.waiting);
            let idle = |member: &mut PooledConnection| !member.connection.in_use();
            let idle: Vec<PooledConnection> = state.connections.extract_if(.., idle).collect();
            (waiting, idle)
        };
        for waiter in waiting {
            let _ = waiter.send(Err(ReserveError::Retired));
        }
        for member in idle {
            member.connection.retire();
        }
    }
}

impl SharedPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a stream, if one is free: on the oldest connection that has one, so that the others
    /// become idle when there is less to do.
    fn take(self: &Arc<Self>, state: &PoolState) -> Option<Reservation> {
        let mut members = state.connections.iter();
        let free = members.find(|member| member.connection.reserve())?;
        Some(Reservation {
            pool: Arc::clone(self),
            connection: Arc::clone(&free.connection),
            sender: Some(free.sender.clone()),
        })
    }

    /// Gives free streams to waiting requests.
    fn serve(self: &Arc<Self>) {
        loop {
            let (waiter, reservation) = {
                let mut state = self.lock();
                while state
                    .waiting
                    .front()
                    .is_some_and(oneshot::Sender::is_closed)
                {
                    state.waiting.pop_front();
                }
                if state.waiting.is_empty() {
                    return;
                }
                let Some(reservation) = self.take(&state) else {
                    self.open_more(&mut state);
                    return;
                };
                let Some(waiter) = state.waiting.pop_front() else {
                    unreachable!("it was not empty, under the same lock")
                };
                (waiter, reservation)
            };
            // A request that has left gives its stream back, to the next round of this loop.
            let _ = waiter.send(Ok(reservation));
        }
    }

    /// Opens as many connections as the waiting requests are likely to need. `false`: no more may
    /// be opened. Each is opened in a task of its own, so that a request that leaves does not stop
    /// it.
    fn open_more(self: &Arc<Self>, state: &mut PoolState) -> bool {
        let wanted = state.waiting.len().div_ceil(state.expected);
        let open = state.connections.len() + state.opening;
        let room = self.settings.connections.saturating_sub(open);
        for _ in state.opening..wanted.min(state.opening + room) {
            state.opening += 1;
            tokio::spawn(Arc::clone(self).open());
        }
        room > 0
    }

    /// Opens a connection, and drives it to its end.
    async fn open(self: Arc<Self>) {
        let opening = CountedOpening {
            shared: &self,
            counted: true,
        };
        let settings = &self.settings;
        match driver::open(&settings.connecting, settings.connect_timeout).await {
            Ok((driver, sender)) => {
                opening.done(&driver, sender);
                let gauge = settings.metrics.upstream_http2_connections();
                driver.run(&self, gauge).await;
            }
            Err(why) => opening.failed(&why),
        }
    }

    /// Tries another connection after a pause, if requests still wait.
    async fn retry(self: Arc<Self>) {
        tokio::time::sleep(RETRY).await;
        self.lock().retrying = false;
        self.serve();
    }
}

impl ConnectionOwner for Arc<SharedPool> {
    fn more_streams(&self) {
        self.serve();
    }

    fn retire(&self, connection: &Arc<SharedConnection>) {
        let member = {
            let mut state = self.lock();
            let same = |member: &PooledConnection| Arc::ptr_eq(&member.connection, connection);
            let found = state.connections.iter().position(same);
            found.map(|at| state.connections.remove(at))
        };
        drop(member);
        connection.retire();
        self.serve();
    }

    fn retire_idle(&self, connection: &Arc<SharedConnection>) {
        let member = {
            let mut state = self.lock();
            let same = |member: &PooledConnection| Arc::ptr_eq(&member.connection, connection);
            let found = state.connections.iter().position(same);
            // Streams are only reserved under this lock.
            let found = found.filter(|_| !connection.in_use());
            found.map(|at| state.connections.remove(at))
        };
        if member.is_some() {
            drop(member);
            connection.retire();
        }
    }

    fn idle_timeout(&self) -> Duration {
        if self.lock().retired {
            Duration::ZERO
        } else {
            self.settings.idle_timeout
        }
    }
}

/// A connection that is being opened. It counts until this is dropped, even by a panic.
struct CountedOpening<'a> {
    shared: &'a Arc<SharedPool>,
    counted: bool,
}

impl CountedOpening<'_> {
    /// Stops counting, under the lock that the caller decides under: of two that fail together, one
    /// must see that it is the last.
    fn ended(&mut self, state: &mut PoolState) {
        if std::mem::take(&mut self.counted) {
            state.opening -= 1;
        }
    }

    fn done(mut self, driver: &Driver, sender: SendRequest<Bytes>) {
        let connection = Arc::clone(driver.connection());
        {
            let mut state = self.shared.lock();
            self.ended(&mut state);
            state.expected = connection.limit().max(1);
            state
                .connections
                .push(PooledConnection { connection, sender });
        }
        self.shared.serve();
    }

    /// Refuses the waiting requests, unless another connection is open or being opened. An open
    /// connection may have no free stream in time, so another one is tried.
    fn failed(mut self, why: &str) {
        let waiting = {
            let mut state = self.shared.lock();
            self.ended(&mut state);
            if state.opening > 0 {
                return;
            }
            if !state.connections.is_empty() {
                if !state.waiting.is_empty() && !std::mem::replace(&mut state.retrying, true) {
                    tokio::spawn(Arc::clone(self.shared).retry());
                }
                return;
            }
            std::mem::take(&mut state.waiting)
        };
        for waiter in waiting {
            let _ = waiter.send(Err(ReserveError::Unreachable(why.to_owned())));
        }
    }
}

impl Drop for CountedOpening<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.shared.lock().opening -= 1;
        }
    }
}
