//! Accepts connections, as many as there are permits and descriptors for: one more, which waits for
//! its permit. Further connections wait in the kernel's queue. One whose address has its share is
//! closed at once.
//!
//! The socket holds the [`OpenConnection`]. So a tunnel, which has left HTTP, keeps its permit
//! until its descriptor is closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection_state::{ConnectionState, Signal};
use crate::config::{ClientShare, LimitSettings};
use crate::locked::locked;
use crate::metrics::{InFlightGuard, Limit, Metrics};
use crate::proxy::{ClientPermit, ClientShares, Proxy};
use crate::socket::{self, DetachedSocket, Listener};

/// A client's connection that has its permits.
pub(super) struct Accepted {
    pub socket: DetachedSocket,
    /// The client's address, taken at accept because a socket whose client has left no longer has
    /// it. `None`: a Unix socket.
    pub ip: Option<IpAddr>,
    pub open: OpenConnection,
}

/// Accepts connections for ever, and hands each to `serve` once it has its permits.
pub(super) async fn accept_all(
    listener: Listener,
    limit: &Arc<ConnectionLimit>,
    proxy: &Proxy,
    mut serve: impl FnMut(Accepted),
) {
    loop {
        let starved = || proxy.metrics.limit(Limit::FileDescriptors);
        let (socket, address) = listener.next(starved).await;
        let Ok(socket) = socket::detach(socket) else {
            continue;
        };
        let ip = address.map(|address| address.ip().to_canonical());
        // The connections of a trusted proxy carry the requests of many clients.
        let counted = ip.filter(|ip| !proxy.trusts(*ip));
        if let Some(open) = limit.enter(counted).await {
            serve(Accepted { socket, ip, open });
        } else {
            tracing::debug!(
                client = ip.map(|ip| ip.to_string()),
                "closed: its address has limits.connections_per_client connections"
            );
        }
    }
}

/// The limits of the data port, and its open connections.
pub(super) struct ConnectionLimit {
    free: Arc<Semaphore>,
    clients: Arc<ClientShares>,
    open: Mutex<OpenConnections>,
    metrics: Arc<Metrics>,
}

/// Locked for short sections, never across an await.
#[derive(Default)]
struct OpenConnections {
    /// The strongest signal that all connections have got, or 0.
    signal: u8,
    /// By their addresses in memory.
    all: HashMap<usize, Arc<ConnectionState>>,
}

/// An open connection with its permits.
#[must_use = "dropping it frees its permits"]
pub(super) struct OpenConnection {
    pub state: Arc<ConnectionState>,
    limit: Arc<ConnectionLimit>,
    _counted: InFlightGuard,
    _of_client: Option<ClientPermit>,
    /// Freed last: the next connection must not find this one in its client's share.
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub(super) fn new(limits: &LimitSettings, metrics: Arc<Metrics>) -> Self {
        let share = ClientShare::of(limits.connections, limits.connections_per_client);
        Self {
            free: Arc::new(Semaphore::new(limits.connections.get())),
            clients: ClientShares::new(share),
            open: Mutex::default(),
            metrics,
        }
    }

    /// Waits until a connection that counts for `ip` has a permit. `None`: its network has its
    /// share.
    pub(super) async fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Option<OpenConnection> {
        let free = self.free.available_permits();
        let Ok(of_client) = self.clients.take(ip, free.max(1)) else {
            self.metrics.limit(Limit::ConnectionsPerClient);
            return None;
        };
        if free == 0 {
            self.metrics.limit(Limit::Connections);
        }
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let mut open = locked(&self.open);
        let state = Arc::new(ConnectionState::new(open.signal));
        open.all
            .insert(Arc::as_ptr(&state).addr(), Arc::clone(&state));
        Some(OpenConnection {
            state,
            limit: Arc::clone(self),
            _counted: InFlightGuard::over(&self.metrics.series.connections),
            _of_client: of_client,
            _permit: permit,
        })
    }

    /// Sends a signal to all connections, and to later ones.
    pub(super) fn signal(&self, signal: Signal) {
        let mut open = locked(&self.open);
        open.signal = open.signal.max(signal as u8);
        for state in open.all.values() {
            state.signal(signal);
        }
    }
}

impl OpenConnection {
    /// Notes that the client took nothing of its answer for too long.
    pub(super) fn write_timed_out(&self) {
        self.limit.metrics.limit(Limit::WriteTimeout);
        tracing::debug!("a client took nothing of its answer: its connection is reset");
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        locked(&self.limit.open)
            .all
            .remove(&Arc::as_ptr(&self.state).addr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, parse};

    fn limit(limits: &str) -> Arc<ConnectionLimit> {
        let mut overrides = Overrides::default();
        overrides.set("upstream.url", "http://127.0.0.1:3000", "--upstream");
        let parsed = parse(&format!("limits: {{ {limits} }}\n"), &overrides);
        let (settings, _) = parsed.unwrap_or_else(|problems| panic!("{problems}"));
        let metrics = Arc::new(Metrics::new(&[]));
        Arc::new(ConnectionLimit::new(&settings.limits, metrics))
    }

    async fn enter(limit: &Arc<ConnectionLimit>, ip: Option<&str>) -> Option<OpenConnection> {
        let ip = ip.map(|ip| ip.parse().expect("an address"));
        limit.enter(ip).await
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_waits_and_a_later_one_gets_the_signal() {
        let all = limit("connections: 2");
        let (first, second) = (enter(&all, None).await, enter(&all, None).await);
        let waiting = tokio::spawn({
            let all = Arc::clone(&all);
            async move { enter(&all, None).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        let waited = waiting.await.expect("no panic").expect("a permit");
        assert!(!waited.state.is(Signal::Leave));
        drop((second, waited));
        assert!(locked(&all.open).all.is_empty());
        all.signal(Signal::Leave);
        let late = enter(&all, None).await.expect("a permit");
        assert!(late.state.is(Signal::Leave), "it came later");
    }

    #[tokio::test]
    async fn an_address_has_its_share_and_no_more() {
        let all = limit("connections: 4, connections_per_client: 2");
        let first = enter(&all, Some("192.0.2.7")).await;
        let second = enter(&all, Some("192.0.2.7")).await;
        assert!(enter(&all, Some("192.0.2.7")).await.is_none());
        assert!(enter(&all, Some("192.0.2.8")).await.is_some());
        drop(first);
        assert!(enter(&all, Some("192.0.2.7")).await.is_some());
        drop(second);
    }
}
