//! The way to the upstream: [sockets](socket) that check the lease before every write, and the
//! connections over them.
//!
//! There are two sets of connections. The *fenced* one writes only under the lease of the
//! incarnation in which its connection was opened. An instance may stop in the middle of a body,
//! and wake up after others have declared it dead. Its next write then finds the lease lapsed, and
//! the connection is reset. The *plain* one carries requests that are not fenced, and needs no
//! lease.
//!
//! A fenced exchange has its connection to itself. While it runs, nothing else is on that
//! connection, so that giving it up is a reset that hurts no other request. Idle connections are
//! [pooled](pool), and carry one exchange after the other. Over [HTTP/2](http2), requests that are
//! not fenced share connections.
//!
//! A fenced request is sent in two steps. Over HTTP/2, [`Upstream::reserve`] waits for a connection
//! on which the upstream allows a stream. Only then its permit begins, and [`Upstream::send`] hands
//! the request over. So none waits in a queue that outlives its permit.
//!
//! Over [HTTP/1](http1), a request may go over another connection if the kernel has taken no byte
//! of it. That happens when the upstream has closed an idle connection. It is the only retry of a
//! fenced request, and happens under the same permit. One of which a byte may have been written is
//! never sent again (G5). A safe request that is not fenced and has no body is sent once more if an
//! idle connection ends before a byte of its answer.

mod connect;
mod http1;
mod http2;
mod pool;
mod socket;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};
use http_body_util::Either;

pub(crate) use self::connect::SendError;
pub use self::connect::UpstreamError;
use self::connect::{Address, Connecting, Tls};
pub(crate) use self::http1::Upgraded;
use self::http1::{Http1Body, Http1Exchange, Http1Pool};
use self::http2::{Http2Body, Http2Connection, Http2Pool, SharedConnections};
use self::socket::LeaseGuard;
use crate::body::{BoxError, UpstreamRequest};
use crate::config::{HostPolicy, UpstreamSettings, UpstreamUrl};
use crate::fencing::lease::Lease;
use crate::http1::{Response, Target};
use crate::locked::locked;
use crate::metrics::Metrics;
use crate::worker::PerWorker;

/// The connections of one kind.
#[derive(Clone)]
enum UpstreamConnections {
    Http1(Arc<Http1Pool>),
    /// For fenced requests.
    Http2(Arc<Http2Pool>),
    /// For the others.
    SharedHttp2(Arc<SharedConnections>),
}

impl UpstreamConnections {
    fn retire(&self) {
        match self {
            Self::Http1(pool) => pool.retire(),
            Self::Http2(pool) => pool.retire(),
            Self::SharedHttp2(connections) => connections.retire(),
        }
    }
}

/// What one request goes over: the connections, and over HTTP/2 the one that a fenced request has to
/// itself.
#[must_use = "it may hold a connection"]
pub(crate) struct Reserved(UpstreamConnections, Option<Http2Connection>);

/// The upstream, and the two ways to reach it.
pub(crate) struct Upstream {
    scheme: Scheme,
    pub authority: Authority,
    /// The upstream speaks HTTP/2, by prior knowledge or ALPN: the authority takes the place of
    /// Host.
    pub h2: bool,
    setup: Setup,
    /// For requests with a permit: of the incarnation beside it. Short sections, never across an
    /// await.
    fenced: Mutex<(u64, UpstreamConnections)>,
    /// Each worker's copy of them.
    own: PerWorker<(u64, UpstreamConnections)>,
    /// For requests that are not fenced.
    plain: UpstreamConnections,
}

/// What all connections have in common.
struct Setup {
    settings: UpstreamSettings,
    h2: bool,
    lease: Arc<Lease>,
    /// Without a guard.
    connecting: Connecting,
}

impl Setup {
    /// `incarnation`: of the permits that these connections are for. `None`: for requests that are
    /// not fenced.
    fn connections(&self, incarnation: Option<u64>) -> UpstreamConnections {
        let guard = incarnation.map(|incarnation| LeaseGuard {
            lease: Arc::clone(&self.lease),
            incarnation,
            undelivered: self.settings.undelivered,
        });
        let connecting = Connecting {
            guard,
            ..self.connecting.clone()
        };
        let idle = self.settings.idle_timeout;
        match (self.h2, incarnation) {
            (false, _) => UpstreamConnections::Http1(Http1Pool::new(connecting, idle)),
            (true, Some(_)) => UpstreamConnections::Http2(Http2Pool::new(connecting, idle)),
            (true, None) => {
                UpstreamConnections::SharedHttp2(SharedConnections::new(connecting, idle))
            }
        }
    }
}

