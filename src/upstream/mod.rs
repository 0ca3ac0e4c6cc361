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
//! A request is sent in two steps. [`Upstream::reserve`] waits for a connection, over HTTP/2 until
//! the upstream allows a stream. Only then its permit begins, and [`Reserved::send`] hands the
//! request over. So no fenced request waits in a queue that outlives its permit.
//!
//! Over [HTTP/1](http1), a request may go over another connection if the kernel has taken no byte
//! of it. That happens when the upstream has closed an idle connection. It is the only retry of a
//! fenced request, and happens under the same permit. One of which a byte may have been written is
//! never sent again (G5). A safe request that is not fenced and has no body is sent once more if an
//! idle connection ends before a byte of its answer.

mod connect;
mod errors;
mod http1;
mod http2;
mod pool;
mod response;
mod socket;

use std::sync::{Arc, Mutex, PoisonError};

use http::Uri;
use http::uri::{Authority, Scheme};

use self::connect::{Address, Connecting, Tls};
pub use self::errors::UpstreamError;
pub(crate) use self::errors::{ReserveError, SendError};
pub(crate) use self::http1::Upgraded;
use self::http1::{Http1Exchange, Http1Pool};
use self::http2::{Http2Pending, Http2Pool, Http2Way, SharedConnections};
pub(crate) use self::response::{
    PendingResponse, ResponseBody, into_upgraded, is_uploading, poll_taken, taken, upload,
};
use self::socket::LeaseGuard;
use crate::body::UpstreamRequest;
use crate::config::{HostPolicy, UpstreamSettings, UpstreamUrl};
use crate::fencing::lease::Lease;
use crate::http1::Target;
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
    async fn reserve(&self) -> Result<Reserved, ReserveError> {
        let way = match self {
            Self::Http1(pool) => return Ok(Reserved::Http1(Arc::clone(pool))),
            Self::Http2(pool) => {
                let connection = match pool.take() {
                    Some(connection) => Ok(connection),
                    None => pool.open().await,
                };
                connection.map(|connection| Http2Way::Own(Some(connection), Arc::clone(pool)))
            }
            Self::SharedHttp2(connections) => connections.stream().await.map(Http2Way::Shared),
        };
        way.map(Reserved::Http2).map_err(ReserveError::Unreachable)
    }

    fn retire(&self) {
        match self {
            Self::Http1(pool) => pool.retire(),
            Self::Http2(pool) => pool.retire(),
            Self::SharedHttp2(connections) => connections.retire(),
        }
    }
}

/// The right to send one request at once.
#[must_use = "over HTTP/2 it holds a stream"]
pub(crate) enum Reserved {
    Http1(Arc<Http1Pool>),
    Http2(Http2Way),
}

impl Reserved {
    /// Hands the request over. [`PendingResponse`] is to be polled for the response. `repeatable`:
    /// it is not fenced, and sending it twice does no harm.
    pub(crate) fn send(self, request: UpstreamRequest, repeatable: bool) -> PendingResponse {
        match self {
            Self::Http1(pool) => {
                let pending = Http1Exchange::new(pool, request, repeatable);
                PendingResponse::Http1(Box::new(pending))
            }
            Self::Http2(way) => {
                let pending = Http2Pending::new(way, request, repeatable);
                PendingResponse::Http2(Box::new(pending))
            }
        }
    }
}

/// The upstream, and the two ways to reach it.
pub(crate) struct Upstream {
    scheme: Scheme,
    pub authority: Authority,
    /// The upstream speaks HTTP/2, by prior knowledge or ALPN: the authority takes the place of
    /// Host.
    pub h2: bool,
    setup: Setup,
    lease: Arc<Lease>,
    /// For requests with a permit: of the incarnation beside it. Short sections, never across an
    /// await.
    fenced: Mutex<(u64, UpstreamConnections)>,
    /// Each worker's copy of them.
    own: PerWorker<(u64, UpstreamConnections)>,
    /// For requests that are not fenced.
    plain: UpstreamConnections,
}

