//! One connection of a client, from its first byte to its end: socket, then TLS if there is any,
//! then HTTP of either version.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::either::Either;
use tokio_util::task::TaskTracker;

use super::accept::AcceptedSocket;
use super::connection_limit::ConnectionPermit;
use super::connection_state::{ConnectionState, until_cut};
use super::http1::{self, Site};
use super::http2::Http2;
use super::idle_connections::{IdleConnections, Presence};
use super::signals::{DrainPhases, Signal};
use super::tls::{self, ClientIo, Secured};
use crate::config::{LimitSettings, TlsSettings};
use crate::metrics::{HandshakeError, Limit, Metrics};
use crate::proxy::headers::forwarded_for;
use crate::proxy::{Client, ConnectionInFlight, Proxy};
use crate::socket::{self, Socket};
use crate::timed_socket::{SocketOwner, TimedSocket};

/// How long a connection with a client certificate accepts new requests, since a certificate may be
/// revoked meanwhile. Its requests then have as long again to end; its tunnels are closed.
const CLIENT_MAX_AGE: Duration = Duration::from_hours(1);

/// How many bytes may wait in the kernel before a write finds no room. By default the kernel takes
/// up to megabytes, and reports room only once a third of them has gone. A slow client that reads
/// all the time would then look like one that does not read.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// Holds the connection's permit while its socket is open.
struct PermittedConnection {
    metrics: Arc<Metrics>,
    _permit: ConnectionPermit,
}

impl SocketOwner for PermittedConnection {
    fn timed_out(&self) {
        self.metrics.limit(Limit::WriteTimeout);
        tracing::debug!("a client took nothing of its answer: its connection is reset");
    }
}

fn prepare(socket: &Socket) {
    if let Either::Left(tcp) = socket {
        // Both fail only on a closed socket.
        let _ = tcp.set_nodelay(true);
        socket::keep_alive(tcp);
        let _ = SockRef::from(tcp).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    }
}

/// State that all connections of the data port share.
pub(super) struct DataConnections {
    proxy: Arc<Proxy>,
    http2: Http2,
    limits: LimitSettings,
    metrics: Arc<Metrics>,
    drain: DrainPhases,
    idle: Arc<IdleConnections>,
    /// The tasks of all connections.
    open: TaskTracker,
}

impl DataConnections {
    pub(super) fn new(
        proxy: Arc<Proxy>,
        limits: LimitSettings,
        metrics: Arc<Metrics>,
        drain: DrainPhases,
        idle: Arc<IdleConnections>,
    ) -> Self {
        Self {
            http2: Http2::new(&limits, Arc::clone(&metrics)),
            proxy,
            limits,
            metrics,
            drain,
            idle,
            open: TaskTracker::new(),
        }
    }

    /// Serves a connection in a task of its own, which stays with this worker.
    pub(super) fn serve(
        self: &Arc<Self>,
        accepted: AcceptedSocket,
        permit: ConnectionPermit,
        worker: &Handle,
    ) {
        let AcceptedSocket { socket, ip } = accepted;
        let lost = |error| tracing::debug!(%error, "a connection could not be handed over");
        let socket = match socket::detach(socket) {
            Ok(socket) => socket,
            Err(error) => return lost(error),
        };
        let connections = Arc::clone(self);
        let serving = async move {
            let socket = match socket::attach(socket) {
                Ok(socket) => socket,
                Err(error) => return lost(error),
            };
            let presence = Presence {
                state: Arc::new(ConnectionState::new()),
                network: permit.network(),
            };
            let _member = connections.idle.add(presence.clone());
            prepare(&socket);
            let owner = Box::new(PermittedConnection {
                metrics: Arc::clone(&connections.metrics),
                _permit: permit,
            });
            let socket = TimedSocket::new(socket, connections.limits.write_timeout, owner);
            Box::pin(connections.secured(socket, peer(ip), presence)).await;
        };
        self.open.spawn_on(serving, worker);
    }

