//! One connection of a client, from its first byte to its end: socket, then TLS if there is any, then
//! HTTP of either version.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::accept::AcceptedStream;
use super::activity::{ConnectionActivity, Leave, Signal, until_cut};
use super::deadline::Timed;
use super::http1::{self, Site};
use super::http2::Http2;
use super::idle::{IdleConnections, Presence};
use super::patience::Patience;
use super::slots::ConnectionSlot;
use super::tls::{self, Secured, TlsIo};
use crate::config::{LimitSettings, TlsSettings};
use crate::metrics::{HandshakeError, Limit, Metrics};
use crate::proxy::headers::forwarded_for;
use crate::proxy::{ConnectionPlaces, Network, Peer, Proxy};
use crate::worker;

/// What all connections of the data port share.
pub(super) struct DataConnections {
    proxy: Arc<Proxy>,
    http2: Http2,
    limits: LimitSettings,
    metrics: Arc<Metrics>,
    leave: Leave,
    idle: Arc<IdleConnections>,
    /// Every connection there is.
    open: TaskTracker,
}

impl DataConnections {
    pub(super) fn new(
        proxy: Arc<Proxy>,
        limits: LimitSettings,
        metrics: Arc<Metrics>,
        leave: Leave,
        idle: Arc<IdleConnections>,
    ) -> Self {
        Self {
            http2: Http2::new(&limits, proxy.slow_clients(), Arc::clone(&metrics)),
            proxy,
            limits,
            metrics,
            leave,
            idle,
            open: TaskTracker::new(),
        }
    }

    /// Serves a connection in a task of its own, which stays with this worker.
    pub(super) fn serve(
        self: &Arc<Self>,
        stream: AcceptedStream,
        slot: ConnectionSlot,
        worker: &Handle,
    ) {
        let network = stream.ip().map(Network::of);
        let stream = match stream.leave() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be handed over");
                return;
            }
        };
        let connections = Arc::clone(self);
        let serving = async move {
            let presence = Presence {
                activity: Arc::new(ConnectionActivity::new()),
                peer: slot.peer(),
            };
            let _member = connections.idle.add(presence.clone());
            let waited_for = connections.proxy.slow_clients();
            let limit = connections.limits.write_timeout;
            let patience = Patience::new(limit, waited_for, network);
            let metrics = Arc::clone(&connections.metrics);
            match stream.arrive() {
                Ok(AcceptedStream::Tcp(stream, ip)) => {
                    let stream = Timed::new(stream, patience, metrics, slot);
                    Box::pin(connections.secured(stream, peer(Some(ip)), presence)).await;
                }
                Ok(AcceptedStream::Unix(stream)) => {
                    let stream = Timed::new(stream, patience, metrics, slot);
                    Box::pin(connections.secured(stream, peer(None), presence)).await;
                }
                Err(error) => {
                    let worker = worker::index();
                    tracing::debug!(%error, worker, "a connection could not be handed over");
                }
            }
        };
        self.open.spawn_on(serving, worker);
    }

    /// Speaks TLS, if there is any, and HTTP.
    async fn secured<S: TlsIo + 'static>(&self, stream: S, peer: Peer, presence: Presence) {
        let Some(tls) = self.proxy.tls() else {
            return self.http(stream, peer, presence, None).await;
        };
        let clients = tls.clients;
        let secured = self.secure(tls, Box::new(stream), &peer, &presence).await;
        let Some(secured) = secured else {
            return;
        };
        let agreed = Some(secured.http2);
        let shown = clients.filter(|_| secured.identity.is_some());
        let peer = Peer {
            tls: Some(secured.names),
            mutual: clients.is_some(),
            identity: secured.identity,
            until: shown.map(|clients| Instant::now() + clients.max_age),
            ..peer
        };
        Box::pin(self.http(secured.stream, peer, presence, agreed)).await;
    }

    /// Shakes hands, unless the process stops first, or others need the place: nothing has been asked
    /// for yet.
    async fn secure(
        &self,
        tls: TlsSettings,
        socket: Box<dyn TlsIo>,
        peer: &Peer,
        presence: &Presence,
    ) -> Option<Secured> {
        let accepted = tokio::select! {
            accepted = tls::accept(tls.config, socket, self.limits.head_timeout) => accepted,
            () = self.leave.now.cancelled() => return None,
            () = presence.activity.told() => {
                self.metrics.limit(Limit::IdleClosed);
                return None;
            }
        };
        let failed = match accepted {
            Ok(secured) => return Some(secured),
            Err(failed) => failed,
        };
        self.metrics.handshake_error(failed.reason);
        if failed.reason == HandshakeError::Timeout {
            self.metrics.limit(Limit::HeadTimeout);
        }
        tracing::debug!(error = %failed, reason = failed.reason.as_str(), client = &*peer.text, "a TLS handshake failed");
        None
    }

    /// `http2`: whether that is what the two have agreed on by ALPN; `None`: they have not.
    async fn http<S: TlsIo + 'static>(
        &self,
        stream: S,
        peer: Peer,
        presence: Presence,
        http2: Option<bool>,
    ) {
        let until = peer.until;
        let activity = &presence.activity;
        let serving = self.speak(stream, Arc::new(peer), &presence, http2);
        let Some(until) = until else {
            return until_cut(activity, serving).await;
        };
        tokio::select! {
            () = until_cut(activity, serving) => {}
            () = grow_old(until, activity) => {}
        }
    }

    async fn speak<S: TlsIo + 'static>(
        &self,
        stream: S,
        peer: Arc<Peer>,
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
        // In memory of its own: a connection that speaks HTTP/1 needs none of it.
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

/// Lets a connection that is too old leave: requests under way on it may end, for as long again. Then
/// this resolves.
async fn grow_old(until: Instant, activity: &ConnectionActivity) {
    let age = until.saturating_duration_since(Instant::now());
    tokio::time::sleep_until(until).await;
    activity.signal(Signal::Leave);
    tokio::time::sleep(age).await;
}

fn peer(ip: Option<IpAddr>) -> Peer {
    let text = ip.map_or_else(|| "unix".into(), |ip| ip.to_string().into());
    Peer {
        ip,
        forwarded: ip.and_then(forwarded_for),
        text,
        tls: None,
        mutual: false,
        identity: None,
        until: None,
        places: ConnectionPlaces::default(),
    }
}
