//! One connection of a client, from its first byte to its end: socket, then TLS if there is any, then the
//! guard, then HTTP.

use std::sync::Arc;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::activity::{self, Activity, Leave, Served};
use super::guard::Guarded;
use super::http2;
use super::idle::{IdleConnections, Presence};
use super::slots::PeerPlace;
use super::streams::{Streams, Told};
use super::tls::{self, Io, Secured};
use crate::config::{LimitSettings, TlsSettings};
use crate::metrics::{HandshakeError, Limit, Metrics};
use crate::proxy::headers::OUTCOME;
use crate::proxy::{Peer, Proxy};
use crate::wire::request::RequestError;

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
    leave: Leave,
    idle: Arc<IdleConnections>,
    /// Every connection there is.
    open: TaskTracker,
}

impl Connections {
    pub(super) fn new(
        proxy: Arc<Proxy>,
        limits: LimitSettings,
        metrics: Arc<Metrics>,
        leave: Leave,
        idle: Arc<IdleConnections>,
    ) -> Self {
        let mut builder = auto::Builder::new(Streams {
            limit: limits.write_timeout,
            slow: proxy.slow_clients(),
            metrics: Arc::clone(&metrics),
        });
        // Limits and deadlines of HTTP/1 heads are the guard's: what it lets through must fit here.
        builder
            .http1()
            // Names go on as they were spelled; ours, and those of HTTP/2, as people write them.
            .preserve_header_case(true)
            .title_case_headers(true)
            .timer(TokioTimer::new())
            .max_buf_size(BUFFER.max(limits.header_bytes))
            .header_read_timeout(None);
        if limits.header_count > HEADERS {
            builder.http1().max_headers(limits.header_count);
        }
        http2::configure(&mut builder, &limits);
        Self {
            proxy,
            builder,
            limits,
            metrics,
            leave,
            idle,
            open: TaskTracker::new(),
        }
    }

    /// Serves a connection in a task of its own.
    pub(super) fn serve<S: Io + 'static>(
        self: &Arc<Self>,
        stream: S,
        peer: Peer,
        place: Option<PeerPlace>,
    ) {
        let connections = Arc::clone(self);
        let presence = Presence {
            activity: Activity::new(),
            talk: Arc::default(),
            peer: place,
        };
        self.open.spawn(async move {
            let _member = connections.idle.add(presence.clone());
            let Some(tls) = connections.proxy.tls() else {
                return connections.http(stream, peer, presence, None).await;
            };
            let clients = tls.clients;
            let Some(secured) = connections
                .secure(tls, Box::new(stream), &peer, &presence)
                .await
            else {
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
            connections
                .http(secured.stream, peer, presence, agreed)
                .await;
        });
    }

    /// Shakes hands, unless the process stops first, or others need the place: nothing has been asked
    /// for yet.
    async fn secure(
        &self,
        tls: TlsSettings,
        socket: Box<dyn Io>,
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
        tracing::debug!(error = %failed, reason = failed.reason.as_str(), peer = &*peer.text, "a TLS handshake failed");
        None
    }

    /// `http2`: whether that is what the two have agreed on by ALPN; `None`: they have not.
    async fn http<S: Io + 'static>(
        &self,
        stream: S,
        peer: Peer,
        presence: Presence,
        http2: Option<bool>,
    ) {
        let proxy = Arc::clone(&self.proxy);
        let until = peer.until;
        let talk = Arc::clone(&presence.talk);
        let stream = Guarded::new(
            stream,
            &self.limits,
            Arc::clone(&talk),
            Arc::clone(&self.metrics),
        );
        let (counts, announced) = (presence.activity.clone(), self.leave.announced.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (proxy, peer) = (Arc::clone(&proxy), peer.clone());
            let (version, announced) = (request.version(), announced.clone());
            let (call, at_work) = (talk.call(), counts.begin(version));
            async move {
                let spoken = http2.is_none_or(|http2| http2 == (version == Version::HTTP_2));
                let refused = call.refused();
                let mut response = match refused.or((!spoken).then_some(RequestError::Version)) {
                    Some(error) => proxy.refuse(error, &peer),
                    None => proxy.handle(request, &peer).await,
                };
                let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                // An answer of the proxy's own that does not wait for the body is the connection's last one: hyper
                // reads no further (RFC 9112, 9.6).
                let unread = response.headers().contains_key(OUTCOME) && !call.is_whole();
                let last = announced.is_cancelled() || unread;
                if last && version <= Version::HTTP_11 && !switches {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                call.answered(switches);
                Ok::<_, std::convert::Infallible>(
                    response.map(|body| at_work.answered(call.with(Told::new(body)))),
                )
            }
        });
        let serving = self
            .builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let serving: Served = Box::pin(serving);
        let mut leave = self.leave.clone();
        if until.is_some() {
            leave.now = leave.now.child_token();
        }
        let served = activity::drive(serving, &presence, &leave, &self.limits, &self.metrics);
        let served = tokio::select! {
            served = served => served,
            () = leave.cut.cancelled() => Ok(()),
            () = grow_old(until, &leave) => Ok(()),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    /// Resolves when all connections have ended.
    pub(super) async fn ended(&self) {
        self.open.close();
        self.open.wait().await;
    }
}

/// Lets a connection that is too old leave: requests under way on it may end, for as long again. Then
/// this resolves.
async fn grow_old(until: Option<Instant>, leave: &Leave) {
    let Some(until) = until else {
        return std::future::pending().await;
    };
    let age = until.saturating_duration_since(Instant::now());
    tokio::time::sleep_until(until).await;
    leave.now.cancel();
    tokio::time::sleep(age).await;
}