/// The settings of all connections.
struct Setup {
    settings: UpstreamSettings,
    /// `None`: no TLS.
    tls: Option<Tls>,
    h2: bool,
    address: Address,
    metrics: Arc<Metrics>,
}

impl Setup {
    /// `fence`: the lease, and the incarnation of the permits that these connections are for.
    fn connections(&self, fence: Option<(&Arc<Lease>, u64)>) -> UpstreamConnections {
        let settings = &self.settings;
        let undelivered = settings.undelivered;
        let guard =
            fence.map(|(lease, incarnation)| LeaseGuard::new(lease, incarnation, undelivered));
        let (address, tls) = (self.address.clone(), self.tls.clone());
        let connecting = Connecting::new(
            address,
            tls,
            guard,
            (settings.connect_timeout, settings.header_bytes),
            Arc::clone(&self.metrics),
        );
        let idle = settings.idle_timeout;
        match (self.h2, fence) {
            (false, _) => UpstreamConnections::Http1(Arc::new(Http1Pool::new(connecting, idle))),
            (true, Some(_)) => {
                UpstreamConnections::Http2(Arc::new(Http2Pool::new(connecting, idle)))
            }
            (true, None) => {
                let connections = SharedConnections::new(connecting, idle);
                UpstreamConnections::SharedHttp2(Arc::new(connections))
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
            tls,
            h2,
            address,
            metrics: Arc::clone(metrics),
        };
        let incarnation = lease.incarnation();
        let fenced = setup.connections(Some((lease, incarnation)));
        let plain = setup.connections(None);
        Ok(Self {
            scheme,
            authority,
            h2,
            setup,
            lease: Arc::clone(lease),
            own: PerWorker::new(|| (incarnation, fenced.clone())),
            fenced: Mutex::new((incarnation, fenced)),
            plain,
        })
    }

    /// Waits until a request with a permit of `incarnation` can be sent.
    pub(crate) async fn reserve(&self, incarnation: u64) -> Result<Reserved, ReserveError> {
        let fenced = self.fenced(incarnation)?;
        fenced.reserve().await
    }

    /// As [`Self::reserve`], for a request that is not fenced.
    pub(crate) async fn reserve_plain(&self) -> Result<Reserved, ReserveError> {
        self.plain.reserve().await
    }

    /// Opens a connection and sends nothing.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        if let UpstreamConnections::Http1(pool) = &self.plain {
            return pool.open().await.map(drop);
        }
        let reserved = self.plain.reserve().await.map(drop);
        reserved.map_err(|error| error.to_string())
    }

    /// The connections for permits of `incarnation`. After a rejoin, those of the previous
    /// incarnation can carry nothing new, so new ones are made. A permit of the previous
    /// incarnation gets none at all, since the sockets of the new one would let it write.
    fn fenced(&self, incarnation: u64) -> Result<UpstreamConnections, ReserveError> {
        {
            let own = self.own.own();
            // A permit of the previous incarnation is refused below.
            if own.0 == incarnation && self.lease.incarnation() == incarnation {
                return Ok(own.1.clone());
            }
        }
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        if fenced.0 > incarnation {
            return Err(ReserveError::Ended);
        }
        if fenced.0 < incarnation {
            let connections = self.setup.connections(Some((&self.lease, incarnation)));
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
        let fenced = {
            let fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
            fenced.1.clone()
        };
        fenced.retire();
        self.plain.retire();
    }

    /// The URI of a request whose target is `target`, byte for byte. `None` over HTTP/1.
    pub(crate) fn uri(&self, target: &Target) -> Option<Box<Uri>> {
        if !self.h2 {
            return None;
        }
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(target.path_and_query());
        uri.build().ok().map(Box::new)
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

#[cfg(test)]
mod tests;
