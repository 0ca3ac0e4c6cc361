//! One connection of a client, from its first byte to its end.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;

use crate::config::LimitSettings;
use crate::proxy::{Peer, Proxy};

/// What all connections of the data port share.
pub(super) struct Connections {
    proxy: Arc<Proxy>,
    builder: auto::Builder<TokioExecutor>,
}

impl Connections {
    pub(super) fn new(proxy: Arc<Proxy>, limits: LimitSettings) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            // Names go on as they were spelled; ours, and those of HTTP/2, as people write them.
            .preserve_header_case(true)
            .title_case_headers(true)
            .header_read_timeout(limits.head_timeout);
        builder.http2().timer(TokioTimer::new());
        Self { proxy, builder }
    }

    /// Serves a connection in a task of its own. `slot` is its place among the connections.
    pub(super) fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        peer: Peer,
        slot: OwnedSemaphorePermit,
        graceful: &GracefulShutdown,
    ) {
        let proxy = Arc::clone(&self.proxy);
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
            async move { Ok::<_, std::convert::Infallible>(proxy.handle(request, &peer).await) }
        });
        let serving = self
            .builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let serving = graceful.watch(serving);
        tokio::spawn(async move {
            let _slot = slot;
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}
