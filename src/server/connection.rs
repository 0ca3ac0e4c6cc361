//! One connection of a client, from its first byte to its end.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::tls::{self, Secured, Socket};
use crate::config::{LimitSettings, TlsSettings};
use crate::metrics::{HandshakeError, Limit};
use crate::proxy::{Peer, Proxy};

/// What all connections of the data port share.
pub(super) struct Connections {
    proxy: Arc<Proxy>,
    builder: auto::Builder<TokioExecutor>,
    limits: LimitSettings,
    stop: CancellationToken,
}

impl Connections {
    pub(super) fn new(proxy: Arc<Proxy>, limits: LimitSettings, stop: CancellationToken) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout);
        builder.http2().timer(TokioTimer::new());
        Self {
            proxy,
            builder,
            limits,
            stop,
        }
    }

    /// Serves a connection in a task of its own: socket, then TLS if there is any, then HTTP. `slot` is its
    /// place among the connections.
    pub(super) fn serve<S: Socket + 'static>(
        self: &Arc<Self>,
        stream: S,
        peer: Peer,
        slot: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) {
        let (connections, watcher) = (Arc::clone(self), graceful.watcher());
        tokio::spawn(async move {
            let _slot = slot;
            let Some(tls) = connections.proxy.tls() else {
                let builder = connections.builder.clone();
                return connections.http(stream, peer, builder, watcher).await;
            };
            let Some(secured) = connections.secure(tls, Box::new(stream), &peer).await else {
                return;
            };
            // What was agreed on by ALPN is what is spoken.
            let builder = connections.builder.clone();
            let builder = if secured.http2 {
                builder.http2_only()
            } else {
                builder.http1_only()
            };
            let peer = Peer {
                tls: Some(secured.names),
                ..peer
            };
            connections
                .http(secured.stream, peer, builder, watcher)
                .await;
        });
    }

    /// Shakes hands, unless the process stops first: nothing has been asked for yet.
    async fn secure(
        &self,
        tls: TlsSettings,
        socket: Box<dyn Socket>,
        peer: &Peer,
    ) -> Option<Secured> {
        let accepted = tokio::select! {
            accepted = tls::accept(tls.config, socket, self.limits.head_timeout) => accepted,
            () = self.stop.cancelled() => return None,
        };
        let failed = match accepted {
            Ok(secured) => return Some(secured),
            Err(failed) => failed,
        };
        let metrics = self.proxy.metrics();
        metrics.handshake_error(failed.reason);
        if failed.reason == HandshakeError::Timeout {
            metrics.limit(Limit::HeadTimeout);
        }
        tracing::debug!(error = %failed, reason = failed.reason.as_str(), peer = &*peer.text, "a TLS handshake failed");
        None
    }

    async fn http<S: Socket + 'static>(
        &self,
        stream: S,
        peer: Peer,
        builder: auto::Builder<TokioExecutor>,
        watcher: Watcher,
    ) {
        let proxy = Arc::clone(&self.proxy);
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
            async move { Ok::<_, std::convert::Infallible>(proxy.handle(request, &peer).await) }
        });
        let serving = builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        if let Err(error) = watcher.watch(serving).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