    /// Serves TLS, if it is configured, and HTTP over it.
    async fn secured(&self, socket: TimedSocket, peer: Client, presence: Presence) {
        let Some(tls) = self.proxy.tls() else {
            let socket = Either::Left(socket);
            return self.http(socket, peer, presence, None).await;
        };
        let clients = tls.clients;
        let secured = self.secure(tls, socket, &peer, &presence).await;
        let Some(secured) = secured else {
            return;
        };
        let agreed = Some(secured.http2);
        let shown = clients.filter(|_| secured.identity.is_some());
        let peer = Client {
            tls: Some(secured.names),
            mutual: clients.is_some(),
            identity: secured.identity,
            until: shown.map(|_| Instant::now() + CLIENT_MAX_AGE),
            ..peer
        };
        let stream = Either::Right(Box::new(secured.stream));
        Box::pin(self.http(stream, peer, presence, agreed)).await;
    }

    /// Does the TLS handshake. Gives up if the process stops or others need the permit, because
    /// there is no request yet.
    async fn secure(
        &self,
        tls: TlsSettings,
        socket: TimedSocket,
        peer: &Client,
        presence: &Presence,
    ) -> Option<Secured> {
        let accepted = tokio::select! {
            accepted = tls::accept(tls.config, socket, self.limits.head_timeout) => accepted,
            () = self.drain.now.cancelled() => return None,
            () = presence.state.asked_to_make_room() => {
                self.metrics.limit(Limit::IdleClosed);
                return None;
            }
        };
        let failed = match accepted {
            Ok(secured) => return Some(secured),
            Err(failed) => failed,
        };
        self.metrics
            .series
            .tls_handshake_errors
            .of(failed.reason)
            .inc();
        if failed.reason == HandshakeError::Timeout {
            self.metrics.limit(Limit::HeadTimeout);
        }
        tracing::debug!(error = %failed, reason = failed.reason.as_str(), client = &*peer.text, "a TLS handshake failed");
        None
    }

    /// `http2`: whether ALPN has chosen it. `None`: there was no ALPN.
    async fn http(&self, stream: ClientIo, peer: Client, presence: Presence, http2: Option<bool>) {
        let until = peer.until;
        let state = &presence.state;
        let serving = self.speak(stream, Arc::new(peer), &presence, http2);
        let Some(until) = until else {
            return until_cut(state, serving).await;
        };
        tokio::select! {
            () = until_cut(state, serving) => {}
            () = grow_old(until, state) => {}
        }
    }

    async fn speak(
        &self,
        stream: ClientIo,
        peer: Arc<Client>,
        presence: &Presence,
        http2: Option<bool>,
    ) {
        let site = Site {
            proxy: &self.proxy,
            peer: &peer,
            presence,
            limits: &self.limits,
            metrics: &self.metrics,
            spoken: http2 != Some(true),
        };
        let Some(begun) = http1::serve(stream, &site).await else {
            return;
        };
        let proxy = Arc::clone(&self.proxy);
        let spoken = http2 != Some(false);
        // Boxed: a connection that speaks HTTP/1 does not need this memory.
        let serving = self
            .http2
            .serve(begun, proxy, Arc::clone(&peer), presence, spoken);
        Box::pin(serving).await;
    }

    /// Resolves when all connections have ended.
    pub(super) async fn ended(&self) {
        self.open.close();
        self.open.wait().await;
    }
}

/// Ends a connection that is too old: it gets [`Signal::Leave`] at `until`, and
/// [`CLIENT_MAX_AGE`] again for its requests to end. Then this resolves.
async fn grow_old(until: Instant, state: &ConnectionState) {
    tokio::time::sleep_until(until).await;
    state.signal(Signal::Leave);
    tokio::time::sleep(CLIENT_MAX_AGE).await;
}

fn peer(ip: Option<IpAddr>) -> Client {
    let text = ip.map_or_else(|| "unix".into(), |ip| ip.to_string().into());
    Client {
        ip,
        forwarded: ip.and_then(forwarded_for),
        text,
        tls: None,
        mutual: false,
        identity: None,
        until: None,
        in_flight: ConnectionInFlight::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_leaves_and_is_cut_as_long_after_that() {
        let state = ConnectionState::new();
        let began = Instant::now();
        tokio::select! {
            () = grow_old(began + CLIENT_MAX_AGE, &state) => {}
            () = async {
                tokio::time::sleep(CLIENT_MAX_AGE / 2).await;
                assert!(!state.is(Signal::Leave));
                tokio::time::sleep(CLIENT_MAX_AGE).await;
                assert!(state.is(Signal::Leave));
                std::future::pending::<()>().await;
            } => {}
        }
        assert_eq!(began.elapsed(), CLIENT_MAX_AGE * 2);
    }
}
