//! Accepts only as many connections as there are permits and descriptors. When no permit is free,
//! one more is accepted, and the connection that has been idle longest is closed for it. Further
//! connections wait in the kernel's queue.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;
use tokio_util::either::Either;

use super::connection_limit::{ConnectionLimit, ConnectionPermit, FreePermit};
use super::idle_connections::IdleConnections;
use crate::metrics::{Limit, Metrics};
use crate::proxy::Proxy;
use crate::socket::{Listener, Socket};

/// The pause after an accept that found no descriptor. Any descriptor that the process closes
/// helps, and nothing reports that.
const PAUSE: Duration = Duration::from_millis(50);
/// An idle connection has this long to close before another one is asked to.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The shortest time between two log lines about descriptors.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// A client's socket.
pub(super) struct AcceptedSocket {
    pub socket: Socket,
    /// The client's address, taken at accept because a socket whose client has left no longer has
    /// it. `None`: a Unix socket.
    pub ip: Option<IpAddr>,
}

/// The listener with its limits.
pub(super) struct Acceptor {
    listener: Listener,
    limit: Arc<ConnectionLimit>,
    idle: Arc<IdleConnections>,
    proxy: Arc<Proxy>,
    /// A socket that was accepted and has no permit yet.
    waiting: Option<AcceptedSocket>,
    metrics: Arc<Metrics>,
    /// The last accept found no descriptor.
    out_of_descriptors: bool,
    logged: Option<Instant>,
}

impl Acceptor {
    pub(super) fn new(
        listener: Listener,
        limit: Arc<ConnectionLimit>,
        idle: Arc<IdleConnections>,
        proxy: Arc<Proxy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            listener,
            limit,
            idle,
            proxy,
            waiting: None,
            metrics,
            out_of_descriptors: false,
            logged: None,
        }
    }

    /// The next connection that has a permit. Dropping the future loses no connection.
    pub(super) async fn next(&mut self) -> (AcceptedSocket, ConnectionPermit) {
        loop {
            let free = self.free_permit().await;
            let accepted = match self.waiting.take() {
                Some(stream) => Ok(stream),
                None => self.accept().await,
            };
            match accepted {
                Ok(stream) => {
                    self.out_of_descriptors = false;
                    let ip = self.counted(&stream);
                    let closes = |network| self.idle.close_longest(Some(network), Instant::now());
                    let permit = self.limit.assign(free, ip, closes);
                    if let Ok(permit) = permit {
                        return (stream, permit);
                    }
                    tracing::debug!(
                        client = ip.map(|ip| ip.to_string()),
                        "closed: its address has limits.connections_per_client connections"
                    );
                }
                Err(error) => self.failed(&error).await,
            }
        }
    }

    /// Waits for a permit: a free one, or that of an idle connection once a client waits for it.
    async fn free_permit(&mut self) -> FreePermit {
        if let Some(permit) = self.limit.try_acquire() {
            return permit;
        }
        loop {
            let Some(waiting) = &self.waiting else {
                let accepted = tokio::select! {
                    permit = self.limit.acquire() => return permit,
                    accepted = self.accept() => accepted,
                };
                match accepted {
                    Ok(stream) => self.waiting = Some(stream),
                    Err(error) => self.failed(&error).await,
                }
                continue;
            };
            // An address that has its share gives up one of its own.
            let of = self.limit.over_share(self.counted(waiting));
            if !self.idle.close_longest(of, Instant::now()) && of.is_some() {
                // Any other permit belongs to others.
                self.waiting = None;
                self.limit.refused();
                continue;
            }
            if let Ok(permit) = tokio::time::timeout(LOOK_AGAIN, self.limit.acquire()).await {
                return permit;
            }
        }
    }

    /// The address that a connection counts for. `None`: it has none, or carries the requests of a
    /// trusted proxy's clients.
    fn counted(&self, accepted: &AcceptedSocket) -> Option<IpAddr> {
        accepted.ip.filter(|ip| !self.proxy.trusts(*ip))
    }

    async fn accept(&self) -> io::Result<AcceptedSocket> {
        let (socket, ip) = match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Either::Left(stream), Some(address.ip().to_canonical()))
            }
            Listener::Unix(listener) => (Either::Right(listener.accept().await?.0), None),
        };
        Ok(AcceptedSocket { socket, ip })
    }

    /// Waits after an error of accept(2) that concerns the process: no descriptors, or no memory.
    /// All others concern the new socket alone.
    async fn failed(&mut self, error: &io::Error) {
        let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        if !ours
            .iter()
            .any(|ours| error.raw_os_error() == Some(ours.raw_os_error()))
        {
            tracing::debug!(%error, "a connection was gone before it was accepted");
            return;
        }
        if !self.out_of_descriptors {
            self.out_of_descriptors = true;
            self.metrics.limit(Limit::FileDescriptors);
            let now = Instant::now();
            if self.logged.is_none_or(|logged| now - logged >= LOG_AGAIN) {
                self.logged = Some(now);
                tracing::warn!(%error, "no connection can be accepted until descriptors are free: they wait. Raise the limit (ulimit -n, LimitNOFILE) or lower limits.connections");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