impl Upstream {
    pub(crate) fn new(
        settings: &UpstreamSettings,
        lease: &Arc<Lease>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, UpstreamError> {
        let (scheme, authority, h2, socket) = match &settings.url {
            UpstreamUrl::Http(authority) => (Scheme::HTTP, authority.as_str(), false, None),
            UpstreamUrl::Https(authority) => {
                (Scheme::HTTPS, authority.as_str(), settings.http2, None)
            }
            UpstreamUrl::H2c(authority) => (Scheme::HTTP, authority.as_str(), true, None),
            UpstreamUrl::Unix(path) => (Scheme::HTTP, "localhost", false, Some(path.clone())),
        };
        let authority: Authority = authority
            .parse()
            .map_err(|error| UpstreamError::Authority(authority.to_owned(), error))?;
        let config = (scheme == Scheme::HTTPS)
            .then(|| settings.tls.client_config())
            .transpose()
            .map_err(UpstreamError::Roots)?;
        let tls = config.map(|config| {
            let name = settings.tls.server_name.clone();
            Tls::new(config, name, &authority, h2)
        });
        let address = match socket {
            Some(path) => Address::Unix(path),
            None => Address::tcp(&authority, tls.is_some()),
        };
        let setup = Setup {
            settings: settings.clone(),
            h2,
            lease: Arc::clone(lease),
            connecting: Connecting {
                address,
                tls,
                guard: None,
                timeout: settings.connect_timeout,
                header_bytes: settings.header_bytes,
                metrics: Arc::clone(metrics),
            },
        };
        let incarnation = lease.incarnation();
        let fenced = setup.connections(Some(incarnation));
        let plain = setup.connections(None);
        Ok(Self {
            scheme,
            authority,
            h2,
            setup,
            own: PerWorker::new(|| (incarnation, fenced.clone())),
            fenced: Mutex::new((incarnation, fenced)),
            plain,
        })
    }

    /// Waits until a request with a permit of `incarnation` can be sent.
    ///
    /// # Errors
    ///
    /// Always [`SendError::NotSent`].
    pub(crate) async fn reserve(&self, incarnation: u64) -> Result<Reserved, SendError> {
        let connections = self.fenced(incarnation)?;
        let own = match &connections {
            UpstreamConnections::Http2(pool) => Some(match pool.take() {
                Some(connection) => connection,
                None => pool.open().await.map_err(SendError::NotSent)?,
            }),
            _ => None,
        };
        Ok(Reserved(connections, own))
    }

    /// The same for a request that is not fenced.
    pub(crate) fn plain(&self) -> Reserved {
        Reserved(self.plain.clone(), None)
    }

    /// Sends a request over what is reserved for it. Resolves with the head of the response, with the
    /// body that follows. Dropping it midway resets the connection of a fenced request.
    /// `repeatable`: it is not fenced, and sending it twice does no harm.
    pub(crate) fn send(
        &self,
        Reserved(connections, own): Reserved,
        request: UpstreamRequest,
        repeatable: bool,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> + Send + use<> {
        type Http2Pending =
            Pin<Box<dyn Future<Output = Result<Response<Http2Body>, SendError>> + Send>>;
        let uri = self.uri(&request.head.target);
        // Boxed, so that the futures around it stay small.
        let pending: Either<Box<Http1Exchange>, Http2Pending> = match connections {
            UpstreamConnections::Http1(pool) => {
                let pending = Http1Exchange::new(pool, request, repeatable);
                Either::Left(Box::new(pending))
            }
            UpstreamConnections::Http2(pool) => {
                let own = own.map(|connection| (connection, pool));
                Either::Right(Box::pin(http2::fenced(own, uri, request)))
            }
            UpstreamConnections::SharedHttp2(shared) => {
                Either::Right(Box::pin(http2::plain(shared, uri, request, repeatable)))
            }
        };
        async move {
            match pending {
                Either::Left(pending) => Ok(pending.response().await?.map(Either::Left)),
                Either::Right(pending) => Ok(pending.await?.map(Either::Right)),
            }
        }
    }

    /// Opens a connection and sends nothing.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        match &self.plain {
            UpstreamConnections::Http1(pool) => pool.open().await.map(drop),
            UpstreamConnections::Http2(pool) => pool.open().await.map(drop),
            UpstreamConnections::SharedHttp2(shared) => shared.stream().await.map(drop),
        }
    }

