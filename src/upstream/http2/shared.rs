//! HTTP/2 connections that requests share which are not fenced. A request goes over the oldest
//! connection with a free stream, so that the others become idle when there is less to do. Where
//! none has one, another connection is opened, one at a time: a burst of requests shares it. A task
//! drives each connection.
//!
//! The upstream may lower its limit at any time. A request may then wait in h2's queue for a stream
//! until its caller leaves: it holds up no token.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::time::Instant;

use super::connection::{Http2Connection, MAX_STREAMS};
use crate::upstream::connect::{Connecting, MAX_AGE};
use crate::upstream::pool::PooledConnection as _;

/// The connections.
pub(crate) struct SharedConnections {
    connecting: Connecting,
    idle_timeout: Duration,
    /// Those that take new requests, the oldest first. Short sections, never across an await.
    members: Mutex<Members>,
    /// Held while one is opened, so across an await. The failures so far, and the last one.
    opening: tokio::sync::Mutex<(u64, String)>,
    /// The same count. A request that has waited for a failure fails with it.
    failures: AtomicU64,
}

#[derive(Default)]
struct Members {
    list: Vec<Member>,
    /// Idle connections are not kept any more.
    retired: bool,
}

struct Member {
    sender: SendRequest<Bytes>,
    opened: Instant,
    usage: Arc<Usage>,
}

/// The use of one connection.
struct Usage {
    streams: AtomicUsize,
    /// When its last stream ended. Short sections, never across an await.
    idle_since: Mutex<Instant>,
}

impl Usage {
    fn is_idle(&self, timeout: Duration) -> bool {
        let idle_since = self.idle_since.lock();
        let idle_since = *idle_since.unwrap_or_else(PoisonError::into_inner);
        self.streams.load(Ordering::Acquire) == 0 && idle_since.elapsed() >= timeout
    }
}

impl Member {
    /// Whether it takes one more request.
    fn is_free(&mut self) -> bool {
        let limit = self.sender.current_max_send_streams().min(MAX_STREAMS);
        self.usage.streams.load(Ordering::Acquire) < limit
    }

    /// Whether it takes no more requests, ever.
    fn is_over(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        // An error after a GOAWAY, or when the stream numbers are used up.
        self.opened.elapsed() >= MAX_AGE
            || matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Err(_)))
    }
}

impl SharedConnections {
    pub(crate) fn new(connecting: Connecting, idle_timeout: Duration) -> Self {
        Self {
            connecting,
            idle_timeout,
            members: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream for one request, on a connection that is open or on another one.
    ///
    /// # Errors
    ///
    /// Why no connection could be opened, in one line.
    pub(crate) async fn stream(self: &Arc<Self>) -> Result<SharedStream, String> {
        if let Some(free) = self.free() {
            return Ok(free);
        }
        let seen = self.failures.load(Ordering::Acquire);
        let mut failed = self.opening.lock().await;
        if let Some(free) = self.free() {
            return Ok(free);
        }
        if failed.0 != seen {
            return Err(failed.1.clone());
        }
        let opened = Box::pin(Http2Connection::open(&self.connecting)).await;
        let mut connection = opened.inspect_err(|error| {
            *failed = (seen + 1, error.clone());
            self.failures.store(seen + 1, Ordering::Release);
        })?;
        let Some(sender) = connection.take_sender() else {
            unreachable!("it was opened just now")
        };
        let mut member = Member {
            sender,
            opened: connection.opened(),
            usage: Arc::new(Usage {
                streams: AtomicUsize::new(0),
                idle_since: Mutex::new(Instant::now()),
            }),
        };
        let stream = self.stream_on(&mut member);
        let usage = Arc::clone(&member.usage);
        {
            let mut members = self.lock();
            if !members.retired {
                members.list.push(member);
            }
        }
        tokio::spawn(Arc::clone(self).drive(connection, usage));
        Ok(stream)
    }

    /// A stream of a connection that is open.
    fn free(self: &Arc<Self>) -> Option<SharedStream> {
        let mut members = self.lock();
        members.list.retain_mut(|member| !member.is_over());
        let free = members.list.iter_mut().find_map(|member| {
            let free = member.is_free();
            free.then_some(member)
        })?;
        Some(self.stream_on(free))
    }

    /// Under the lock, so that two requests do not take one stream.
    fn stream_on(self: &Arc<Self>, member: &mut Member) -> SharedStream {
        member.usage.streams.fetch_add(1, Ordering::AcqRel);
        SharedStream {
            sender: Some(member.sender.clone()),
            connections: Arc::clone(self),
            usage: Arc::clone(&member.usage),
            answered: false,
        }
    }

    /// Drives a connection to its end.
    async fn drive(self: Arc<Self>, mut connection: Http2Connection, usage: Arc<Usage>) {
        // A panic in the library must not leave a connection among those that take requests.
        let _leaves = Leaves(&self, &usage);
        let mut ended = std::pin::pin!(std::future::poll_fn(|cx| connection.poll(cx)));
        let every = self.idle_timeout.clamp(SWEEP.0, SWEEP.1);
        loop {
            tokio::select! {
                ended = &mut ended => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "an HTTP/2 connection to the upstream broke");
                    }
                    return;
                }
                () = tokio::time::sleep(every) => {
                    let mut members = self.lock();
                    if usage.is_idle(self.idle_timeout) {
                        // Without a sender, h2 ends the connection.
                        members.remove(&usage);
                    }
                }
            }
        }
    }

    /// Opens no more connections for later requests, and closes idle ones. A later request that was
    /// judged under these settings is still served.
    pub(crate) fn retire(&self) {
        let mut members = self.lock();
        members.retired = true;
        // h2 ends each with its last stream.
        members.list.clear();
    }
}

/// How often a connection is checked for being idle: at most, and at least.
const SWEEP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

impl Members {
    fn remove(&mut self, usage: &Arc<Usage>) {
        self.list
            .retain(|member| !Arc::ptr_eq(&member.usage, usage));
    }
}

/// Takes a connection from those that take requests.
struct Leaves<'a>(&'a SharedConnections, &'a Arc<Usage>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(self.1);
    }
}

/// A stream of a connection that others share. Dropped before its response, it takes the connection
/// from those that take requests: a connection may lead nowhere without an error. Its other
/// requests go on.
#[must_use = "it holds a stream"]
pub(crate) struct SharedStream {
    /// `None`: the request has been sent.
    sender: Option<SendRequest<Bytes>>,
    connections: Arc<SharedConnections>,
    usage: Arc<Usage>,
    /// The upstream has said something about the request.
    answered: bool,
}

impl SharedStream {
    pub(super) fn sender(&mut self) -> Option<SendRequest<Bytes>> {
        self.sender.take()
    }

    pub(super) fn connections(&self) -> Arc<SharedConnections> {
        Arc::clone(&self.connections)
    }

    /// The upstream has said something about the request.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        if !self.answered && self.sender.is_none() {
            self.connections.lock().remove(&self.usage);
        }
        {
            let mut idle_since = self
                .usage
                .idle_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *idle_since = Instant::now();
        }
        self.usage.streams.fetch_sub(1, Ordering::AcqRel);
    }
}
