//! Accepts only as many connections as there are permits and descriptors. When no permit is free,
//! one more is accepted, and the connection that has been idle longest makes room for it. Further
//! connections wait in the kernel's queue.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;
use tokio_util::either::Either;

use super::connection_limit::{ConnectionLimit, ConnectionPermit, FreePermit};
use super::idle_connections::IdleConnections;
use crate::metrics::{Limit, Metrics};
use crate::proxy::{Network, Proxy};
use crate::socket::Socket;

/// The pause after an accept that found no descriptor. Any descriptor that the process closes
/// helps, and nothing reports that.
const PAUSE: Duration = Duration::from_millis(50);
/// How often room is looked for while a client waits. A connection that is asked to make room has
/// mostly closed by then.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// After this many looks another connection is asked to make room.
const LOOKS_PER_CONNECTION: usize = 10;
/// How many looks there are for a client whose network has its share. Then it is refused, since no
/// other client is accepted meanwhile.
const LOOKS: usize = 20;
/// The shortest time between two log lines about descriptors.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// A bound listener of the data port.
#[derive(Debug)]
pub enum DataListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A client's socket.
pub(super) struct AcceptedSocket {
    pub socket: Socket,
    /// The client's address, taken at accept because a socket whose client has left no longer has
    /// it. `None`: a Unix socket.
    pub ip: Option<IpAddr>,
}

/// The listener with its limits.
pub(super) struct Acceptor {
    listener: DataListener,
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
        listener: DataListener,
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
                    let permit = self
                        .limit
                        .assign(free, ip, |network, take| self.idle.give_way(network, take));
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
            let of = match self.client().await {
                Ok(of) => of,
                Err(permit) => return permit,
            };
            for look in 1..=LOOKS {
                if let Ok(permit) = tokio::time::timeout(LOOK_AGAIN, self.limit.acquire()).await {
                    return permit;
                }
                let in_vain = look == LOOKS && of.is_some();
                let closing = self.idle.is_any_closing(Instant::now());
                if !in_vain && (look % LOOKS_PER_CONNECTION == 0 || !closing) {
                    self.make_room(of);
                }
            }
            if of.is_some() {
                // The connections of its network stay, and any other permit belongs to others.
                self.waiting = None;
                self.limit.refused();
            }
        }
    }

    /// Waits for a client without a permit, and has a connection make room for it. Returns the
    /// network whose connections have to, if not all; or a permit that has become free before.
    async fn client(&mut self) -> Result<Option<Network>, FreePermit> {
        while self.waiting.is_none() {
            let accepted = tokio::select! {
                permit = self.limit.acquire() => return Err(permit),
                accepted = self.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
                    let of = self.limit.over_share(self.counted(&stream));
                    if self.make_room(of) || of.is_none() {
                        self.waiting = Some(stream);
                        return Ok(of);
                    }
                    // Any other permit belongs to others.
                    self.limit.refused();
                }
                Err(error) => self.failed(&error).await,
            }
        }
        self.make_room(None);
        Ok(None)
    }

    /// Has the longest idle connection make room: of all, or of one network. `false`: none is idle.
    fn make_room(&self, of: Option<Network>) -> bool {
        let now = Instant::now();
        match of {
            Some(network) => self.idle.close_longest_of(network, now, || ()).is_some(),
            None => self.idle.close_longest(now),
        }
    }

    /// The address that a connection counts for. `None`: it has none, or carries the requests of a
    /// trusted proxy's clients.
    fn counted(&self, accepted: &AcceptedSocket) -> Option<IpAddr> {
        accepted.ip.filter(|ip| !self.proxy.trusts(*ip))
    }

    async fn accept(&self) -> io::Result<AcceptedSocket> {
        let (socket, ip) = match &self.listener {
            DataListener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Either::Left(stream), Some(address.ip().to_canonical()))
            }
            DataListener::Unix(listener) => (Either::Right(listener.accept().await?.0), None),
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