    /// The connections for permits of `incarnation`. After a rejoin, those of the previous
    /// incarnation can carry nothing new, so new ones are made. A permit of the previous
    /// incarnation gets none at all, since the sockets of the new one would let it write.
    fn fenced(&self, incarnation: u64) -> Result<UpstreamConnections, SendError> {
        {
            let own = self.own.own();
            // A permit of the previous incarnation is refused below.
            if own.0 == incarnation && self.setup.lease.incarnation() == incarnation {
                return Ok(own.1.clone());
            }
        }
        let mut fenced = locked(&self.fenced);
        if fenced.0 > incarnation {
            let ended = "the lease under which this request was admitted has ended";
            return Err(SendError::NotSent(ended.to_owned()));
        }
        if fenced.0 < incarnation {
            let connections = self.setup.connections(Some(incarnation));
            self.own
                .change(|own| *own = (incarnation, connections.clone()));
            let old = std::mem::replace(&mut *fenced, (incarnation, connections));
            old.1.retire();
        }
        Ok(fenced.1.clone())
    }

    /// Other settings have taken the place of these. Idle connections are closed, and what was sent
    /// comes to its end. A request that was judged under these settings may still be sent.
    pub(crate) fn retire(&self) {
        let fenced = locked(&self.fenced).1.clone();
        fenced.retire();
        self.plain.retire();
    }

    /// The URI of a request whose target is `target`, byte for byte. `None` over HTTP/1.
    fn uri(&self, target: &Target) -> Option<Uri> {
        if !self.h2 {
            return None;
        }
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(target.text.clone());
        uri.build().ok()
    }

    /// The Host that the upstream sees, given the client's.
    pub(crate) fn host<'a>(&'a self, client: Option<&'a [u8]>) -> &'a [u8] {
        let own = self.authority.as_str().as_bytes();
        match &self.setup.settings.host {
            HostPolicy::Preserve => client.unwrap_or(own),
            HostPolicy::Rewrite => own,
            HostPolicy::Literal(host) => host.as_bytes(),
        }
    }
}

/// The body of a response, over HTTP/1 or HTTP/2. The rest of the request is sent as it is read.
/// Dropping it resets the connection of a fenced request, unless [`taken`] was true.
pub(crate) type ResponseBody = Either<Http1Body, Http2Body>;

/// Whether a part of the request is still to be sent.
pub(crate) fn is_uploading(body: &ResponseBody) -> bool {
    match body {
        Either::Left(body) => body.is_uploading(),
        Either::Right(body) => body.is_uploading(),
    }
}

/// Sends more of the request while the response is not read. Resolves only if the request breaks
/// off.
pub(crate) async fn upload(body: &mut ResponseBody) -> BoxError {
    poll_fn(|cx| match body {
        Either::Left(body) => body.poll_upload(cx),
        Either::Right(body) => body.poll_upload(cx),
    })
    .await
}

/// The pauses between two looks at a connection's send queue: at first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Waits until the upstream's host has acknowledged all that was sent of a fenced request whose
/// response is whole. The rest of the request is never sent. `false`: the connection failed before.
///
/// The response itself mostly brings the acknowledgement, and the first look is enough. No event
/// tells of a later one, so the wait looks again and again.
pub(crate) async fn taken(body: &mut ResponseBody) -> bool {
    let (mut pause, longest) = LOOK;
    loop {
        if let Poll::Ready(taken) = poll_taken(body) {
            return taken;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// As [`taken`], without waiting.
pub(crate) fn poll_taken(body: &mut ResponseBody) -> Poll<bool> {
    match body {
        Either::Left(body) => body.taken(),
        Either::Right(body) => body.taken(),
    }
}

/// The tunnel that follows a 101.
pub(crate) fn into_upgraded(body: ResponseBody) -> Option<Upgraded> {
    match body {
        Either::Left(body) => body.into_upgraded(),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests;
