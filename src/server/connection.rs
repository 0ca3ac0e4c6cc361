//! One connection of a client, from its first byte to its end.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};

use super::guard::Guarded;
use super::streams::{Streams, Told};
use super::talk::Talk;
use crate::config::LimitSettings;
use crate::metrics::Metrics;
use crate::proxy::{Peer, Proxy};

/// What hyper may hold of one connection in each direction; a head that may be longer has room for itself.
const BUFFER: usize = 64 << 10;

/// As many lines hyper takes if it is told nothing; where it is told, it needs an allocation per request.
const HEADERS: usize = 100;

/// What all connections of the data port share.
pub(super) struct Connections {
    proxy: Arc<Proxy>,
    builder: auto::Builder<Streams>,
    limits: LimitSettings,
    metrics: Arc<Metrics>,
}

impl Connections {
    pub(super) fn new(proxy: Arc<Proxy>, limits: LimitSettings, metrics: Arc<Metrics>) -> Self {
        let mut builder = auto::Builder::new(Streams {
            limit: limits.write_timeout,
            metrics: Arc::clone(&metrics),
        });
        // Limits and deadlines of HTTP/1 heads are the guard's: what it lets through must fit here.
        builder
            .http1()
            .max_buf_size(BUFFER.max(limits.header_bytes))
            .header_read_timeout(None);
        if limits.header_count > HEADERS {
            builder.http1().max_headers(limits.header_count);
        }
        builder.http2().timer(TokioTimer::new());
        Self {
            proxy,
            builder,
            limits,
            metrics,
        }
    }

    /// Serves a connection in a task of its own.
    pub(super) fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        peer: Peer,
        graceful: &GracefulShutdown,
    ) {
        let proxy = Arc::clone(&self.proxy);
        let talk = Arc::new(Talk::default());
        let stream = Guarded::new(
            stream,
            &self.limits,
            Arc::clone(&talk),
            Arc::clone(&self.metrics),
        );
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
            let call = talk.call();
            async move {
                let response = match call.refused() {
                    Some(error) => proxy.refuse(error, &peer),
                    None => proxy.handle(request, &peer).await,
                };
                call.answered(response.status() == StatusCode::SWITCHING_PROTOCOLS);
                Ok::<_, std::convert::Infallible>(response.map(|body| call.with(Told::new(body))))
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
