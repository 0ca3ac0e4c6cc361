//! HTTP/2 connections that requests share which are not fenced. A request goes over the oldest
//! connection with a free stream, so that the others become idle when there is less to do. Where
//! none has one, another connection is opened, one at a time: a burst of requests shares it. A task
//! drives each connection.
//!
//! The upstream may lower its limit at any time. A request may then wait in h2's queue for a stream
//! until its caller leaves: it holds up no token.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, WeakShared};
use h2::client::SendRequest;
use tokio::time::Instant;

use super::connection::{Http2Connection, MAX_STREAMS};
use crate::locked::locked;
use crate::upstream::connect::{Connecting, MAX_AGE};
use crate::upstream::pool::{PooledConnection as _, SWEEP};

/// The connections.
pub(crate) struct SharedConnections {
    connecting: Connecting,
    /// Short sections, never across an await.
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    /// Those that take new requests, the oldest first.
    list: Vec<Member>,
    /// One is being opened, as long as a request waits for it.
    opening: Option<WeakShared<BoxFuture<'static, Result<(), String>>>>,
}

struct Member {
    sender: SendRequest<Bytes>,
    opened: Instant,
    /// When its last stream began.
    used: Instant,
    /// Its driver and each of its streams are other owners.
    users: Arc<()>,
}

impl Member {
    /// How many streams it has.
    fn streams(&self) -> usize {
        Arc::strong_count(&self.users).saturating_sub(2)
    }

    /// Whether it takes one more request.
    fn is_free(&self) -> bool {
        self.streams() < self.sender.current_max_send_streams().min(MAX_STREAMS)
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
    pub(crate) fn new(connecting: Connecting) -> Arc<Self> {
        Arc::new(Self {
            connecting,
            members: Mutex::default(),
        })
    }

    /// A stream for one request, on a connection that is open or on another one, and what sends the
    /// request.
    ///
    /// # Errors
    ///
    /// Why no connection could be opened, in one line. All that have waited for it get this.
    pub(crate) async fn stream(
        self: &Arc<Self>,
    ) -> Result<(SharedStream, SendRequest<Bytes>), String> {
        loop {
            let opening = {
                let mut members = locked(&self.members);
                if let Some(stream) = self.free(&mut members.list) {
                    return Ok(stream);
                }
                let opening = members.opening.as_ref().and_then(WeakShared::upgrade);
                opening.unwrap_or_else(|| {
                    let opening = Arc::clone(self).open().boxed().shared();
                    members.opening = opening.downgrade();
                    opening
                })
            };
            opening.await?;
        }
    }

    async fn open(self: Arc<Self>) -> Result<(), String> {
        let opened = Http2Connection::open(&self.connecting).await;
        let mut members = locked(&self.members);
        members.opening = None;
        let mut connection = opened?;
        let sender = connection.sender.take().ok_or("it takes no requests")?;
        let (users, now) = (Arc::new(()), Instant::now());
        let driver = SharedStream::new(&self, &users);
        // Requests of several workers may have waited.
        connection.socket().move_here();
        tokio::spawn(driver.drive(connection));
        members.list.push(Member {
            sender,
            opened: now,
            used: now,
            users,
        });
        Ok(())
    }

    /// A stream of a connection that is open. Under the lock, so that two requests do not take one.
    fn free(
        self: &Arc<Self>,
        list: &mut Vec<Member>,
    ) -> Option<(SharedStream, SendRequest<Bytes>)> {
        list.retain_mut(|member| !member.is_over());
        let member = list.iter_mut().find(|member| member.is_free())?;
        member.used = Instant::now();
        Some((
            SharedStream::new(self, &member.users),
            member.sender.clone(),
        ))
    }

    /// Closes the connections as their last streams end. A later request that was judged under these
    /// settings is still served.
    pub(crate) fn retire(&self) {
        locked(&self.members).list.clear();
    }
}

/// A stream of a connection that others share. Dropped before its response, it takes the connection
/// from those that take requests: a connection may lead nowhere without an error. Its other
/// requests go on.
#[must_use = "it holds a stream"]
pub(crate) struct SharedStream {
    connections: Arc<SharedConnections>,
    users: Arc<()>,
    /// The upstream has said something about the request.
    pub(super) answered: bool,
}

impl SharedStream {
    fn new(connections: &Arc<SharedConnections>, users: &Arc<()>) -> Self {
        Self {
            connections: Arc::clone(connections),
            users: Arc::clone(users),
            answered: false,
        }
    }

    /// Drives the connection to its end. A panic in the library drops this too, and leaves no
    /// connection among those that take requests.
    async fn drive(self, mut connection: Http2Connection) {
        let timeout = self.connections.connecting.settings.idle_timeout.0;
        let every = timeout.clamp(SWEEP.0, SWEEP.1);
        loop {
            tokio::select! {
                ended = poll_fn(|cx| connection.poll(cx)) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "an HTTP/2 connection to the upstream broke");
                    }
                    return;
                }
                // Without a sender, h2 ends the connection.
                () = tokio::time::sleep(every) => self.leave(|member| {
                    member.streams() == 0 && member.used.elapsed() >= timeout
                }),
            }
        }
    }

    /// Takes the connection from those that take requests, if that is so.
    fn leave(&self, so: impl Fn(&Member) -> bool) {
        let list = &mut locked(&self.connections.members).list;
        list.retain(|member| !Arc::ptr_eq(&member.users, &self.users) || !so(member));
    }
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        if !self.answered {
            self.leave(|_| true);
        }
    }
}
