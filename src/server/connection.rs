//! One connection of a client, from its first byte to its end.

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};

use super::streams::{Streams, Told};
use crate::config::LimitSettings;
use crate::metrics::Metrics;
use crate::proxy::{Peer, Proxy};

/// What hyper may hold of one connection in each direction; a head that may be longer has room for itself.
const BUFFER: usize = 64 << 10;

/// What all connections of the data port share.
pub(super) struct Connections {
    proxy: Arc<Proxy>,
    builder: auto::Builder<Streams>,
}

impl Connections {
    pub(super) fn new(proxy: Arc<Proxy>, limits: LimitSettings, metrics: Arc<Metrics>) -> Self {
        let mut builder = auto::Builder::new(Streams {
            limit: limits.write_timeout,
            metrics,
        });
        builder
            .http1()
            .timer(TokioTimer::new())
            .max_buf_size(BUFFER.max(limits.header_bytes))
            .header_read_timeout(limits.head_timeout);
        builder.http2().timer(TokioTimer::new());
        Self { proxy, builder }
    }

    /// Serves a connection in a task of its own.
    pub(super) fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        peer: Peer,
        graceful: &GracefulShutdown,
    ) {
        let proxy = Arc::clone(&self.proxy);
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
            async move {
                let response = proxy.handle(request, &peer).await;
                Ok::<_, std::convert::Infallible>(response.map(Told::new))
            }
        });
        let serving = self
            .builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let serving = graceful.watch(serving);
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}
