//! One connection of a client, from its first byte to its end.

use std::sync::Arc;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;

use super::activity::{self, Activity, Leave, Served};
use super::http2;
use crate::config::LimitSettings;
use crate::proxy::{Peer, Proxy};

/// What all connections of the data port share.
pub(super) struct Connections {
    proxy: Arc<Proxy>,
    builder: auto::Builder<TokioExecutor>,
    limits: LimitSettings,
    leave: Leave,
    /// Every connection there is.
    open: TaskTracker,
}

impl Connections {
    pub(super) fn new(proxy: Arc<Proxy>, limits: LimitSettings, leave: Leave) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout);
        http2::configure(&mut builder, &limits);
        Self {
            proxy,
            builder,
            limits,
            leave,
            open: TaskTracker::new(),
        }
    }

    /// Serves a connection in a task of its own. `slot` is its place among the connections.
    pub(super) fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        peer: Peer,
        slot: OwnedSemaphorePermit,
    ) {
        let activity = Activity::new();
        let proxy = Arc::clone(&self.proxy);
        let (counts, announced) = (activity.clone(), self.leave.announced.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
            let (version, announced) = (request.version(), announced.clone());
            let at_work = counts.begin(version);
            async move {
                let mut response = proxy.handle(request, &peer).await;
                if announced.is_cancelled()
                    && version <= Version::HTTP_11
                    && response.status() != StatusCode::SWITCHING_PROTOCOLS
                {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                Ok::<_, std::convert::Infallible>(response.map(|body| at_work.answered(body)))
            }
        });
        let serving = self
            .builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let serving: Served = Box::pin(serving);
        let (proxy, limits, leave) = (Arc::clone(&self.proxy), self.limits, self.leave.clone());
        self.open.spawn(async move {
            let _slot = slot;
            let served = activity::drive(serving, &activity, &leave, &limits, proxy.metrics());
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }

    /// Resolves when all connections have ended.
    pub(super) async fn ended(&self) {
        self.open.close();
        self.open.wait().await;
    }
}
